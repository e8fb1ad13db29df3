use proptest::prelude::*;

use super::*;
use crate::id::Rank;

const DAY_MS: u64 = 86_400_000;

pub(super) fn rules(words: &str) -> Rules {
    let mut rules = Rules::default();
    rules.act = true;
    rules.on_fault("requeue").unwrap();
    for word in words.split_whitespace() {
        rules.limit(word).unwrap();
    }
    rules
}

pub(super) fn ask(id: u64, node: &str) -> Ask {
    Ask {
        incident: Incident { run: 1, id },
        job: "j".into(),
        account: Arc::from(""),
        finding: Finding::GpuLost,
        subject: Subject::Rank {
            rank: Rank(3),
            node: node.into(),
            gpu_uuid: None,
        },
        severity: Severity::Critical,
        provenance: Provenance::Live,
        observe_only: false,
        response: Response::Requeue,
        checkpoint: true,
    }
}

fn told(guard: &mut Guard) -> Vec<String> {
    std::iter::from_fn(|| guard.poll())
        .map(|decision| match decision.outcome {
            Outcome::Act => format!("act {}", decision.ask.incident.id),
            Outcome::Refuse(reason) => format!("{} {}", reason.name(), decision.ask.incident.id),
        })
        .collect()
}

/// Makes a request at `now`, lets the hold time pass, and returns the decisions.
pub(super) fn settle(guard: &mut Guard, site: &mut Ledger, now: u64, asked: Ask) -> Vec<String> {
    guard.ask(now, asked, site);
    guard.advance(now + 10_000, site);
    told(guard)
}

#[test]
fn a_rank_that_died_may_come_back_by_its_launcher() {
    let mut guard = Guard::open(rules("hold_s=10"), Saved::default(), 0);
    let site = &mut Ledger::default();
    let finding = Finding::RankDied;
    let died = |id| Ask {
        finding,
        ..ask(id, "n1")
    };
    assert_eq!(settle(&mut guard, site, 0, died(1)), [""; 0]);
    assert_eq!(guard.wake_at(), Some(120_000));
    guard.over(60_000, died(1).incident);
    assert_eq!(told(&mut guard), ["cleared 1"]);
    guard.ask(200_000, died(2), site);
    guard.advance(319_999, site);
    assert_eq!(told(&mut guard), [""; 0]);
    guard.advance(320_000, site);
    assert_eq!(told(&mut guard), ["act 2"]);
}

#[test]
fn what_is_asked_for() {
    let mut rules = Rules::default();
    assert!(!rules.asks_for_anything());
    assert_eq!(rules.wanted(Finding::GpuLost).response, Response::Log);
    rules.on_fault("signal").unwrap();
    assert_eq!(rules.wanted(Finding::GpuLost).response, Response::Signal);
    assert_eq!(rules.wanted(Finding::SlowLink).response, Response::Log);
    rules
        .on_fault("requeue, straggler=checkpoint-and-stop,gpu-fault=log")
        .unwrap();
    let wanted = |finding| rules.wanted(finding).response;
    assert_eq!(wanted(Finding::GpuLost), Response::Requeue);
    assert_eq!(wanted(Finding::Straggler), Response::CheckpointAndStop);
    assert_eq!(wanted(Finding::GpuFault), Response::Log);
    assert_eq!(wanted(Finding::StragglerNode), Response::Signal);
    assert!(!rules.wanted(Finding::EccUncorrectable).checkpoint);
    // As an upper limit, `leave-node` allows a signal but not the end of the job.
    let mut rules = Rules::default();
    rules.on_fault("leave-node").unwrap();
    assert_eq!(rules.wanted(Finding::GpuLost).response, Response::LeaveNode);
    assert_eq!(rules.wanted(Finding::Straggler).response, Response::Signal);
    let error = |words: &str| rules.clone().on_fault(words).unwrap_err().to_string();
    assert_eq!(
        error("kill"),
        "`kill` is not one of log, signal, leave-node, checkpoint-and-stop, requeue"
    );
    assert_eq!(error("stragler=log"), "`stragler` is not a finding");
    let error = |words: &str| rules.clone().limit(words).unwrap_err().to_string();
    assert_eq!(error("hold_s=x"), "hold_s = x: must be a whole number");
    assert_eq!(
        error("severity=bad"),
        "severity = bad: must be info, warning or critical"
    );
    assert_eq!(error("hold_s=-1"), "hold_s = -1: must be a whole number");
    assert!(error("hold=1").contains("hold_s"));
}

#[test]
fn one_remedy_and_then_a_pause() {
    let (mut guard, mut site) = (Guard::open(rules(""), Saved::default(), 0), Ledger::default());
    guard.ask(0, ask(1, "n1"), &mut site);
    guard.advance(9_999, &mut site);
    assert_eq!((told(&mut guard), guard.wake_at()), (vec![], Some(10_000)));
    guard.advance(10_000, &mut site);
    assert_eq!(
        (told(&mut guard), guard.wake_at()),
        (vec!["act 1".to_owned()], None)
    );
    // The same incident changes many times.
    assert_eq!(
        settle(&mut guard, &mut site, 20_000, ask(1, "n1")),
        Vec::<String>::new()
    );
    assert_eq!(
        settle(&mut guard, &mut site, 30_000, ask(2, "n2")),
        ["cool-down 2"]
    );
    let later = 30_000 + 1_800_000;
    // Another incident at the same place is allowed. Then the limit of the place is reached, and after that the job's
    // budget.
    assert_eq!(settle(&mut guard, &mut site, later, ask(3, "n1")), ["act 3"]);
    assert_eq!(
        settle(&mut guard, &mut site, 2 * later, ask(4, "n1")),
        ["repeated 4"]
    );
    assert_eq!(settle(&mut guard, &mut site, 3 * later, ask(5, "n2")), ["act 5"]);
    assert_eq!(
        settle(&mut guard, &mut site, 4 * later, ask(6, "n3")),
        ["job-budget 6"]
    );
    // A day later the budget is available again.
    let tomorrow = 4 * later + DAY_MS;
    assert_eq!(settle(&mut guard, &mut site, tomorrow, ask(7, "n3")), ["act 7"]);
}

#[test]
fn what_is_refused_at_once() {
    let mut site = Ledger::default();
    let mut guard = Guard::open(rules(""), Saved::default(), 0);
    let mut check = |change: &dyn Fn(&mut Ask), reason: &str, id| {
        let mut asked = ask(id, "n1");
        change(&mut asked);
        guard.ask(0, asked, &mut site);
        assert_eq!(told(&mut guard), [format!("{reason} {id}")]);
    };
    check(&|a| a.provenance = Provenance::Sim, "not-live", 1);
    check(&|a| a.provenance = Provenance::Replay, "not-live", 2);
    check(&|a| a.provenance = Provenance::Injected, "not-live", 3);
    check(&|a| a.observe_only = true, "observe-only", 4);
    check(&|a| a.severity = Severity::Warning, "severity", 5);
    let mut away = rules("hold_s=0");
    away.requeue_needs_node = true;
    let mut guard = Guard::open(away, Saved::default(), 0);
    let mut of_job = ask(6, "n1");
    of_job.subject = Subject::Job { job: "j".into() };
    guard.ask(0, of_job, &mut site);
    assert_eq!(told(&mut guard), ["no-node 6"]);
    assert_eq!((site, guard.wake_at()), (Ledger::default(), None), "nobody asked");
    // In a rehearsal, such evidence may cause actions.
    let mut rehearsal = rules("hold_s=0");
    rehearsal.rehearsal = vec![Provenance::Sim];
    let mut guard = Guard::open(rehearsal, Saved::default(), 0);
    let mut asked = ask(6, "n1");
    asked.provenance = Provenance::Sim;
    assert_eq!(settle(&mut guard, &mut Ledger::default(), 0, asked), ["act 6"]);
}

#[test]
fn a_dry_run_decides_all_and_does_nothing() {
    let mut dry = rules("");
    dry.act = false;
    let (mut guard, mut site) = (Guard::open(dry, Saved::default(), 0), Ledger::default());
    assert_eq!(settle(&mut guard, &mut site, 0, ask(1, "n1")), ["dry-run 1"]);
    assert_eq!(
        settle(&mut guard, &mut site, 20_000, ask(2, "n2")),
        ["cool-down 2"]
    );
    // Rehearsals do not limit real actions.
    let mut guard = Guard::open(rules(""), guard.save(), 40_000);
    assert_eq!(settle(&mut guard, &mut site, 40_000, ask(3, "n3")), ["act 3"]);
}

#[test]
fn what_clears_or_waits_too_long_is_left() {
    let (mut guard, mut site) = (Guard::open(rules(""), Saved::default(), 0), Ledger::default());
    guard.ask(0, ask(1, "n1"), &mut site);
    guard.over(5_000, Incident { run: 1, id: 1 });
    guard.ask(6_000, ask(2, "n1"), &mut site);
    guard.advance(6_000 + 130_001, &mut site);
    guard.ask(200_000, ask(3, "n1"), &mut site);
    guard.advance_blind(200_000, "locked");
    assert_eq!(told(&mut guard), ["cleared 1", "expired 2", "no-ledger 3"]);
}

#[test]
fn a_storm_trips_the_breaker_and_an_operator_closes_it() {
    let (mut guard, mut site) = (Guard::open(rules(""), Saved::default(), 0), Ledger::default());
    for id in 1..=500 {
        guard.ask(id, ask(id, &format!("n{id}")), &mut site);
    }
    guard.advance(60_000, &mut site);
    let said = told(&mut guard);
    assert_eq!(said.len(), 500);
    assert!(said.iter().all(|line| line.starts_with("breaker ")), "{said:?}");
    // The breaker does not reset by itself.
    let mut saved = guard.save();
    let mut guard = Guard::open(rules(""), saved.clone(), 2 * DAY_MS);
    assert_eq!(
        settle(&mut guard, &mut site, 2 * DAY_MS, ask(501, "n1")),
        ["breaker 501"]
    );
    saved.ledger.live.breaker = None;
    site.live.breaker = None;
    let mut guard = Guard::open(rules(""), saved, 3 * DAY_MS);
    assert_eq!(
        settle(&mut guard, &mut site, 3 * DAY_MS, ask(502, "n1")),
        ["act 502"]
    );
}

/// Five hundred verdicts about one node mean one faulty node, so the breaker stays closed. The budget still limits
/// actions.
#[test]
fn a_storm_of_one_place_is_one_remedy() {
    let (mut guard, mut site) = (Guard::open(rules(""), Saved::default(), 0), Ledger::default());
    for id in 1..=500 {
        guard.ask(id, ask(id, "n1"), &mut site);
    }
    guard.advance(20_000, &mut site);
    let said = told(&mut guard);
    assert_eq!(said.iter().filter(|line| line.starts_with("act ")).count(), 1);
    assert_eq!(
        said.iter().filter(|line| line.starts_with("cool-down ")).count(),
        499
    );
}

#[test]
fn jobs_of_a_site_share_a_budget_and_a_breaker() {
    let mut site = Ledger::default();
    let mut act = 0;
    for job in 0..30_u64 {
        let mut guard = Guard::open(rules(""), Saved::default(), 0);
        let mut asked = ask(1, "n1");
        asked.job = JobId::from(format!("j{job}").as_str());
        let now = job * 400_000;
        let said = settle(&mut guard, &mut site, now, asked);
        act += u32::from(said == ["act 1"]);
        assert!(
            act < 11 && (said == ["act 1"] || said == ["site-budget 1"]),
            "{said:?}"
        );
    }
    assert_eq!(act, 10);
    // Sixteen places make requests within five minutes, each from a different job.
    let mut site = Ledger::default();
    let mut last = Vec::new();
    for job in 0..16_u64 {
        let mut guard = Guard::open(rules("per_site=100"), Saved::default(), 0);
        let mut asked = ask(1, &format!("n{job}"));
        asked.job = JobId::from(format!("j{job}").as_str());
        last = settle(&mut guard, &mut site, job * 1000, asked);
    }
    assert_eq!(last, ["breaker 1"]);
}

/// If a job has two aggregators, as when a node is cut off, only one of them acts.
#[test]
fn who_came_first_owns_the_job() {
    let mut site = Ledger::default();
    let mut first = Guard::open(rules("cool_down_s=0"), Saved::default(), 0);
    let mut second = Guard::open(rules("cool_down_s=0"), Saved::default(), 0);
    assert_eq!(settle(&mut first, &mut site, 0, ask(1, "n1")), ["act 1"]);
    let mut asked = ask(1, "n1");
    asked.incident.run = 2;
    assert_eq!(settle(&mut second, &mut site, 1_000, asked.clone()), ["owned 1"]);
    asked.incident.id = 2;
    // The mark expires.
    assert_eq!(settle(&mut second, &mut site, 1_000_000, asked), ["act 2"]);
}

#[test]
fn what_is_in_hand_at_a_restart_is_left() {
    let mut site = Ledger::default();
    let mut guard = Guard::open(rules(""), Saved::default(), 0);
    guard.ask(0, ask(1, "n1"), &mut site);
    let saved = serde_json::to_string(&guard.save()).unwrap();
    let mut guard = Guard::open(rules(""), serde_json::from_str(&saved).unwrap(), 5_000);
    guard.advance(60_000, &mut site);
    assert_eq!(told(&mut guard), ["restarted 1"]);
    assert_eq!(
        settle(&mut guard, &mut site, 60_000, ask(1, "n1")),
        Vec::<String>::new()
    );
    assert_eq!(settle(&mut guard, &mut site, 70_000, ask(2, "n1")), ["act 2"]);
    let mut guard = Guard::open(rules(""), guard.save(), 80_000);
    assert_eq!(
        settle(&mut guard, &mut site, 80_000, ask(2, "n1")),
        Vec::<String>::new(),
        "never twice"
    );
}

proptest! {
    /// Tests arbitrary requests in any order, with restarts and clock jumps. Budgets hold in every window, no incident
    /// gets two actions, only live evidence causes actions, and an open breaker refuses everything.
    #[test]
    fn the_limits_hold(
        steps in proptest::collection::vec((0u64..40, 0u8..8, 0u8..4, -2_000_000i64..30_000_000, any::<bool>()), 1..120)
    ) {
        let words = "breaker_job_places=6 breaker_site_places=7";
        let (mut guard, mut site) = (Guard::open(rules(words), Saved::default(), 0), Ledger::default());
        let mut now = 10 * DAY_MS;
        let mut acted: Vec<(u64, Ask)> = Vec::new();
        for (id, node, kind, jump, again) in steps {
            now = now.saturating_add_signed(jump);
            if again {
                guard = Guard::open(rules(words), guard.save(), now);
            }
            let mut asked = ask(id, &format!("n{node}"));
            if kind == 0 {
                asked.provenance = Provenance::Sim;
            }
            guard.ask(now, asked, &mut site);
            guard.advance(now + u64::from(kind) * 5_000, &mut site);
            let open = site.live.breaker.is_some() || guard.save().ledger.live.breaker.is_some();
            while let Some(decision) = guard.poll() {
                if decision.outcome == Outcome::Act {
                    prop_assert!(!open);
                    acted.push((decision.unix_ms, decision.ask));
                }
            }
        }
        for (i, (at, ask)) in acted.iter().enumerate() {
            prop_assert_eq!(ask.provenance, Provenance::Live);
            let twice = acted[..i].iter().any(|(_, other)| other.incident == ask.incident);
            prop_assert!(!twice);
            let recent = acted[..=i].iter().filter(|(other, _)| at.saturating_sub(*other) < DAY_MS);
            prop_assert!(recent.count() <= 3);
        }
    }
}
