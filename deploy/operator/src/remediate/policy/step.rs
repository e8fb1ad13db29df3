//! Determines the next state of a node. The function is called repeatedly with the current observations. A second call
//! with the same observations changes nothing.

use super::census::Census;
use super::drain::{begin, begin_again, blocked, pause};
use super::health::{Drain, Health, State};
use super::incident::{Closed, Incident};
use super::marks::NodeView;
use super::recovery::{recover, restore};
use super::rules::{Mode, Rules, Rung};
use super::wanted::{Wanted, wanted};

/// The observations besides the node.
#[derive(Clone, Copy, Debug)]
pub struct Scene<'a> {
    /// The current time.
    pub now: u64,
    /// When this leader's term started. Incidents without a report since then cause no action.
    pub started: u64,
    /// The policy.
    pub rules: &'a Rules,
    /// The nodes out of service.
    pub census: &'a Census,
}

/// Updates `health` from the node and the scene.
pub fn step(health: &mut Health, node: &NodeView, scene: &Scene<'_>) {
    let now = scene.now;
    if health.node_uid != node.uid {
        *health = Health::of(&node.uid, &node.boot, now);
        health.note(
            now,
            "replaced",
            "a new Node has this name; the record of the old one was deleted",
        );
    }
    health.gpus = health.gpus.max(node.gpus.unwrap_or(0));
    health.sliced |= node.has_slices;
    heed_repair(health, node, now);
    heed_boot(health, node, now);
    expire(health, scene);
    // This is done during a hold too, so that an administrator's change of the cordon is recognized afterwards.
    health.cordoned |= health.rung >= Rung::Cordon && node.bears() == Rung::Cordon;
    let may_evict = scene.census.lets_act(node, scene.rules) && node.bears() == Rung::Cordon;
    pause(health, may_evict, now);
    if node.hold {
        return health.stand(now, health.state, "a person holds it: left unchanged");
    }
    if scene.rules.mode < Mode::Act && health.rung > Rung::None {
        return health.stand(
            now,
            health.state,
            "left unchanged: no node is changed in this mode",
        );
    }
    if let Some(breaker) = &scene.census.breaker {
        if health.rung > Rung::None || health.open().next().is_some() {
            let says = format!(
                "breaker: {} of {} nodes had findings at once; a person must reset it",
                breaker.nodes, breaker.of
            );
            refuse(health, now, &says);
            health.stand(now, health.state.max_suspect(), says);
        }
        return;
    }
    heed_people(health, node, now);
    let refusal = climb(health, node, scene);
    blocked(health, node, now);
    recover(health, node, scene);
    settle(health, now, refusal);
}

impl State {
    fn max_suspect(self) -> State {
        if self == State::Healthy {
            State::Suspect
        } else {
            self
        }
    }
}

fn heed_repair(health: &mut Health, node: &NodeView, now: u64) {
    // Process a repair annotation only once. It can stay on the node, and it does not apply to later incidents.
    if health.repaired == node.repaired {
        return;
    }
    health.repaired.clone_from(&node.repaired);
    let Some(word) = &node.repaired else { return };
    let is_news = health.held || !health.remedies.is_empty() || health.open().next().is_some();
    if is_news {
        close(health, Closed::Repaired, |_| true);
        health.held = false;
        health.remedies.clear();
        // Reset the number of GPUs to the current one, because the repair may have removed a GPU permanently.
        health.gpus = node.gpus.unwrap_or(0);
        health.sliced = node.has_slices;
        health.claims = false;
        if let Some(recovery) = &mut health.recovery {
            recovery.next = recovery.next.min(now);
        }
        health.note(now, "repaired", format!("a person requested it: {word}"));
    }
}

fn heed_boot(health: &mut Health, node: &NodeView, now: u64) {
    if node.boot.is_empty() || node.boot == health.boot {
        return;
    }
    health.boot.clone_from(&node.boot);
    let boot = node.boot.clone();
    let closed = close(health, Closed::Rebooted, |incident| {
        incident.ends_with_reboot() && incident.boot != boot
    });
    if closed > 0 {
        health.note(
            now,
            "rebooted",
            format!("the node was restarted, as {closed} faults required"),
        );
    }
}

fn expire(health: &mut Health, scene: &Scene<'_>) {
    let expiry_ms = scene.rules.guard.expiry_s * 1000;
    let closed = close(health, Closed::Expired, |incident| {
        scene.now.saturating_sub(incident.heard) >= expiry_ms
    });
    if closed > 0 {
        health.note(
            scene.now,
            "expired",
            format!("no report about {closed} faults for {} s", expiry_ms / 1000),
        );
    }
    // Drop incidents that have had no report for twice the expiry time and are closed, unless they keep the node out of
    // service.
    if health.rung == Rung::None {
        health.incidents.retain(|_, incident| {
            incident.is_open() || scene.now.saturating_sub(incident.heard) < 2 * expiry_ms
        });
    }
}

fn close(health: &mut Health, how: Closed, is_meant: impl Fn(&Incident) -> bool) -> usize {
    let open = health
        .incidents
        .values_mut()
        .filter(|incident| incident.is_open());
    let meant = open.filter(|incident| is_meant(incident));
    meant.map(|incident| incident.closed = Some(how)).count()
}

/// Handles changes of the cordon by others, including a cordon set before the operator's own. A cordon that was decided
/// may not be on the node yet. Until it is, a cordon on the node may be another party's.
fn heed_people(health: &mut Health, node: &NodeView, now: u64) {
    if health.rung < Rung::Cordon || node.bears() == Rung::Cordon {
        return;
    }
    // Annotation and cordon are written at the same time. If only the annotation is left, another party has removed the
    // operator's cordon.
    let was_ours = health.cordoned || (node.mark.is_some() && node.mark == health.mark);
    if !was_ours && !node.unschedulable {
        return;
    }
    health.cordoned = false;
    health.mark = None;
    health.drain = None;
    if node.unschedulable {
        health.rung = Rung::Taint;
        let says = if was_ours {
            "paceline's mark was removed from an active cordon: the cordon is no longer paceline's"
        } else {
            "it was already cordoned by another program or person, who keeps the cordon"
        };
        health.note(now, "taken-over", says);
    } else {
        close(health, Closed::Overridden, |_| true);
        restore(health);
        health.held = false;
        health.note(
            now,
            "overridden",
            "it was uncordoned by another program or person: left in service until a new finding is raised",
        );
    }
}

/// Raises the node's action level as far as its faults require and the limits allow. Returns why the level is not
/// raised further, if it is not.
fn climb(health: &mut Health, node: &NodeView, scene: &Scene<'_>) -> Option<String> {
    let wanted = wanted(health, scene);
    shadow(health, &wanted, scene);
    begin_again(health, node, wanted.new.as_deref(), &wanted.act.by, scene);
    let mut refusal = None;
    let mut target = wanted.act.rung;
    if target > Rung::Taint && node.is_cordoned_by_another() && !health.cordoned {
        target = Rung::Taint;
        refusal = Some("owned: another program or person cordoned it, and may be working on it".to_owned());
    }
    if target <= health.rung {
        return refusal.filter(|_| wanted.act.rung > health.rung);
    }
    let goes_out = target.is_out() && !health.rung.is_out();
    if goes_out && let Err(why) = scene.census.admits(Mode::Act, &wanted.jobs, scene.rules) {
        target = Rung::Label;
        refusal = Some(why.to_string());
    }
    if let Some(says) = &refusal {
        refuse(health, scene.now, says);
    }
    if target <= health.rung {
        return refusal;
    }
    if target.is_out() && goes_out {
        take_out(health, &wanted, scene);
    }
    health.rung = target;
    health.recovery = None;
    health.note(scene.now, target.word(), wanted.act.by.as_str());
    if target >= Rung::Cordon && health.mark.is_none() {
        health.mark = Some(format!("paceline-remediator/{}", health.decisions));
    }
    if target == Rung::Evict {
        health.drain = Some(begin(node, scene));
    }
    refusal
}

fn take_out(health: &mut Health, wanted: &Wanted, scene: &Scene<'_>) {
    health.jobs = wanted.jobs.keys().cloned().collect();
    let recovery = &scene.rules.recovery;
    let before = health.remedies_within(scene.now, recovery.escalate_window_s * 1000);
    health.remedied(scene.now);
    if before >= recovery.escalate_after && !health.held {
        health.held = true;
        let says = format!(
            "out of service for the {}. time: remedies do not help, a person must check",
            before + 1
        );
        health.note(scene.now, "escalated", says);
    }
}

/// Records what would be done in act mode.
fn shadow(health: &mut Health, wanted: &Wanted, scene: &Scene<'_>) {
    let mut target = wanted.shadow.rung;
    if target <= health.shadow || target <= health.rung {
        return;
    }
    if target.is_out()
        && !health.shadow.is_out()
        && let Err(why) = scene.census.admits(Mode::Shadow, &wanted.jobs, scene.rules)
    {
        refuse(health, scene.now, &format!("shadow: {why}"));
        target = Rung::Label;
    }
    if target > health.shadow {
        if target.is_out() && !health.rung.is_out() {
            health.jobs = wanted.jobs.keys().cloned().collect();
        }
        health.shadow = target;
        let why = &wanted.shadow.by;
        health.note(scene.now, "would", format!("{}: {why}", target.word()));
    }
}

/// Derives the state from the other fields.
fn settle(health: &mut Health, now: u64, refusal: Option<String>) {
    let is_open = health.open().next().is_some();
    let drain = health.drain.as_ref();
    let state = if health.recovery.is_some() {
        State::Recovering
    } else if health.held && health.rung.is_out() && drain.is_none_or(|drain| drain.done) {
        State::Held
    } else if let Some(drain) = drain {
        match drain {
            Drain { done: true, .. } => State::Drained,
            drain if drain.is_over(now) => State::DrainBlocked,
            _ => State::Draining,
        }
    } else if health.rung.is_out() {
        State::OutOfService
    } else if health.rung > Rung::None {
        State::Flagged
    } else if is_open {
        State::Suspect
    } else {
        State::Healthy
    };
    let mut reason = health.worst().map(Incident::words).unwrap_or_default();
    let also = [
        refusal,
        (health.shadow > Rung::None).then(|| format!("would be taken to {}", health.shadow.word())),
        health
            .hindered
            .clone()
            .filter(|_| health.rung > Rung::None || health.recovery.is_some()),
        drain
            .and_then(|drain| drain.left)
            .filter(|_| state == State::DrainBlocked)
            .map(|left| format!("{left} pods are left after the deadline")),
        drain
            .and_then(|drain| drain.blocked.clone())
            .filter(|_| state != State::Drained),
        health
            .recovery
            .as_ref()
            .map(|recovery| format!("{} clean checks", recovery.clean)),
        health.recovery.as_ref().and_then(|recovery| {
            Some(format!(
                "the preflight could not run: {}",
                recovery.unrun.as_ref()?
            ))
        }),
    ];
    for more in also.into_iter().flatten() {
        if !reason.is_empty() {
            reason.push_str("; ");
        }
        reason.push_str(&more);
    }
    if state == State::Healthy {
        // Reset the count, so that the next dropped report is recorded again.
        health.unkept = 0;
    }
    health.stand(now, state, reason);
}

/// Records a refusal once, until its reason changes.
fn refuse(health: &mut Health, now: u64, says: &str) {
    let kind = says.split(':').next().unwrap_or_default();
    if health.refused.as_deref() != Some(kind) {
        health.refused = Some(kind.to_owned());
        health.note(now, "refused", says);
    }
}
