//! The complete result of a preflight in one document, `preflight.json`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Judged, Metric, Noted, Place, Sample};
use crate::id::{JobId, NodeId};
use crate::verdict::Severity;

/// Version of the document. Readers reject newer versions.
pub const PREFLIGHT_SCHEMA: u32 = 1;

/// The overall result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Nothing was found.
    Ok,
    /// Something is worse than expected.
    Warning,
    /// No comparison was possible.
    #[default]
    Unknown,
    /// Something should be excluded.
    Critical,
}

/// Something that could not be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// The node, or `None` for all nodes.
    pub node: Option<NodeId>,
    /// The phase.
    pub phase: Arc<str>,
    /// What happened.
    pub what: Arc<str>,
    /// True if the node is excluded from now on.
    pub lost: bool,
}

/// One node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeRow {
    /// True if the node responded until the end.
    pub there: bool,
    /// Its GPU model, or its CPU model if it has no GPU.
    pub model: Arc<str>,
    /// Number of GPUs.
    pub gpus: u32,
    /// Its worst value in each metric.
    pub values: BTreeMap<Metric, f64>,
    /// Its address for the other nodes, as seen by the first node. Empty if not known.
    #[serde(default)]
    pub address: Arc<str>,
}

/// The transport of a phase's measurements, and the reason for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carried {
    /// The phase.
    pub phase: Arc<str>,
    /// The transport, for example `nccl` and its version, `tcp` or `sim`.
    pub transport: Arc<str>,
    /// Number of groups: single nodes, pairs, or all nodes together.
    pub groups: u32,
    /// Why NCCL was not used. Empty if it was used.
    pub why: Arc<str>,
}

/// The document `preflight.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// See [`PREFLIGHT_SCHEMA`].
    pub schema_version: u32,
    /// Version of the program.
    pub paceline: Arc<str>,
    /// The job.
    pub job: JobId,
    /// `quick` or `full`.
    pub mode: Arc<str>,
    /// True if the fabric was simulated. Nothing was measured then.
    pub simulated: bool,
    /// The overall result.
    pub outcome: Outcome,
    /// Total duration.
    pub seconds: f64,
    /// Duration of each phase, in order.
    pub phases: Vec<(Arc<str>, f64)>,
    /// All expected nodes.
    pub nodes: BTreeMap<NodeId, NodeRow>,
    /// Findings, worst first.
    pub findings: Vec<Noted>,
    /// Problems during the preflight.
    pub problems: Vec<Problem>,
    /// Number of comparisons.
    pub comparisons: usize,
    /// Places and metrics that were too unsteady for a conclusion.
    pub unsteady: Vec<(Place, Metric)>,
    /// All measurements.
    pub samples: Vec<Sample>,
    /// The transports.
    #[serde(default)]
    pub carried: Vec<Carried>,
}

impl Report {
    /// Adds the judgment and sets the outcome.
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
                // A node's value for links is that of its best link, because that shows what the node can do. Its value
                // for GPUs is that of its worst GPU, because that one slows the node down.
                let keep_best = is_pair == (best == *known);
                if !keep_best {
                    *known = sample.value;
                }
            }
        }
        self.outcome = self.come_to();
    }

    /// Requires at least this many GPUs with measurements on each node, in any metric. Any metric is enough, because
    /// without cuBLAS only copies are measured. The caller passes the expected number, because a node whose GPUs could
    /// not be measured looks like a node without GPUs. Missing GPUs are reported as lost.
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

    /// Returns the nodes that a job should exclude: lost nodes, and those with a confirmed critical finding.
    pub fn bad_nodes(&self) -> BTreeSet<NodeId> {
        let lost = self.problems.iter().filter(|problem| problem.lost);
        let lost = lost.filter_map(|problem| problem.node.clone());
        let bad = self.findings.iter().filter(|noted| noted.condemns());
        lost.chain(bad.filter_map(|noted| noted.place.node().cloned()))
            .collect()
    }
}
