//! Durations of steps and their parts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::id::Rank;

/// Durations of steps and their parts. Ordinary steps and all checkpoints are included.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// The durations over all ranks, including those before restarts. Contains each part that any rank reported.
    pub parts: Vec<PartTimes>,
    /// The durations of each rank since the last restart, in the order of ranks.
    pub ranks: Vec<RankTimes>,
}

/// Parts of a step, if reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The whole step.
    Step,
    /// Self-time, which excludes waiting for peers and writing checkpoints.
    #[serde(rename = "self")]
    Own,
    /// Waiting for the data loader.
    Data,
    /// Forward and backward, without waiting for peers.
    Compute,
    /// Time in collectives, including transfer.
    Wait,
    /// Time in the optimizer.
    Optimizer,
    /// Writing a checkpoint, in steps that wrote one.
    Checkpoint,
    /// Garbage collection. Its time is also contained in the other parts.
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

    /// Returns its name in the report and in metrics.
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

/// The durations of one part over all ranks, in seconds. Percentiles are accurate to 0.1 %.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PartTimes {
    /// The part.
    pub part: Part,
    /// Number of samples. Each sample is one step of one rank that reported the part.
    pub samples: u64,
    /// The sum of the samples.
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

/// The durations of one rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankTimes {
    /// The rank.
    pub rank: Rank,
    /// Number of its ordinary steps.
    pub steps: u64,
    /// The durations by part. In jobs with more than 512 ranks, only the step and self-time are included.
    pub parts: BTreeMap<Part, Usual>,
}

/// Typical values of one part of one rank, in seconds. They are accurate to 0.4 % unless the rank's times scatter
/// wildly.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Usual {
    /// Median.
    pub p50_s: f64,
    /// 99th percentile.
    pub p99_s: f64,
}
