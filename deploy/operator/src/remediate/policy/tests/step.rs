use paceline_health::Provenance;
use paceline_health::fault::{Order, Remedy, When};
use paceline_health::verdict::{Finding, Severity};
use serde_json::json;

use super::super::drain::{Round, drained};
use super::super::recovery::checked;
use super::super::world::{DAY, MINUTE, SECOND, World, node, over, report};
use super::super::*;

#[test]
fn the_table_is_one_and_is_checked() {
    let rules = Rules::with("").unwrap();
    assert_eq!(rules.mode, Mode::Observe, "dry run is the default");
    assert_eq!(rules.finding(Finding::GpuLost).unwrap().rung, Rung::Evict);
    let rules = Rules::with("[finding.gpu-lost]\nmode = \"shadow\"\n[guard]\nmost_out = 1").unwrap();
    assert_eq!(rules.finding(Finding::GpuLost).unwrap().mode, Mode::Shadow);
    assert_eq!((rules.guard.most_out, rules.guard.debounce_s), (1, 60));
    let error = |text: &str| Rules::with(text).unwrap_err().to_string();
    assert!(error("[guard]\nmost = 1").contains("unknown field `most`"));
    assert!(error("[finding.gpu-los]\nrung = \"evict\"").contains("gpu-los"));
    assert!(error("mode = \"do\"").contains("observe"));
    assert_eq!(
        error("[guard]\ncluster_percent = 0"),
        "guard.cluster_percent must be 1 to 100"
    );
    assert_eq!(
        error("[recovery]\nchecks = 0"),
        "recovery.checks must be at least 1"
    );
    for (section, name) in [
        ("guard", "debounce_s"),
        ("guard", "breaker_window_s"),
        ("drain", "deadline_s"),
        ("recovery", "escalate_window_s"),
        ("finding.gpu-lost", "debounce_s"),
    ] {
        assert_eq!(
            error(&format!("[{section}]\n{name} = 9223372036854775807")),
            format!("{section}.{name} must be at most 31536000 (a year)")
        );
    }
}

#[test]
fn from_a_verdict_to_an_empty_node_and_back() {
    let mut world = World::acting();
    let lost = report(Finding::GpuLost, "gpu GPU-a on n1");
    world.hear(lost.clone());
    assert_eq!(world.health.state, State::Suspect);
    // No action is taken before the fault has held long enough.
    world.later(59 * SECOND, std::slice::from_ref(&lost));
    assert_eq!((world.health.rung, world.node.unschedulable), (Rung::None, false));
    world.later(SECOND, std::slice::from_ref(&lost));
    assert_eq!(world.health.state, State::Draining);
    assert!(world.node.unschedulable && world.node.mark.is_some());
    assert_eq!(
        world.node.taints,
        [json!({ "key": marks::TAINT, "value": "gpu-lost", "effect": "NoSchedule" })]
    );
    assert_eq!(world.node.label.as_deref(), Some("unhealthy"));
    let condition = Marks::of(&world.health)
        .status_patch(&world.node, world.now)
        .unwrap();
    assert_eq!(condition["status"]["conditions"][0]["reason"], "GpuLost");
    let rules = world.rules.clone();
    let blocked = Some("ml/trainer needs 4".to_owned());
    drained(&mut world.health, Round { left: 2, blocked }, &rules, world.now);
    world.step();
    assert!(
        world.health.reason.contains("ml/trainer needs 4"),
        "{}",
        world.health.reason
    );
    drained(&mut world.health, Round::default(), &rules, world.now);
    world.step();
    assert_eq!(world.health.state, State::Drained);
    // After the fault clears, five checks without problems and a preflight are required.
    world.hear(over(lost));
    assert_eq!(world.health.state, State::Recovering);
    world.later(5 * MINUTE - SECOND, &[]);
    assert!(world.health.recovery.as_ref().unwrap().preflight.is_none());
    world.later(SECOND, &[]);
    assert!(world.health.recovery.as_ref().unwrap().preflight.is_some());
    // Without a passed preflight, the node does not return, however long it takes.
    world.later(DAY, &[]);
    assert!(world.node.unschedulable);
    checked(&mut world.health, true, "8 GPUs", &rules, world.now);
    world.step();
    assert_eq!(world.health.state, State::Healthy);
    assert!(!world.node.unschedulable && !world.node.bears_ours() && world.node.taints.is_empty());
    let course = [
        "raised",
        "evict",
        "eviction-refused",
        "drained",
        "resolved",
        "preflight",
        "recovered",
    ];
    assert_eq!(world.words(), course);
}

#[test]
fn what_never_acts() {
    // Each of these changes to the report is applied for half an hour, with repeated reports.
    let check = |policy: &str, change: &dyn Fn(&mut Report), rung: Rung| {
        let mut world = World::with(policy);
        let mut said = report(Finding::GpuLost, "gpu GPU-a on n1");
        change(&mut said);
        world.hear(said.clone());
        world.later(30 * MINUTE, &[said]);
        assert_eq!(world.health.rung, rung, "{policy}");
        assert_eq!(world.node.unschedulable, rung >= Rung::Cordon);
        world
    };
    let act = "mode = \"act\"";
    check(act, &|_| {}, Rung::Evict);
    check("", &|_| {}, Rung::None);
    check(act, &|said| said.provenance = Provenance::Sim, Rung::None);
    check(act, &|said| said.provenance = Provenance::Replay, Rung::None);
    check(act, &|said| said.provenance = Provenance::Injected, Rung::None);
    check(act, &|said| said.observe_only = true, Rung::None);
    check(act, &|said| said.severity = Severity::Warning, Rung::None);
    check(act, &|said| said.finding = Finding::DataLoading, Rung::None);
    check(act, &|said| said.finding = Finding::RankSilent, Rung::Condition);
    // A remedy that can wait for the end of the job evicts no pods.
    let later = Order {
        remedy: Remedy::ResetGpu,
        when: When::JobEnd,
    };
    check(act, &|said| said.order = Some(later), Rung::Cordon);
    // Shadow mode records once what it would do, and changes nothing.
    let world = check("mode = \"shadow\"", &|_| {}, Rung::None);
    assert_eq!(
        (world.health.shadow, world.words()),
        (Rung::Evict, vec!["raised", "would"])
    );
    assert!(!world.node.bears_ours());
    assert!(world.health.reason.contains("would be taken to evict"));
    let world = check(
        "mode = \"act\"\n[finding.gpu-lost]\nmode = \"observe\"",
        &|_| {},
        Rung::None,
    );
    assert_eq!(world.words(), ["raised"]);
}

#[test]
fn what_clears_in_time_or_falls_silent_leads_to_nothing() {
    let mut world = World::acting();
    let lost = report(Finding::GpuLost, "gpu GPU-a on n1");
    for _ in 0..20 {
        world.hear(lost.clone());
        world.later(50 * SECOND, &[]);
        world.hear(over(lost.clone()));
        world.later(10 * SECOND, &[]);
    }
    assert_eq!((world.health.rung, world.health.incidents.len()), (Rung::None, 1));
    assert_eq!(world.health.incidents.values().next().unwrap().times, 20);
    // There is one more report, and then none. The incident is stale before the longer debounce time ends.
    let mut world = World::with("mode = \"act\"\n[guard]\ndebounce_s = 400");
    world.hear(lost);
    world.later(DAY - MINUTE, &[]);
    assert_eq!(
        (world.health.rung, world.health.state),
        (Rung::None, State::Suspect)
    );
    world.later(2 * MINUTE, &[]);
    assert_eq!(world.health.state, State::Healthy, "no news for a day");
}

#[test]
fn each_gpu_clears_by_itself() {
    let mut world = World::acting();
    let (one, two) = (
        report(Finding::GpuLost, "gpu GPU-a on n1"),
        report(Finding::GpuLost, "gpu GPU-b on n1"),
    );
    world.hear(one.clone());
    world.hear(two.clone());
    world.later(2 * MINUTE, &[one.clone(), two.clone()]);
    let rules = world.rules.clone();
    drained(&mut world.health, Round::default(), &rules, world.now);
    world.hear(over(one));
    world.later(DAY / 2, &[]);
    assert_eq!(
        (world.health.state, world.health.recovery.clone()),
        (State::Drained, None)
    );
    world.hear(over(two));
    assert_eq!(world.health.state, State::Recovering);
}

#[test]
fn two_thousand_times_the_same_is_one_incident_with_a_count() {
    let mut world = World::acting();
    for _ in 0..2000 {
        world
            .health
            .hear(report(Finding::GpuLost, "gpu GPU-a on n1"), world.now);
    }
    world.step();
    let incident = world.health.incidents.values().next().unwrap();
    assert_eq!((incident.said, incident.times, world.words().len()), (2000, 1, 1));
    // The number of incidents is bounded, however many kinds are reported.
    for number in 0..500 {
        world
            .health
            .hear(report(Finding::GpuLost, &format!("gpu GPU-{number}")), world.now);
    }
    assert_eq!(
        (world.health.incidents.len(), world.health.history.len()),
        (12, 13)
    );
    assert_eq!(
        (world.health.unkept, world.words().last()),
        (489, Some(&"unkept"))
    );
}

#[test]
fn what_a_node_is_out_for_is_not_pushed_out() {
    let mut world = World::acting();
    let lost = report(Finding::GpuLost, "gpu GPU-a on n1");
    let flood = |job: usize, number: usize, severity: Severity| Report {
        key: format!("evil/{job}/{number}"),
        job: format!("evil/{job}"),
        severity,
        ..report(Finding::GpuUnreadable, &format!("gpu {number}"))
    };
    // The fault is reported while the limit is already reached, and more reports follow before the fault is old enough
    // to act on.
    for job in 0..5 {
        for number in 0..40 {
            world
                .health
                .hear(flood(job, number, Severity::Critical), world.now);
        }
    }
    world.hear(lost.clone());
    for number in 0..40 {
        world.health.hear(flood(0, number, Severity::Critical), world.now);
    }
    world.later(2 * MINUTE, std::slice::from_ref(&lost));
    assert_eq!(world.health.state, State::Draining);
    // Many jobs each raise and clear an equally severe incident.
    for number in 0..200 {
        world.now += SECOND;
        world.hear(flood(number, 0, Severity::Critical));
        world.hear(over(flood(number, 0, Severity::Critical)));
    }
    assert!(
        world
            .health
            .open()
            .any(|incident| incident.finding == Finding::GpuLost)
    );
    assert_eq!(world.health.history.len(), 20);
    assert!(
        world.words().contains(&"evict"),
        "why it is out: {:?}",
        world.words()
    );
    let rules = world.rules.clone();
    drained(&mut world.health, Round::default(), &rules, world.now);
    world.later(MINUTE, &[lost]);
    assert_eq!(world.health.state, State::Drained);
}

#[test]
fn what_was_heard_before_a_restart_does_not_act() {
    let mut world = World::acting();
    world.hear(report(Finding::GpuLost, "gpu GPU-a on n1"));
    // Another leader takes over, with the state in the cluster, before the incident was old enough to act on.
    let kept = serde_json::to_value(&world.health).unwrap();
    world.health = serde_json::from_value(kept).unwrap();
    world.now += 10 * SECOND;
    world.started = world.now;
    world.later(10 * MINUTE, &[]);
    assert_eq!(world.health.rung, Rung::None);
    world.hear(report(Finding::GpuLost, "gpu GPU-a on n1"));
    assert_eq!(
        world.health.rung,
        Rung::Evict,
        "it is said again, and has held for long"
    );
    // A decision that was made stays in effect after a further restart.
    world.step();
    let until = world.health.drain.clone().unwrap().until;
    world.started = world.now + 1;
    world.later(MINUTE, &[]);
    assert_eq!(world.health.state, State::Draining);
    assert_eq!(
        world.health.drain.clone().unwrap().until,
        until,
        "with the deadline it had"
    );
}

#[test]
fn what_another_cordoned_stays_as_it_is() {
    let lost = report(Finding::GpuLost, "gpu GPU-a on n1");
    let mut world = World::acting();
    world.node.unschedulable = true;
    let foreign = json!({ "key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule" });
    world.node.taints = vec![foreign.clone()];
    world.hear(lost.clone());
    world.later(5 * MINUTE, std::slice::from_ref(&lost));
    assert_eq!(
        (
            world.health.rung,
            world.node.mark.clone(),
            world.node.taints.len()
        ),
        (Rung::Taint, None, 2)
    );
    assert!(world.health.reason.contains("owned"), "{}", world.health.reason);
    world.hear(over(lost.clone()));
    world.later(10 * MINUTE, &[]);
    let rules = world.rules.clone();
    checked(&mut world.health, true, "", &rules, world.now);
    world.step();
    assert_eq!(
        (world.health.state, world.node.unschedulable),
        (State::Healthy, true),
        "still cordoned"
    );
    assert_eq!(world.node.taints, [foreign]);
    // If another party removes the annotation, the cordon counts as theirs.
    let mut world = World::acting();
    world.hear(lost.clone());
    world.later(2 * MINUTE, std::slice::from_ref(&lost));
    world.node.mark = None;
    world.step();
    assert!(world.words().contains(&"taken-over"));
    world.hear(over(lost));
    world.later(10 * MINUTE, &[]);
    checked(&mut world.health, true, "", &rules, world.now);
    world.step();
    assert!(world.node.unschedulable);
}

#[test]
fn what_a_person_uncordons_stays_in_service() {
    let lost = report(Finding::GpuLost, "gpu GPU-a on n1");
    let mut world = World::acting();
    world.hear(lost.clone());
    world.later(2 * MINUTE, std::slice::from_ref(&lost));
    world.node.unschedulable = false;
    world.later(DAY, std::slice::from_ref(&lost));
    assert_eq!(
        (world.health.state, world.node.unschedulable),
        (State::Healthy, false)
    );
    assert!(!world.node.bears_ours());
    // This holds until the finding clears and is raised again.
    world.hear(over(lost.clone()));
    world.hear(lost.clone());
    world.later(2 * MINUTE, &[lost]);
    assert!(world.node.unschedulable);
}

#[test]
fn a_node_of_the_same_name_is_another() {
    let lost = report(Finding::GpuLost, "gpu GPU-a on n1");
    let mut world = World::acting();
    world.hear(lost.clone());
    world.later(2 * MINUTE, &[lost]);
    world.node = NodeView {
        uid: "uid-2".to_owned(),
        ..node("n1")
    };
    world.step();
    assert_eq!(
        (world.health.state, world.words()),
        (State::Healthy, vec!["replaced"])
    );
    assert!(!world.node.unschedulable);
}
