//! What a preflight measured and found, as it is told when its job starts. How it is measured and judged is
//! [`crate::preflight`]'s; here it is on its way into the journal.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::id::{GpuId, NodeId};
use crate::preflight::{Metric, Outcome};

/// See [`super::Event::Preflight`]: the same from every node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Preflight {
    /// `quick` or `full`.
    pub mode: Arc<str>,
    /// What it came to.
    pub outcome: Outcome,
    /// How long it took.
    pub seconds: f64,
    /// Nodes that were expected.
    pub nodes: u32,
    /// GPUs of those that came.
    pub gpus: u32,
    /// Comparisons that were made.
    pub comparisons: u64,
    /// What all nodes reached together; units as in `policy/preflight.toml`.
    pub values: BTreeMap<Metric, f64>,
    /// What was asked for should something be bad: `warn`, `exclude`, `fail`.
    pub policy: Arc<str>,
    /// Nodes that do not take part in the job.
    pub left_out: Vec<LeftOut>,
}

/// A node that was measured and does not take part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Which.
    pub node: NodeId,
    /// Why, in a sentence.
    pub why: Arc<str>,
}

/// See [`super::Event::Bench`]. Units are those of `policy/preflight.toml`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bench {
    /// Which node. One that takes no part is told of by another.
    pub node: NodeId,
    /// It answered to the end.
    pub there: bool,
    /// Its GPU model, or its CPU's.
    pub model: Arc<str>,
    /// Its GPUs.
    pub gpus: u32,
    /// The worst of its GPUs, the best of its ways, and what is its own.
    pub values: BTreeMap<Metric, f64>,
    /// Each of its GPUs.
    pub of_gpus: BTreeMap<GpuId, BTreeMap<Metric, f64>>,
}
