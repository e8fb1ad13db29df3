//! Durations of steps and their parts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::id::Rank;

/// Durations of steps and their parts: ordinary steps, and all checkpoints.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// Over all ranks, including restarts: each part that any rank reported.
    pub parts: Vec<PartTimes>,
    /// By rank since the last restart, in order.
    pub ranks: Vec<RankTimes>,
}

/// Parts of a step, if reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The whole step.
    Step,
    /// Self-time: without waiting for peers and without checkpoints.
    #[serde(rename = "self")]
    Own,
    /// Waiting for the data loader.
    Data,
    /// Forward and backward, without waiting for peers.
    Compute,
    /// In collectives, including transfer.
    Wait,
    /// In the optimizer.
    Optimizer,
    /// Writing a checkpoint, in steps that wrote one.
    Checkpoint,
    /// Garbage collection; it is part of the other parts.
    Gc,
}

impl Part {
    /// All parts, in the order of their declaration.
    pub const ALL: [Part; 8] = [
        Part::Step,
        Part::Own,
        Part::Data,
        Part::Compute,
        Part::Wait,
        Part::Optimizer,
        Part::Checkpoint,
        Part::Gc,
    ];

    /// Its name in the report and in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Part::Step => "step",
            Part::Own => "self",
            Part::Data => "data",
            Part::Compute => "compute",
            Part::Wait => "wait",
            Part::Optimizer => "optimizer",
            Part::Checkpoint => "checkpoint",
            Part::Gc => "gc",
        }
    }
}

/// One part over all ranks, seconds. Percentiles are accurate to 0.1 %.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PartTimes {
    /// The part.
    pub part: Part,
    /// Number of samples: steps of ranks that reported it.
    pub samples: u64,
    /// Their sum.
    pub sum_s: f64,
    /// Median.
    pub p50_s: f64,
    /// 90th percentile.
    pub p90_s: f64,
    /// 99th percentile.
    pub p99_s: f64,
    /// Maximum.
    pub max_s: f64,
}

/// One rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankTimes {
    /// The rank.
    pub rank: Rank,
    /// Number of its ordinary steps.
    pub steps: u64,
    /// By part; in jobs with more than 512 ranks only the step and self-time.
    pub parts: BTreeMap<Part, Usual>,
}

/// Typical values of one part of one rank, seconds, accurate to 0.4 % unless its times scatter wildly.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Usual {
    /// Median.
    pub p50_s: f64,
    /// 99th percentile.
    pub p99_s: f64,
}
