//! Results of a preflight, as sent when its job starts. [`crate::preflight`] judges the measurements; this module only
//! defines the events for the journal.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::id::{GpuId, NodeId};
use crate::preflight::{Metric, Outcome};

/// See [`super::Event::Preflight`]. Every node sends the same event.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Preflight {
    /// `quick` or `full`.
    pub mode: Arc<str>,
    /// Its result.
    pub outcome: Outcome,
    /// How long it took.
    pub seconds: f64,
    /// Nodes that were expected.
    pub nodes: u32,
    /// GPUs of the nodes that took part.
    pub gpus: u32,
    /// Comparisons that were made.
    pub comparisons: u64,
    /// Values of all nodes together. Their units are those in `policy/preflight.toml`.
    pub values: BTreeMap<Metric, f64>,
    /// The requested action on bad results: `warn`, `exclude`, `fail`.
    pub policy: Arc<str>,
    /// Nodes that are excluded from the job.
    pub left_out: Vec<LeftOut>,
}

/// A measured node that is excluded from the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// The node.
    pub node: NodeId,
    /// The reason, in a sentence.
    pub why: Arc<str>,
}

/// See [`super::Event::Bench`]. Units are those of `policy/preflight.toml`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bench {
    /// The node. Another node reports the results of an excluded one.
    pub node: NodeId,
    /// True if the node responded until the end.
    pub there: bool,
    /// The model of its GPUs, or that of its CPU if it has no GPU.
    pub model: Arc<str>,
    /// Number of its GPUs.
    pub gpus: u32,
    /// The values of its worst GPU and its best link, and values of the node itself.
    pub values: BTreeMap<Metric, f64>,
    /// Values of each GPU.
    pub of_gpus: BTreeMap<GpuId, BTreeMap<Metric, f64>>,
}
