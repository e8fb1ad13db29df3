//! Draws the conclusions of a preflight from its measurements. Like the detector, this module does no I/O. `nccl-bench`
//! does the measurements.
//!
//! Metrics are never combined. Each is judged separately, against the other nodes and GPUs of this run, this place's
//! own history, published values, and the user's own floor.

mod compare;
mod events;
mod facts;
mod links;
mod pairs;
mod reference;
mod report;
mod result;
mod section;
mod table;

pub use compare::{Judge, Past, Wanted};
pub use facts::Fact;
pub use pairs::{MAX_ROUNDS, next as next_pairs};
pub use report::{Carried, NodeRow, Outcome, PREFLIGHT_SCHEMA, Problem, Report};
pub use result::{Against, Comparison, Judged, Noted};
pub use section::Section;
pub use table::{Better, MetricRow, NoiseLimits, PreflightTable, Rule};

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::id::{GpuId, NodeId};

/// Metrics. `policy/preflight.toml` gives their units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Matrix multiplication on a GPU.
    Gemm,
    /// Copies inside a GPU's memory.
    GpuMemory,
    /// Copies from pinned host memory to a GPU.
    HostToDevice,
    /// Copies from a GPU to pinned host memory.
    DeviceToHost,
    /// Matrix multiplication on the CPU, if there is no GPU.
    CpuGemm,
    /// Copies in the host's memory, if there is no GPU.
    CpuMemory,
    /// All-reduce over the GPUs of one node.
    LocalBusbw,
    /// All-reduce over processes of one node without GPUs.
    LocalBusbwHost,
    /// All-reduce over two nodes.
    PairBusbw,
    /// Round trip of a small message between two nodes.
    PairLatency,
    /// Share of TCP segments between two nodes that were retransmitted.
    PairLoss,
    /// All-reduce over all nodes and GPUs.
    AllBusbw,
}

impl Metric {
    /// All metrics.
    pub const ALL: [Metric; 12] = [
        Metric::Gemm,
        Metric::GpuMemory,
        Metric::HostToDevice,
        Metric::DeviceToHost,
        Metric::CpuGemm,
        Metric::CpuMemory,
        Metric::LocalBusbw,
        Metric::LocalBusbwHost,
        Metric::PairBusbw,
        Metric::PairLatency,
        Metric::PairLoss,
        Metric::AllBusbw,
    ];

    /// Returns the unit that a run's evidence and metrics use, as a name suffix, and the factor that converts to it
    /// from the unit of `policy/preflight.toml`.
    pub fn base_unit(self) -> (&'static str, f64) {
        match self {
            Metric::Gemm => ("flop_per_s", 1e12),
            Metric::CpuGemm => ("flop_per_s", 1e9),
            Metric::PairLatency => ("s", 1.0),
            Metric::PairLoss => ("ratio", 1.0),
            _ => ("bytes_per_s", 1e9),
        }
    }

    /// Returns its name in tables and files.
    pub fn name(self) -> &'static str {
        match self {
            Metric::Gemm => "gemm",
            Metric::GpuMemory => "gpu_memory",
            Metric::HostToDevice => "host_to_device",
            Metric::DeviceToHost => "device_to_host",
            Metric::CpuGemm => "cpu_gemm",
            Metric::CpuMemory => "cpu_memory",
            Metric::LocalBusbw => "local_busbw",
            Metric::LocalBusbwHost => "local_busbw_host",
            Metric::PairBusbw => "pair_busbw",
            Metric::PairLatency => "pair_latency",
            Metric::PairLoss => "pair_loss",
            Metric::AllBusbw => "all_busbw",
        }
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A place that is measured or can be at fault.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Place {
    /// One GPU.
    Gpu {
        /// Its node.
        node: NodeId,
        /// The GPU.
        gpu: GpuId,
    },
    /// One node.
    Node {
        /// The node.
        node: NodeId,
    },
    /// One network port or rail of a node.
    Port {
        /// Its node.
        node: NodeId,
        /// The port or rail.
        port: Arc<str>,
    },
    /// The link between two nodes. `a` sorts before `b`.
    Pair {
        /// One end.
        a: NodeId,
        /// The other end.
        b: NodeId,
    },
    /// The whole job.
    Job,
}

impl Place {
    /// Returns the pair of two nodes, in either order.
    pub fn pair(one: &NodeId, other: &NodeId) -> Place {
        let (a, b) = if one <= other { (one, other) } else { (other, one) };
        Place::Pair {
            a: a.clone(),
            b: b.clone(),
        }
    }

    /// Returns its node, if it is on exactly one.
    pub fn node(&self) -> Option<&NodeId> {
        match self {
            Place::Gpu { node, .. } | Place::Node { node } | Place::Port { node, .. } => Some(node),
            Place::Pair { .. } | Place::Job => None,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Gpu { node, gpu } => write!(f, "{gpu} of node {node}"),
            Place::Node { node } => write!(f, "node {node}"),
            Place::Port { node, port } => write!(f, "port {port} of node {node}"),
            Place::Pair { a, b } => write!(f, "the path between {a} and {b}"),
            Place::Job => f.write_str("all nodes together"),
        }
    }
}

/// One measurement (of several passes).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The place.
    pub place: Place,
    /// The metric.
    pub metric: Metric,
    /// The conditions, such as GPU model, bytes and NCCL version. Only samples with equal conditions are compared.
    pub conditions: Arc<str>,
    /// The rail, if rails were measured separately.
    #[serde(default)]
    pub rail: Option<u32>,
    /// The round. Round 0 is the first measurement, and higher rounds are repeats.
    pub round: u32,
    /// Median of the passes, in the metric's unit.
    pub value: f64,
    /// Robust standard deviation of the passes over their median. 0 if there are fewer than three passes.
    pub spread: f64,
    /// Number of passes.
    pub passes: u32,
    /// Message size in bytes, if the metric is measured with messages.
    #[serde(default)]
    pub bytes: u64,
}
