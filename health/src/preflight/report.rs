//! The whole of a preflight as one document: `preflight.json`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Judged, Metric, Noted, Place, Sample};
use crate::id::{JobId, NodeId};
use crate::verdict::Severity;

/// Version of the document; readers refuse a newer one.
pub const PREFLIGHT_SCHEMA: u32 = 1;

/// What it came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Nothing was found.
    Ok,
    /// Something is worse than it should be.
    Warning,
    /// Nothing could be compared with anything.
    #[default]
    Unknown,
    /// Something should not take part.
    Critical,
}

/// Something that could not be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// By or to which node; `None`: to all.
    pub node: Option<NodeId>,
    /// In which phase.
    pub phase: Arc<str>,
    /// What happened.
    pub what: Arc<str>,
    /// The node takes no part any more.
    pub lost: bool,
}

/// One node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeRow {
    /// It answered to the end.
    pub there: bool,
    /// GPU model, or the CPU's.
    pub model: Arc<str>,
    /// GPUs.
    pub gpus: u32,
    /// The worst of its values in each metric.
    pub values: BTreeMap<Metric, f64>,
    /// How the other nodes reach it, as far as the first node knows; empty: not known.
    #[serde(default)]
    pub address: Arc<str>,
}

/// Over what groups of nodes measured, and why not over something else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carried {
    /// In which phase.
    pub phase: Arc<str>,
    /// `nccl` and its version, `tcp`, `sim`.
    pub transport: Arc<str>,
    /// How many groups: nodes by themselves, pairs, or all together.
    pub groups: u32,
    /// Why not over NCCL; empty: it is NCCL.
    pub why: Arc<str>,
}

/// The document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// See [`PREFLIGHT_SCHEMA`].
    pub schema_version: u32,
    /// Version of the program.
    pub paceline: Arc<str>,
    /// Of which job.
    pub job: JobId,
    /// `quick` or `full`.
    pub mode: Arc<str>,
    /// Nothing of it was measured: a fabric was simulated.
    pub simulated: bool,
    /// What it came to.
    pub outcome: Outcome,
    /// How long it took.
    pub seconds: f64,
    /// How long each phase took, in order.
    pub phases: Vec<(Arc<str>, f64)>,
    /// All nodes that were expected.
    pub nodes: BTreeMap<NodeId, NodeRow>,
    /// What was found, the worst first.
    pub findings: Vec<Noted>,
    /// What could not be done.
    pub problems: Vec<Problem>,
    /// How many comparisons were made.
    pub comparisons: usize,
    /// So unsteady that nothing was concluded.
    pub unsteady: Vec<(Place, Metric)>,
    /// Everything that was measured.
    pub samples: Vec<Sample>,
    /// Over what.
    #[serde(default)]
    pub carried: Vec<Carried>,
}

impl Report {
    /// Puts in what was judged, and says what it comes to.
    pub fn conclude(&mut self, judged: Judged, better: impl Fn(Metric, f64, f64) -> f64) {
        self.findings = judged.findings;
        self.comparisons = judged.comparisons;
        self.unsteady = judged.unsteady;
        for sample in &self.samples {
            let nodes: Vec<&NodeId> = match &sample.place {
                Place::Pair { a, b } => vec![a, b],
                place => place.node().into_iter().collect(),
            };
            let is_pair = matches!(sample.place, Place::Pair { .. });
            for node in nodes {
                let Some(row) = self.nodes.get_mut(node) else {
                    continue;
                };
                let known = row.values.entry(sample.metric).or_insert(sample.value);
                let best = better(sample.metric, *known, sample.value);
                // Of a node's ways the best says what it can do; of its GPUs the worst is what matters.
                let keep_best = is_pair == (best == *known);
                if !keep_best {
                    *known = sample.value;
                }
            }
        }
        self.outcome = self.come_to();
    }

    /// Each node must have shown so many of its GPUs at work, in whatever metric: where there is no cuBLAS, copies
    /// alone are measured. A node whose GPUs could not be measured looks like one without GPUs: the caller passes the
    /// expected number, and missing GPUs are reported as lost.
    pub fn demand_gpus(&mut self, wanted: u32) {
        for (node, row) in self.nodes.iter().filter(|(_, row)| row.there) {
            let at_work: BTreeSet<&Place> = self
                .samples
                .iter()
                .map(|sample| &sample.place)
                .filter(|place| matches!(place, Place::Gpu { node: own, .. } if own == node))
                .collect();
            if at_work.len() < wanted as usize {
                let (seen, at_work) = (row.gpus, at_work.len());
                self.problems.push(Problem {
                    node: Some(node.clone()),
                    phase: "work".into(),
                    what: format!("{at_work} of {wanted} GPUs were measured, and {seen} were found").into(),
                    lost: true,
                });
            }
        }
        self.outcome = self.come_to();
    }

    fn come_to(&self) -> Outcome {
        let worst = self
            .findings
            .iter()
            .map(|noted| (noted.severity, noted.sure))
            .max();
        let lost = self.problems.iter().any(|problem| problem.lost);
        match worst {
            _ if lost => Outcome::Critical,
            Some((Severity::Critical, true)) => Outcome::Critical,
            Some((Severity::Critical | Severity::Warning, _)) => Outcome::Warning,
            _ if !self.problems.is_empty() => Outcome::Warning,
            _ if self.comparisons == 0 => Outcome::Unknown,
            _ => Outcome::Ok,
        }
    }

    /// Nodes that a job had better leave out: lost ones, and those of which something critical is sure.
    pub fn bad_nodes(&self) -> BTreeSet<NodeId> {
        let lost = self.problems.iter().filter(|problem| problem.lost);
        let lost = lost.filter_map(|problem| problem.node.clone());
        let bad = self.findings.iter().filter(|noted| noted.condemns());
        lost.chain(bad.filter_map(|noted| noted.place.node().cloned()))
            .collect()
    }
}
