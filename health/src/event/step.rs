//! One optimizer step of one rank: its duration, purpose and phases.

use serde::{Deserialize, Serialize};

use crate::id::Rank;

/// How a step was timed. Verdicts report this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Signal {
    /// Only the wall time of steps.
    S0,
    /// The NCCL profiler plugin.
    S1,
    /// The hook in the trainer, which reports phases.
    S2,
    /// GPU readings and the kernel log.
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
    /// The step contains a checkpoint.
    Checkpoint,
    /// The step contains an evaluation.
    Evaluation,
    /// The step was declared as warm-up (compilation, autotuning).
    WarmUp,
    /// The step is far longer than ordinary ones, is not declared, and recurs at regular intervals. Only the detector
    /// assigns this kind; step events never have it.
    #[serde(skip)]
    PeriodicPause,
    /// The step is far longer than ordinary ones and does not recur. Only the detector assigns this kind.
    #[serde(skip)]
    Outlier,
}

impl StepKind {
    /// Returns the kind's name on the page and in docs.
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
    /// Time from the end of the previous step to the end of this one.
    pub dur_ns: u64,
    /// Its phases, or `None` if only the wall time is known.
    pub phases: Option<Phases>,
    /// Backward passes in the step.
    pub micro_batches: u16,
    /// Declared work: tokens in the step. Zero if not declared.
    pub tokens: u64,
    /// How it was timed.
    pub signal: Signal,
    /// Declared work: sum of the squared lengths of the sequences in the step. Zero if not declared.
    #[serde(default)]
    pub sum_sq: u64,
    /// Declared work: tokens routed to this rank's experts. Zero if not declared.
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
    /// Time in collectives, including transfer.
    pub wait_ns: u64,
    /// Time in the optimizer.
    pub optimizer_ns: u64,
    /// Time writing a checkpoint.
    pub checkpoint_ns: u64,
    /// Time in garbage collection. It is part of the other phases and therefore not added to them.
    #[serde(default)]
    pub gc_ns: u64,
}

impl Step {
    /// Returns the self-time in seconds: the rank's time that is spent neither waiting for peers nor writing
    /// checkpoints. Returns `None` if the phases are not known or leave no self-time.
    pub fn self_time(&self) -> Option<f64> {
        let phases = self.phases?;
        let other = phases.wait_ns.saturating_add(phases.checkpoint_ns);
        let own = self.dur_ns.saturating_sub(other);
        (own > 0).then_some(own as f64 / 1e9)
    }
}
