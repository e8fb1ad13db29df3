//! Tests who owns the cordon in the time between a decision and its patch.

use paceline_health::verdict::Finding;

use super::super::world::{MINUTE, SECOND, World, over, report};
use super::super::*;

/// Returns a node for which eviction was decided, but which was not patched. This happens if the patch met a conflict
/// or the leader was killed.
fn decided() -> World {
    let mut world = World::acting();
    let lost = report(Finding::GpuLost, "gpu GPU-a on n1");
    let before = world.node.clone();
    world.hear(lost.clone());
    world.later(MINUTE, &[lost]);
    assert_eq!((world.health.rung, world.health.cordoned), (Rung::Evict, false));
    world.node = before;
    world
}

#[test]
fn whoever_cordons_between_decided_and_done_has_it() {
    let mut world = decided();
    world.node.unschedulable = true;
    world.step();
    assert_eq!(
        (
            world.health.rung,
            world.health.drain.clone(),
            world.node.mark.clone()
        ),
        (Rung::Taint, None, None)
    );
    assert!(world.health.reason.contains("owned"), "{}", world.health.reason);
    assert_eq!(world.words(), ["raised", "evict", "taken-over"]);
    // The other party uncordons the node, and the fault still holds. The operator now sets its own cordon.
    world.node.unschedulable = false;
    let lost = report(Finding::GpuLost, "gpu GPU-a on n1");
    world.later(10 * SECOND, std::slice::from_ref(&lost));
    assert!(world.node.unschedulable && world.node.mark == world.health.mark);
    assert!(world.health.drain.is_some());
}

#[test]
fn a_cordon_that_did_not_come_onto_the_node_is_tried_again() {
    let mut world = decided();
    world.step();
    assert!(world.node.unschedulable && world.node.mark.is_some());
    assert_eq!(world.words(), ["raised", "evict"]);
}

#[test]
fn a_mark_of_another_time_is_no_cordon() {
    let mut world = decided();
    world.node.mark = Some("paceline-remediator/0".to_owned());
    world.step();
    assert!(world.node.unschedulable && world.node.mark == world.health.mark);
}

/// Another party's uncordon is respected whether or not the operator's cordon was recorded before.
#[test]
fn who_holds_it_and_then_uncordons_it_is_heeded() {
    for is_seen in [true, false] {
        let lost = report(Finding::GpuLost, "gpu GPU-a on n1");
        let mut world = World::acting();
        world.hear(lost.clone());
        world.later(MINUTE, &[lost]);
        assert!(world.node.unschedulable && !world.health.cordoned);
        world.node.hold = true;
        if is_seen {
            world.step();
            assert!(world.health.cordoned);
            world.node.mark = None;
        }
        world.node.unschedulable = false;
        world.step();
        world.node.hold = false;
        world.step();
        assert!(!world.node.unschedulable && !world.node.bears_ours());
        assert_eq!(
            (world.health.rung, world.words().last()),
            (Rung::None, Some(&"overridden"))
        );
    }
}

/// Returns a node whose drain was decided 90 minutes ago, while the permission to patch nodes is missing.
fn without_a_cordon() -> (World, Report) {
    let lost = report(Finding::GpuLost, "gpu GPU-a on n1");
    let mut world = World::acting();
    world.may_patch = false;
    world.hear(lost.clone());
    world.later(90 * MINUTE, std::slice::from_ref(&lost));
    assert_eq!(world.health.state, State::Draining);
    assert!(!world.node.unschedulable);
    (world, lost)
}

#[test]
fn what_is_over_before_the_cordon_is_not_drained_later() {
    let (mut world, lost) = without_a_cordon();
    world.hear(over(lost));
    world.later(MINUTE, &[]);
    assert_eq!(
        (world.health.rung, world.health.drain.is_some()),
        (Rung::None, false)
    );
    world.may_patch = true;
    world.later(10 * MINUTE, &[]);
    assert!(!world.node.unschedulable);
}

#[test]
fn what_hinders_us_is_told() {
    let (mut world, _) = without_a_cordon();
    world.health.hindered = Some("the node cannot be marked: 403".to_owned());
    world.step();
    let reason = &world.health.reason;
    assert!(reason.ends_with("; the node cannot be marked: 403"), "{reason}");
}

/// The condition names the current fault. Its transition time does not change with the fault.
#[test]
fn the_condition_follows() {
    let mut world = World::acting();
    let [one, two] = ["GPU-a", "GPU-b"].map(|gpu| report(Finding::GpuLost, &format!("gpu {gpu} on n1")));
    world.hear(one.clone());
    world.hear(two.clone());
    world.later(2 * MINUTE, &[one, two.clone()]);
    let patch = |world: &World| Marks::of(&world.health).status_patch(&world.node, world.now);
    let first = patch(&world).unwrap()["status"]["conditions"][0].clone();
    assert!(first["message"].as_str().unwrap().contains("GPU-b"), "{first}");
    assert!(first["lastTransitionTime"].is_string());
    let text = |key: &str| first[key].as_str().unwrap().to_owned();
    world
        .node
        .conditions
        .push((marks::CONDITION.to_owned(), "True".to_owned()));
    world.node.fault = Some((text("reason"), text("message")));
    assert_eq!(patch(&world), None);
    world.hear(over(two));
    let second = patch(&world).unwrap()["status"]["conditions"][0].clone();
    assert!(second["message"].as_str().unwrap().contains("GPU-a"), "{second}");
    assert!(second["lastTransitionTime"].is_null(), "{second}");
}

#[test]
fn a_drain_has_its_time_from_the_cordon_on() {
    let (mut world, lost) = without_a_cordon();
    world.may_patch = true;
    world.later(10 * SECOND, std::slice::from_ref(&lost));
    world.step();
    let drain = world.health.drain.clone().unwrap();
    assert_eq!((drain.until, drain.paused), (world.now + 30 * MINUTE, None));
    world.later(30 * MINUTE, &[lost]);
    assert_eq!(world.health.state, State::DrainBlocked);
}
