//! One node and its environment, for tests. Decisions are applied to the node's view.

use std::collections::BTreeSet;

use paceline_health::Provenance;
use paceline_health::verdict::{Finding, Severity};

use super::*;

pub(super) const SECOND: u64 = 1000;
pub(super) const MINUTE: u64 = 60 * SECOND;
pub(super) const DAY: u64 = 86_400 * SECOND;
/// The start time of tests.
pub(super) const BEGIN: u64 = 1_795_000_000_000;

pub(super) fn node(name: &str) -> NodeView {
    NodeView {
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        version: "7".to_owned(),
        boot: "boot-1".to_owned(),
        conditions: vec![("Ready".to_owned(), "True".to_owned())],
        gpus: Some(8),
        ..NodeView::default()
    }
}

pub(super) fn report(finding: Finding, subject: &str) -> Report {
    Report {
        key: format!("ml/train/{finding}/{subject}"),
        job: "ml/train".to_owned(),
        job_nodes: 8,
        finding,
        subject: subject.to_owned(),
        severity: Severity::Critical,
        provenance: Provenance::Live,
        observe_only: false,
        order: None,
        holds: true,
    }
}

pub(super) fn over(mut report: Report) -> Report {
    report.holds = false;
    report
}

/// One node in a cluster.
pub(super) struct World {
    pub(super) rules: Rules,
    pub(super) health: Health,
    pub(super) node: NodeView,
    pub(super) others: Vec<(String, Health)>,
    pub(super) nodes: u32,
    pub(super) breaker: Option<Breaker>,
    pub(super) started: u64,
    pub(super) now: u64,
    /// True if the API server allows patches.
    pub(super) may_patch: bool,
}

impl World {
    pub(super) fn with(policy: &str) -> World {
        World {
            rules: Rules::with(policy).unwrap(),
            health: Health::of("uid-n1", "boot-1", BEGIN),
            node: node("n1"),
            others: Vec::new(),
            nodes: 100,
            breaker: None,
            started: BEGIN,
            now: BEGIN,
            may_patch: true,
        }
    }

    pub(super) fn acting() -> World {
        World::with("mode = \"act\"")
    }

    pub(super) fn hear(&mut self, report: Report) {
        self.health.hear(report, self.now);
        self.step();
    }

    /// Runs one step, and applies its patch to the node.
    pub(super) fn step(&mut self) {
        let name = self.node.name.clone();
        let all = self.others.iter().map(|(name, health)| (name, health));
        let all = all.chain([(&name, &self.health)]);
        let mut fleet: BTreeSet<String> = all.clone().map(|(name, _)| name.clone()).collect();
        fleet.retain(|name| !name.starts_with("cpu"));
        let rest = (fleet.len() as u32..self.nodes).map(|index| format!("rest-{index}"));
        fleet.extend(rest.collect::<Vec<_>>());
        let census = Census::of(all, &fleet, self.breaker.clone(), &self.rules, self.now);
        self.breaker = census.breaker.clone();
        let scene = Scene {
            now: self.now,
            started: self.started,
            rules: &self.rules,
            census: &census,
        };
        step(&mut self.health, &self.node, &scene);
        let once = self.health.clone();
        step(&mut self.health, &self.node, &scene);
        assert_eq!(once, self.health, "the same again changes nothing");
        if self.may_patch && census.lets_act(&self.node, &self.rules) {
            self.patch();
        }
    }

    fn patch(&mut self) {
        let Some(patch) = Marks::of(&self.health).patch(&self.node) else {
            return;
        };
        apply(&mut self.node, &patch);
        assert_eq!(
            Marks::of(&self.health).patch(&self.node),
            None,
            "one patch is enough"
        );
    }

    /// Advances the time in steps of 10 s. Each report in `said` is repeated each minute.
    pub(super) fn later(&mut self, ms: u64, said: &[Report]) -> &mut World {
        let until = self.now + ms;
        while self.now < until {
            self.now = (self.now + 10 * SECOND).min(until);
            if (self.now - BEGIN).is_multiple_of(MINUTE) {
                for report in said {
                    self.health.hear(report.clone(), self.now);
                }
            }
            self.step();
        }
        self
    }

    pub(super) fn words(&self) -> Vec<&str> {
        self.health
            .history
            .iter()
            .map(|entry| entry.what.as_str())
            .collect()
    }
}

/// Applies a merge patch to a node's view.
pub(super) fn apply(node: &mut NodeView, patch: &serde_json::Value) {
    assert_eq!(patch["metadata"]["resourceVersion"], node.version.as_str());
    if let Some(unschedulable) = patch["spec"].get("unschedulable") {
        node.unschedulable = *unschedulable == true;
    }
    if let Some(taints) = patch["spec"].get("taints") {
        node.taints = taints.as_array().cloned().unwrap_or_default();
    }
    if let Some(label) = patch["metadata"]["labels"].get(marks::LABEL) {
        node.label = label.as_str().map(str::to_owned);
    }
    let annotations = &patch["metadata"]["annotations"];
    if let Some(mark) = annotations.get(marks::MARK) {
        node.mark = mark.as_str().map(str::to_owned);
    }
    if annotations.get(marks::REPAIRED).is_some() {
        node.repaired = None;
    }
    if annotations.get(marks::DRAIN).is_some() {
        node.drain = None;
    }
}
