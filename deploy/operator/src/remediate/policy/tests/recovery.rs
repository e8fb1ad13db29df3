use paceline_health::fault::{Order, Remedy, When};
use paceline_health::verdict::Finding;

use super::super::drain::{Round, drained, is_due};
use super::super::recovery::{checked, unrun};
use super::super::world::{BEGIN, DAY, MINUTE, SECOND, World, over, report};
use super::super::*;

#[test]
fn a_person_holds_it_or_says_that_it_was_repaired() {
    let lost = report(Finding::GpuLost, "gpu GPU-a on n1");
    let mut world = World::acting();
    world.node.hold = true;
    world.hear(lost.clone());
    world.later(10 * MINUTE, std::slice::from_ref(&lost));
    assert_eq!(world.health.rung, Rung::None);
    world.node.hold = false;
    world.later(MINUTE, &[lost]);
    assert_eq!(world.health.rung, Rung::Evict);
    let rules = world.rules.clone();
    drained(&mut world.health, Round::default(), &rules, world.now);
    world.node.repaired = Some("new board".to_owned());
    world.step();
    assert_eq!(
        (world.health.state, world.node.repaired.clone()),
        (State::Recovering, None)
    );
    world.later(6 * MINUTE, &[]);
    assert!(
        world.health.recovery.as_ref().unwrap().preflight.is_some(),
        "a word is not a check"
    );
}

#[test]
fn a_persons_word_is_heeded_once_and_stays_where_no_node_is_touched() {
    let lost = report(Finding::GpuLost, "gpu GPU-a on n1");
    let mut world = World::with("");
    world.hear(lost.clone());
    world.node.repaired = Some("new board".to_owned());
    world.step();
    assert_eq!(world.health.state, State::Healthy);
    world.later(MINUTE, &[]);
    assert!(world.node.repaired.is_some(), "nobody may take it off");
    world.hear(lost.clone());
    assert_eq!(world.health.state, State::Suspect, "that is another fault");
    world.node.repaired = Some("another".to_owned());
    world.step();
    assert_eq!(world.health.state, State::Healthy);
    // In a mode without actions, a node that is out of service stays unchanged. Its recovery continues in act mode.
    let mut world = World::acting();
    world.hear(lost.clone());
    world.later(2 * MINUTE, std::slice::from_ref(&lost));
    let acting = std::mem::replace(&mut world.rules, Rules::with("").unwrap());
    world.hear(over(lost));
    world.later(DAY, &[]);
    assert_eq!((world.health.rung, world.node.unschedulable), (Rung::Evict, true));
    assert!(
        world.health.reason.contains("in this mode"),
        "{}",
        world.health.reason
    );
    world.rules = acting;
    world.step();
    assert_eq!(world.health.state, State::Draining);
    let rules = world.rules.clone();
    drained(&mut world.health, Round::default(), &rules, world.now);
    world.step();
    assert_eq!(world.health.state, State::Recovering);
}

#[test]
fn gpus_that_are_gone_are_asked_for_until_a_person_says_otherwise() {
    let mut world = World::acting();
    world.hear(report(Finding::GpuLost, "gpu GPU-a on n1"));
    // The device plugin has restarted and sees only the remaining GPUs.
    world.node.has_slices = true;
    world.step();
    (world.node.gpus, world.node.has_slices) = (Some(7), false);
    world.step();
    assert_eq!((world.health.gpus, world.health.sliced), (8, true));
    world.node.repaired = Some("it is out, and stays out".to_owned());
    world.step();
    assert_eq!((world.health.gpus, world.health.sliced), (7, false));
}

#[test]
fn a_reboot_ends_what_asked_for_one() {
    let check = |remedy: Remedy, state: State| {
        let mut world = World::acting();
        let mut fault = report(Finding::GpuFault, "gpu GPU-a on n1");
        fault.order = Some(Order {
            remedy,
            when: When::Now,
        });
        world.hear(fault.clone());
        world.later(2 * MINUTE, &[fault]);
        let rules = world.rules.clone();
        drained(&mut world.health, Round::default(), &rules, world.now);
        world.node.boot = "boot-2".to_owned();
        world.later(MINUTE, &[]);
        assert_eq!(world.health.state, state, "{remedy:?}");
    };
    check(Remedy::RebootNode, State::Recovering);
    check(Remedy::ResetGpu, State::Recovering);
    check(Remedy::Inspect, State::Drained);
}

#[test]
fn checks_that_find_something_begin_anew() {
    let mut world = World::acting();
    let lost = report(Finding::GpuLost, "gpu GPU-a on n1");
    world.hear(lost.clone());
    world.later(2 * MINUTE, std::slice::from_ref(&lost));
    let rules = world.rules.clone();
    drained(&mut world.health, Round::default(), &rules, world.now);
    world.hear(over(lost.clone()));
    world.later(4 * MINUTE, &[]);
    world
        .node
        .conditions
        .push(("GPUProblem".to_owned(), "True".to_owned()));
    world.later(10 * MINUTE, &[]);
    assert_eq!(world.health.recovery.as_ref().unwrap().clean, 0);
    world.node.conditions.pop();
    world.later(5 * MINUTE, &[]);
    assert!(world.health.recovery.as_ref().unwrap().preflight.is_some());
    // After one failed preflight the checks are repeated. After two, an administrator must decide.
    checked(&mut world.health, false, "GPU 3: 40 % slow", &rules, world.now);
    world.step();
    assert_eq!(world.health.state, State::Recovering);
    world.later(6 * MINUTE, &[]);
    checked(&mut world.health, false, "GPU 3: 40 % slow", &rules, world.now);
    world.later(DAY, &[]);
    assert_eq!(
        (world.health.state, world.node.label.as_deref()),
        (State::Held, Some("held"))
    );
    assert!(world.node.unschedulable);
    world.node.repaired = Some("yes".to_owned());
    world.step();
    assert_eq!(world.health.state, State::Recovering);
}

/// The Job of an earlier incident is kept for a day. Its result must not count for a later incident.
#[test]
fn each_preflight_has_a_name_of_its_own() {
    let mut world = World::acting();
    let lost = report(Finding::GpuLost, "gpu GPU-a on n1");
    let rules = world.rules.clone();
    let mut names = std::collections::BTreeSet::new();
    for _ in 0..2 {
        world.hear(lost.clone());
        world.later(2 * MINUTE, std::slice::from_ref(&lost));
        drained(&mut world.health, Round::default(), &rules, world.now);
        world.hear(over(lost.clone()));
        for passed in [false, true] {
            world.later(6 * MINUTE, &[]);
            let recovery = world.health.recovery.clone().unwrap();
            let name = recovery.preflight.unwrap().name;
            assert!(name.len() <= 63, "{name}");
            assert!(names.insert(name), "{names:?}");
            checked(&mut world.health, passed, "", &rules, world.now);
            world.step();
        }
    }
}

#[test]
fn a_preflight_that_could_not_run_is_none_that_failed() {
    let mut world = World::acting();
    let lost = report(Finding::GpuLost, "gpu GPU-a on n1");
    let rules = world.rules.clone();
    world.hear(lost.clone());
    world.later(2 * MINUTE, std::slice::from_ref(&lost));
    drained(&mut world.health, Round::default(), &rules, world.now);
    world.hear(over(lost));
    for round in 0..5 {
        world.later(40 * MINUTE, &[]);
        let recovery = world.health.recovery.clone().unwrap();
        assert!(recovery.preflight.is_some(), "round {round}");
        unrun(&mut world.health, "Unschedulable: no GPU", &rules, world.now);
        world.step();
        assert!(world.node.unschedulable, "it stays where it is");
        assert_eq!(
            (world.health.state, world.health.held),
            (State::Recovering, false)
        );
        assert!(
            world.health.reason.contains("Unschedulable"),
            "{}",
            world.health.reason
        );
        world.later(20 * MINUTE, &[]);
        let recovery = world.health.recovery.clone().unwrap();
        assert_eq!(
            (recovery.preflight, recovery.failures),
            (None, 0),
            "not at once again"
        );
    }
    // The administrator who fixed the cause sets the annotation.
    world.node.repaired = Some("a quota".to_owned());
    world.later(6 * MINUTE, &[]);
    assert!(world.health.recovery.as_ref().unwrap().preflight.is_some());
    checked(&mut world.health, true, "", &rules, world.now);
    world.step();
    assert_eq!(world.health.state, State::Healthy);
}

#[test]
fn what_comes_back_again_and_again_is_left_to_people() {
    let mut world = World::acting();
    let lost = report(Finding::GpuLost, "gpu GPU-a on n1");
    let rules = world.rules.clone();
    for round in 0..4 {
        assert!(!world.health.held, "round {round}");
        world.hear(lost.clone());
        world.later(2 * MINUTE, std::slice::from_ref(&lost));
        assert!(world.node.unschedulable);
        drained(&mut world.health, Round::default(), &rules, world.now);
        world.hear(over(lost.clone()));
        world.later(6 * MINUTE, &[]);
        checked(&mut world.health, true, "", &rules, world.now);
        world.step();
    }
    assert_eq!((world.health.state, world.health.held), (State::Held, true));
    world.later(2 * DAY, &[]);
    assert!(world.node.unschedulable, "only a person lets it back");
}

#[test]
fn a_drain_that_budgets_hold_ends_at_its_deadline() {
    let mut world = World::acting();
    let lost = report(Finding::GpuLost, "gpu GPU-a on n1");
    world.hear(lost.clone());
    world.later(2 * MINUTE, std::slice::from_ref(&lost));
    let rules = world.rules.clone();
    while world.health.state == State::Draining {
        let blocked = Some("ml/budget: needs 4 healthy pods and has 4".to_owned());
        drained(&mut world.health, Round { left: 1, blocked }, &rules, world.now);
        world.later(10 * SECOND, &[]);
        assert!(world.now < BEGIN + DAY, "it never ends");
    }
    assert_eq!(world.health.state, State::DrainBlocked);
    assert!(world.health.history.back().unwrap().says.contains("ml/budget"));
    world.later(DAY / 2, std::slice::from_ref(&lost));
    world.hear(over(lost));
    world.later(2 * MINUTE, &[]);
    assert_eq!(world.health.state, State::Recovering);
    let count = world
        .words()
        .iter()
        .filter(|word| **word == "drain-blocked")
        .count();
    assert_eq!(
        (count, world.node.unschedulable),
        (1, true),
        "said once, and it stays cordoned"
    );
}

/// After the deadline, evictions continue as long as there is a reason.
#[test]
fn a_drain_whose_time_is_over_goes_on_when_it_can() {
    let mut world = World::acting();
    let lost = report(Finding::GpuLost, "gpu GPU-a on n1");
    let rules = world.rules.clone();
    let blocked = Round {
        left: 1,
        blocked: Some("a budget".to_owned()),
    };
    world.hear(lost.clone());
    world.later(2 * MINUTE, std::slice::from_ref(&lost));
    drained(&mut world.health, blocked.clone(), &rules, world.now);
    world.later(31 * MINUTE, std::slice::from_ref(&lost));
    assert_eq!(world.health.state, State::DrainBlocked);
    assert!(is_due(&world.health, world.now));
    drained(&mut world.health, blocked.clone(), &rules, world.now);
    world.later(50 * SECOND, std::slice::from_ref(&lost));
    assert!(!is_due(&world.health, world.now), "not as often as before");
    world.later(10 * SECOND, std::slice::from_ref(&lost));
    assert!(is_due(&world.health, world.now));
    assert!(
        world.health.reason.contains("1 pods are left"),
        "{}",
        world.health.reason
    );
    // A new fault restarts the deadline, and so does an administrator's request.
    let other = report(Finding::GpuLost, "gpu GPU-b on n1");
    world.hear(other.clone());
    let both = [lost, other];
    world.later(2 * MINUTE, &both);
    assert_eq!(world.health.state, State::Draining);
    world.later(30 * MINUTE, &both);
    assert_eq!(world.health.state, State::DrainBlocked);
    world.node.drain = Some("ada".to_owned());
    world.step();
    assert_eq!(
        (world.health.state, world.node.drain.clone()),
        (State::Draining, None)
    );
    drained(&mut world.health, Round::default(), &rules, world.now);
    world.step();
    assert_eq!(world.health.state, State::Drained);
    let count = |what: &str| world.words().iter().filter(|word| **word == what).count();
    assert_eq!((count("evict"), count("drain-blocked")), (3, 2));
}

/// The node's kubelet does not run, so evicted pods never end.
#[test]
fn a_drain_of_a_dead_node_ends_too() {
    let mut world = World::acting();
    let lost = report(Finding::GpuLost, "gpu GPU-a on n1");
    let rules = world.rules.clone();
    world.hear(lost.clone());
    world.later(2 * MINUTE, std::slice::from_ref(&lost));
    world.node.conditions = vec![("Ready".to_owned(), "Unknown".to_owned())];
    for _ in 0..30 {
        let round = Round {
            left: 2,
            blocked: None,
        };
        drained(&mut world.health, round, &rules, world.now);
        world.later(MINUTE, std::slice::from_ref(&lost));
    }
    assert_eq!(world.health.state, State::DrainBlocked);
    let says = &world.health.history.back().unwrap().says;
    assert!(
        says.contains("2 pods are left") && says.contains("out-of-service"),
        "{says}"
    );
    // The node does not return to service while it is not Ready.
    world.hear(over(lost));
    world.later(DAY, &[]);
    assert!(world.node.unschedulable);
    assert_eq!(world.health.recovery.as_ref().unwrap().clean, 0);
}

/// A hold and an open breaker do not shorten the time that a drain has.
#[test]
fn a_drain_has_its_time_whole() {
    let lost = report(Finding::GpuLost, "gpu GPU-a on n1");
    let check = |stop: &dyn Fn(&mut World, bool)| {
        let mut world = World::acting();
        let deadline = world.rules.drain.deadline_s * SECOND;
        world.hear(lost.clone());
        world.later(MINUTE, std::slice::from_ref(&lost));
        assert_eq!(world.health.state, State::Draining);
        let until = world.now + deadline;
        world.later(MINUTE, std::slice::from_ref(&lost));
        stop(&mut world, true);
        world.step();
        let stopped = world.now;
        world.later(2 * deadline, std::slice::from_ref(&lost));
        // The next leader reads the state from the cluster.
        let kept = serde_json::to_value(&world.health).unwrap();
        world.health = serde_json::from_value(kept).unwrap();
        stop(&mut world, false);
        world.step();
        assert_eq!(world.health.state, State::Draining);
        let until = until + (world.now - stopped);
        world.later(until - world.now - SECOND, std::slice::from_ref(&lost));
        assert_eq!(world.health.state, State::Draining);
        world.later(11 * SECOND, std::slice::from_ref(&lost));
        assert_eq!(world.health.state, State::DrainBlocked);
    };
    check(&|world, is_on| world.node.hold = is_on);
    let breaker = Breaker {
        since: BEGIN,
        nodes: 50,
        of: 100,
    };
    check(&|world, is_on| world.breaker = is_on.then(|| breaker.clone()));
}
