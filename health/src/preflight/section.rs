//! What a job's report keeps of the preflight before it.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Metric, NodeRow, Noted, Outcome, Problem};
use crate::event::LeftOut;
use crate::id::NodeId;

/// The section of a job's report. `preflight.json` in the run directory has all of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Section {
    /// `quick` or `full`; empty: nobody told what it came to.
    pub mode: Arc<str>,
    /// Nothing of it was measured.
    pub simulated: bool,
    /// What it came to.
    pub outcome: Outcome,
    /// How long it took.
    pub seconds: f64,
    /// Nodes that were expected, and GPUs of those that came.
    pub nodes: u32,
    /// See `nodes`.
    pub gpus: u32,
    /// Comparisons that were made.
    pub comparisons: u64,
    /// What all nodes reached together.
    pub values: BTreeMap<Metric, f64>,
    /// What was asked for should something be bad: `warn`, `exclude`, `fail`.
    pub policy: Arc<str>,
    /// Nodes that do not take part in the job.
    pub left_out: Vec<LeftOut>,
    /// What was measured: of many nodes those of which something was found.
    pub rows: BTreeMap<NodeId, NodeRow>,
    /// What was found, the worst first; at most 64.
    pub findings: Vec<Noted>,
    /// What could not be done; at most 64.
    pub problems: Vec<Problem>,
}
