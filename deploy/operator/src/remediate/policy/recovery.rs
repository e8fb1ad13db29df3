//! The return of a node to service.

use super::health::{Check, Health, Recovery};
use super::marks::NodeView;
use super::rules::{Preflight, Rules, Rung};
use super::step::Scene;

pub(super) fn recover(health: &mut Health, node: &NodeView, scene: &Scene<'_>) {
    let (now, recovery) = (scene.now, &scene.rules.recovery);
    if health.open().next().is_some() {
        if health.recovery.take().is_some() {
            health.note(now, "relapsed", "a finding was raised again during the check");
        }
        return;
    }
    health.shadow = Rung::None;
    health.refused = None;
    let drains = health
        .drain
        .as_ref()
        .is_some_and(|drain| !drain.done && !drain.is_over(now));
    if health.rung == Rung::None || health.held {
        return;
    }
    if drains {
        if node.bears() < Rung::Cordon {
            // Reset the action level, because a cordon that is applied only now, for a cleared fault, would evict new
            // jobs.
            restore(health);
            health.note(
                now,
                "recovered",
                "all findings cleared before the node could be cordoned",
            );
        }
        return;
    }
    let every_ms = recovery.check_every_s * 1000;
    let state = health.recovery.get_or_insert_with(|| Recovery {
        next: now + every_ms,
        ..Recovery::default()
    });
    if state.preflight.is_some() || now < state.next {
        return;
    }
    state.next = now + every_ms;
    if problem(node, &recovery.problem_conditions).is_some() {
        state.clean = 0;
        return;
    }
    state.clean += 1;
    if state.clean < recovery.checks {
        return;
    }
    if health.rung.is_out() && recovery.preflight == Preflight::Required {
        // Ended Jobs are kept for a day. The time makes the name unique, also across incidents.
        let name = format!("paceline-preflight-{}-{now}", short(&health.node_uid));
        state.preflight = Some(Check {
            name: name.clone(),
            until: now + recovery.preflight_deadline_s * 1000,
        });
        return health.note(now, "preflight", format!("Job {name}"));
    }
    restore(health);
    health.note(now, "recovered", "no findings about it any more");
}

/// Records the result of a preflight Job that has ended or whose deadline has passed.
pub fn checked(health: &mut Health, passed: bool, says: &str, rules: &Rules, now: u64) {
    let Some(recovery) = &mut health.recovery else {
        return;
    };
    if recovery.preflight.take().is_none() {
        return;
    }
    if passed {
        restore(health);
        return health.note(
            now,
            "recovered",
            format!("clean checks, and a preflight that passed: {says}"),
        );
    }
    recovery.failures += 1;
    recovery.unrun = None;
    recovery.clean = 0;
    recovery.next = now + rules.recovery.check_every_s * 1000;
    let is_last = recovery.failures >= rules.recovery.preflight_failures;
    health.note(now, "preflight-failed", says);
    if is_last {
        health.held = true;
        health.recovery = None;
        health.note(now, "escalated", "preflights fail: a person must check");
    }
}

/// Records that a preflight did not run to completion, because it did not start or was removed. This gives no
/// information about the node, so the node's state stays. The preflight is retried after a pause, because a person must
/// fix the cause.
pub fn unrun(health: &mut Health, says: &str, rules: &Rules, now: u64) {
    let Some(recovery) = &mut health.recovery else {
        return;
    };
    if recovery.preflight.take().is_none() {
        return;
    }
    recovery.clean = 0;
    recovery.next = now
        + rules
            .recovery
            .preflight_deadline_s
            .max(rules.recovery.check_every_s)
            * 1000;
    recovery.unrun = Some(says.to_owned());
    health.note(now, "preflight-unrun", format!("could not run: {says}"));
}

/// Records that the API server rejects what a preflight needs. The preflight is retried until its deadline.
pub fn refused(health: &mut Health, says: &str, rules: &Rules, now: u64) {
    let Some(recovery) = &mut health.recovery else {
        return;
    };
    match &recovery.preflight {
        Some(check) if now >= check.until => unrun(health, says, rules, now),
        Some(_) => recovery.unrun = Some(says.to_owned()),
        None => {}
    }
}

/// Removes all marks. How often the node was out of service is still remembered.
pub(super) fn restore(health: &mut Health) {
    health.rung = Rung::None;
    health.shadow = Rung::None;
    health.mark = None;
    health.cordoned = false;
    health.drain = None;
    health.recovery = None;
    health.jobs.clear();
}

/// Returns another problem of a node, such as a bad condition, if there is one.
pub fn problem(node: &NodeView, conditions: &[String]) -> Option<String> {
    if node.condition("Ready") != Some("True") {
        return Some("it is not Ready".to_owned());
    }
    let bad = conditions
        .iter()
        .find(|kind| node.condition(kind) == Some("True"));
    bad.map(|kind| format!("its condition {kind} is True"))
}

/// Returns a hash of the uid that is short enough for a name.
fn short(uid: &str) -> String {
    // This is FNV-1a with 64 bits: <https://datatracker.ietf.org/doc/html/draft-eastlake-fnv>.
    let hash = uid.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}
