//! One optimizer step of one rank: its duration, purpose and phases.

use serde::{Deserialize, Serialize};

use crate::id::Rank;

/// How a step was timed; verdicts report it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Signal {
    /// Only wall step time.
    S0,
    /// NCCL profiler plugin.
    S1,
    /// Hook in the trainer: phases.
    S2,
    /// GPU and kernel log.
    S3,
    /// Host counters.
    S4,
}

/// The purpose of a step. Statistics of different kinds never mix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepKind {
    /// An ordinary step.
    #[default]
    Train,
    /// Contains a checkpoint.
    Checkpoint,
    /// Contains an evaluation.
    Evaluation,
    /// Declared as warm-up (compilation, autotuning).
    WarmUp,
    /// Far longer than ordinary ones, at regular intervals, and not declared. The detector assigns this kind; no step
    /// event has it.
    #[serde(skip)]
    PeriodicPause,
    /// Far longer than ordinary ones, once; assigned by the detector as well.
    #[serde(skip)]
    Outlier,
}

impl StepKind {
    /// Its name on the page and in docs.
    pub const fn name(self) -> &'static str {
        match self {
            StepKind::Train => "train",
            StepKind::Checkpoint => "checkpoint",
            StepKind::Evaluation => "evaluation",
            StepKind::WarmUp => "warm-up",
            StepKind::PeriodicPause => "periodic pause",
            StepKind::Outlier => "outlier",
        }
    }
}

/// See [`super::Event::Step`]. Durations are nanoseconds on the rank's own clock.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Global rank.
    pub rank: Rank,
    /// Restart count of the epoch in which the step ran.
    pub restart: u32,
    /// Optimizer steps since training began, in the rank's own count.
    pub step: u64,
    /// Its kind.
    pub kind: StepKind,
    /// From the end of the previous step to the end of this one.
    pub dur_ns: u64,
    /// Its phases; `None` if only the wall time is known.
    pub phases: Option<Phases>,
    /// Backward passes in the step.
    pub micro_batches: u16,
    /// Declared work; zero: not declared.
    pub tokens: u64,
    /// How it was timed.
    pub signal: Signal,
    /// Declared work: sum of the squared lengths of the sequences in the step; zero: not declared.
    #[serde(default)]
    pub sum_sq: u64,
    /// Declared work: tokens routed to this rank's experts; zero: not declared.
    #[serde(default)]
    pub expert_tokens: u64,
}

/// Phases of a step, nanoseconds. The rest of the step's duration is unattributed and counts as self-time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Phases {
    /// Waiting for the data loader.
    pub data_ns: u64,
    /// Forward and backward, without waiting for peers.
    pub compute_ns: u64,
    /// In collectives, including transfer.
    pub wait_ns: u64,
    /// In the optimizer.
    pub optimizer_ns: u64,
    /// Writing a checkpoint.
    pub checkpoint_ns: u64,
    /// Garbage collection. Part of the other phases: it is not added to them.
    #[serde(default)]
    pub gc_ns: u64,
}

impl Step {
    /// Self-time: the rank's time outside of waiting for peers and of checkpoints, in seconds. `None` if the phases are
    /// not known or leave nothing.
    pub fn self_time(&self) -> Option<f64> {
        let phases = self.phases?;
        let other = phases.wait_ns.saturating_add(phases.checkpoint_ns);
        let own = self.dur_ns.saturating_sub(other);
        (own > 0).then_some(own as f64 / 1e9)
    }
}
