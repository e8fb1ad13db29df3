//! How long steps and their parts took.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::id::Rank;

/// How long steps and their parts took: ordinary steps, and checkpoints wherever one was written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// Of all ranks together, restarts included: each part that any rank told.
    pub parts: Vec<PartTimes>,
    /// Of each rank since the last restart, in order.
    pub ranks: Vec<RankTimes>,
}

/// What a step is made of, as far as it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The whole step.
    Step,
    /// Self-time: outside waiting for others and outside checkpoints.
    #[serde(rename = "self")]
    Own,
    /// Waiting for the data loader.
    Data,
    /// Forward and backward, without waiting for others.
    Compute,
    /// In collectives, transfer included.
    Wait,
    /// In the optimizer.
    Optimizer,
    /// Writing a checkpoint, of steps that wrote one.
    Checkpoint,
    /// Collecting garbage; it is part of the others.
    Gc,
}

impl Part {
    /// All, in the order of their declaration.
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

/// One part over all ranks, seconds. Percentiles are right within 0.1 %.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PartTimes {
    /// Which.
    pub part: Part,
    /// Steps of ranks that told it.
    pub samples: u64,
    /// All of them together.
    pub sum_s: f64,
    /// Median.
    pub p50_s: f64,
    /// 90th percentile.
    pub p90_s: f64,
    /// 99th percentile.
    pub p99_s: f64,
    /// The longest.
    pub max_s: f64,
}

/// One rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankTimes {
    /// Which.
    pub rank: Rank,
    /// Ordinary steps of it.
    pub steps: u64,
    /// By part; of jobs of more than 512 ranks only the step and self-time.
    pub parts: BTreeMap<Part, Usual>,
}

/// What is usual of one part of one rank, seconds, within 0.4 % where a rank's times do not scatter wildly.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Usual {
    /// Median.
    pub p50_s: f64,
    /// 99th percentile.
    pub p99_s: f64,
}
