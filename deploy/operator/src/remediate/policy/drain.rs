//! A drain's deadline, and the results of its rounds.

use super::health::{Drain, Health, State};
use super::incident::Incident;
use super::marks::NodeView;
use super::rules::{Rules, Rung};
use super::step::Scene;

/// Factor by which rounds become less frequent for pods that are left after the deadline.
const SLOWER: u64 = 6;

/// The result of a round of a drain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Number of pods that are still there.
    pub left: u32,
    /// What blocks one of these pods.
    pub blocked: Option<String>,
}

/// Starts a drain. The time until the deadline counts from the cordon.
pub(super) fn begin(node: &NodeView, scene: &Scene<'_>) -> Drain {
    Drain {
        until: scene.now + scene.rules.drain.deadline_s * 1000,
        paused: (node.bears() != Rung::Cordon).then_some(scene.now),
        next: scene.now,
        left: None,
        blocked: None,
        done: false,
    }
}

/// Restarts the deadline of a drain that missed it. The reason is a `new` fault, or an administrator's request. `by` is
/// the fault that requires the drain.
pub(super) fn begin_again(
    health: &mut Health,
    node: &NodeView,
    new: Option<&str>,
    by: &str,
    scene: &Scene<'_>,
) {
    let now = scene.now;
    let is_over = |drain: &Drain| !drain.done && drain.is_over(now);
    if !health.drain.as_ref().is_some_and(is_over) || !(new.is_some() || node.drain.is_some()) {
        return;
    }
    let left = health.drain.take().and_then(|drain| drain.left);
    health.drain = Some(Drain {
        left,
        ..begin(node, scene)
    });
    let why = match &node.drain {
        Some(word) => format!("a person requested it: {word}"),
        None => "a new finding was raised".to_owned(),
    };
    let worst = || health.worst().map(Incident::words).unwrap_or_default();
    let fault = new
        .or((!by.is_empty()).then_some(by))
        .map_or_else(worst, str::to_owned);
    health.note(now, "evict", format!("{fault}, once more: {why}"));
}

/// Extends the deadline by periods in which evictions are not allowed, so that a drain has its full time.
pub(super) fn pause(health: &mut Health, may_evict: bool, now: u64) {
    let Some(drain) = health.drain.as_mut().filter(|drain| !drain.done) else {
        return;
    };
    if !may_evict && !drain.is_over(now) {
        drain.paused.get_or_insert(now);
    } else if may_evict && let Some(since) = drain.paused.take() {
        drain.until += now.saturating_sub(since);
    }
}

/// Records once that pods are left after the deadline. From then on, the drain depends on others.
pub(super) fn blocked(health: &mut Health, node: &NodeView, now: u64) {
    let Some(drain) = &health.drain else { return };
    if !drain.done && drain.is_over(now) && health.state == State::Draining {
        let left = drain.left.map_or("some".to_owned(), |left| left.to_string());
        // Without a kubelet, pods never end. The job's next pods may then wait because their names are in use.
        let silent = "the node is not Ready: its pods end when they are deleted by force, or by the taint node.kubernetes.io/out-of-service";
        let is_ready = node.condition("Ready") == Some("True");
        let unended = if is_ready { "they do not end" } else { silent };
        let why = drain.blocked.clone().unwrap_or_else(|| unended.to_owned());
        health.note(
            now,
            "drain-blocked",
            format!("{left} pods are left after the deadline: {why}"),
        );
    }
}

/// Returns true if evictions are due. After the deadline, evictions continue as long as the node has an open incident.
pub fn is_due(health: &Health, now: u64) -> bool {
    let has_reason = health.open().next().is_some();
    let drain = health.drain.as_ref();
    drain.is_some_and(|drain| !drain.done && now >= drain.next && (has_reason || !drain.is_over(now)))
}

/// Records the result of a round.
pub fn drained(health: &mut Health, round: Round, rules: &Rules, now: u64) {
    let Some(drain) = &mut health.drain else { return };
    if drain.done {
        return;
    }
    let is_news = round.blocked.is_some() && round.blocked != drain.blocked;
    let slower = if drain.is_over(now) { SLOWER } else { 1 };
    drain.left = Some(round.left);
    drain.next = now + rules.drain.retry_s * 1000 * slower;
    drain.blocked.clone_from(&round.blocked);
    drain.done = round.left == 0;
    if round.left == 0 {
        health.note(now, "drained", "all pods have left");
    } else if let Some(why) = round.blocked.filter(|_| is_news) {
        health.note(now, "eviction-refused", why);
    }
}
