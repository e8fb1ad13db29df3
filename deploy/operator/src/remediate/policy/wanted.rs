//! Determines what the faults of a node require, and which fault requires it.

use std::collections::BTreeMap;

use paceline_health::Provenance;
use paceline_health::fault::When;
use paceline_health::verdict::Severity;

use super::health::Health;
use super::incident::Incident;
use super::rules::{FindingRule, Mode, Rung};
use super::step::Scene;

/// What the faults require that are ready to be acted on (`Incident::ripe`).
#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// Description of the fault that newly requires eviction.
    pub(super) new: Option<String>,
    /// The requirement in act mode.
    pub(super) act: Asked,
    /// The requirement in shadow mode.
    pub(super) shadow: Asked,
    /// The reporting jobs, with their number of nodes.
    pub(super) jobs: BTreeMap<String, u32>,
}

/// The required action level, and the fault that requires it. Other faults can be more severe and still require less.
#[derive(Debug, Default)]
pub(super) struct Asked {
    pub(super) rung: Rung,
    pub(super) by: String,
    severity: Option<Severity>,
}

impl Asked {
    fn hear(&mut self, rung: Rung, incident: &Incident) {
        let severity = Some(incident.severity);
        if (rung, severity) > (self.rung, self.severity) {
            (self.rung, self.by, self.severity) = (rung, incident.words(), severity);
        }
    }
}

/// Returns the current requirements. Faults that take the node out of service are marked as `ripe`.
pub(super) fn wanted(health: &mut Health, scene: &Scene<'_>) -> Wanted {
    let mut wanted = Wanted::default();
    let open = health
        .incidents
        .values_mut()
        .filter(|incident| incident.is_open());
    for incident in open {
        let Some(rule) = scene.rules.finding(incident.finding) else {
            continue;
        };
        if !is_ripe(incident, rule, scene) {
            continue;
        }
        // The running work stays correct despite the fault, so the job may finish.
        let waits = incident.order.is_some_and(|order| order.when == When::JobEnd);
        let rung = if waits {
            rule.rung.min(Rung::Cordon)
        } else {
            rule.rung
        };
        match scene.rules.mode_of(rule) {
            Mode::Observe => continue,
            Mode::Shadow => wanted.shadow.hear(rung, incident),
            Mode::Act => {
                wanted.act.hear(rung, incident);
                if rung == Rung::Evict && !incident.ripe {
                    wanted.new = Some(incident.words());
                }
                incident.ripe |= rung.is_out();
            }
        }
        let nodes = wanted.jobs.entry(incident.job.clone()).or_default();
        *nodes = (*nodes).max(incident.job_nodes);
    }
    wanted
}

/// Returns true if the fault is trusted, severe enough, reported in this term and recently, and has held long enough.
fn is_ripe(incident: &Incident, rule: &FindingRule, scene: &Scene<'_>) -> bool {
    let since = |then: u64| scene.now.saturating_sub(then);
    incident.provenance == Provenance::Live
        && !incident.observe_only
        && incident.severity >= rule.severity
        && incident.heard >= scene.started
        && since(incident.heard) <= scene.rules.guard.fresh_s * 1000
        && since(incident.since) >= scene.rules.debounce_ms(rule)
}

#[cfg(test)]
mod tests {
    use paceline_health::verdict::Finding;

    use super::super::marks::TAINT;
    use super::super::world::{MINUTE, World, report};

    /// Two faults have equal severity. The one whose name sorts last requires only a condition, but each decision must
    /// name the fault that requires it.
    #[test]
    fn what_is_done_names_the_fault_that_asked_for_it() {
        let mut world = World::acting();
        let (lost, silent) = (
            report(Finding::GpuLost, "gpu GPU-a on n1"),
            report(Finding::RankSilent, "rank 3"),
        );
        world.hear(silent.clone());
        world.later(2 * MINUTE, std::slice::from_ref(&silent));
        world.hear(lost.clone());
        world.later(2 * MINUTE, &[lost, silent]);
        let says = |what: &str| {
            let entry = world.health.history.iter().find(|entry| entry.what == what);
            entry.unwrap().says.clone()
        };
        assert!(
            says("condition").starts_with("rank-silent of rank 3"),
            "{}",
            says("condition")
        );
        assert!(
            says("evict").starts_with("gpu-lost of gpu GPU-a"),
            "{}",
            says("evict")
        );
        // The node's reason and marks name the same fault.
        assert!(
            world.health.reason.starts_with("gpu-lost"),
            "{}",
            world.health.reason
        );
        let taint = world
            .node
            .taints
            .iter()
            .find(|taint| taint["key"] == TAINT)
            .unwrap();
        assert_eq!(taint["value"], "gpu-lost");
    }

    #[test]
    fn what_would_be_done_does_too() {
        let mut world = World::with("mode = \"shadow\"");
        let lost = report(Finding::GpuLost, "gpu GPU-a on n1");
        let silent = report(Finding::RankSilent, "rank 3");
        world.hear(lost.clone());
        world.hear(silent.clone());
        world.later(2 * MINUTE, &[lost, silent]);
        let would = world
            .health
            .history
            .iter()
            .rfind(|entry| entry.what == "would")
            .unwrap();
        assert!(would.says.starts_with("evict: gpu-lost"), "{}", would.says);
    }
}
