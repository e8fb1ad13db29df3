use super::tests::{ask, rules, settle};
use super::*;

/// A requeue does not renew the budget, although each run of a requeued job has a new name, run directory and journal.
#[test]
fn a_requeue_begins_no_new_budget() {
    let mut site = Ledger::default();
    let mut said = Vec::new();
    let mut run = |now: u64, limits: &str, node: &str| {
        let mut guard = Guard::open(rules(limits), Saved::default(), now);
        let mut asked = ask(1, node);
        asked.incident.run = now + 1;
        asked.job = JobId::from(format!("9.0-r{now}").as_str());
        asked.account = Arc::from("slurm:9");
        said.extend(settle(&mut guard, &mut site, now, asked));
    };
    run(0, "", "n1");
    run(8_000, "", "n2");
    run(20_000, "cool_down_s=0", "n1");
    run(40_000, "cool_down_s=0", "n1");
    run(60_000, "cool_down_s=0", "n2");
    run(80_000, "cool_down_s=0", "n3");
    let wanted = [
        "act 1",
        "cool-down 1",
        "act 1",
        "repeated 1",
        "act 1",
        "job-budget 1",
    ];
    assert_eq!(said, wanted);
    // Another job of the same site is not limited.
    let mut guard = Guard::open(rules(""), Saved::default(), 90_000);
    let mut other = ask(1, "n1");
    other.account = Arc::from("slurm:10");
    assert_eq!(settle(&mut guard, &mut site, 90_000, other), ["act 1"]);
}

/// On a site where dry runs and jobs that act run side by side, dry runs and rehearsals block no other job.
#[test]
fn who_only_says_or_rehearses_stops_nobody() {
    let mut site = Ledger::default();
    let mut dry = rules("");
    dry.act = false;
    let mut rehearsal = rules("per_site=100");
    rehearsal.rehearsal = vec![Provenance::Sim];
    let mut storm = |rules: &Rules, provenance, first: u64| {
        let mut last = Vec::new();
        for id in first..first + 20 {
            let mut guard = Guard::open(rules.clone(), Saved::default(), id);
            let mut asked = ask(id, &format!("n{id}"));
            asked.job = JobId::from(format!("j{id}").as_str());
            asked.provenance = provenance;
            last = settle(&mut guard, &mut site, id * 1000, asked);
        }
        last
    };
    assert_eq!(storm(&dry, Provenance::Live, 1), ["breaker 20"]);
    assert_eq!(storm(&rehearsal, Provenance::Sim, 21), ["breaker 40"]);
    assert_eq!(
        storm(&rules("per_site=100"), Provenance::Live, 41),
        ["breaker 60"]
    );
    assert!(
        site.live
            .breaker
            .as_ref()
            .is_some_and(|breaker| breaker.places == 20)
    );
    site.live = Asked::default();
    let mut guard = Guard::open(rules("per_site=11"), Saved::default(), 0);
    let said = settle(&mut guard, &mut site, 80_000, ask(81, "n81"));
    assert_eq!(said, ["site-budget 81"], "15 were done before the breaker");
}

/// A ledger written by the previous version can be read.
#[test]
fn an_older_ledger_is_read() {
    let text = r#"{"deeds":[{"unix_ms":1,"job":"j","incident":{"run":1,"id":1},"finding":"gpu-lost","place":"n1",
        "response":"requeue","mark":"paceline:j:1:1","until_ms":900001,"dry":false}],"asks":{"n1":1},
        "breaker":{"unix_ms":1,"places":16}}"#;
    let mut site: Ledger = serde_json::from_str(text).unwrap();
    let mut guard = Guard::open(rules(""), Saved::default(), 0);
    assert_eq!(settle(&mut guard, &mut site, 1000, ask(2, "n2")), ["breaker 2"]);
    site.live.breaker = None;
    assert_eq!(
        settle(&mut guard, &mut site, 1_000_000, ask(3, "n2")),
        ["cool-down 3"]
    );
    let again: Ledger = serde_json::from_str(&serde_json::to_string(&site).unwrap()).unwrap();
    assert_eq!(again, site);
}
