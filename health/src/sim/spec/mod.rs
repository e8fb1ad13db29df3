//! The specification of a world: its size, its layout, the behavior of its steps, and its faults. `parse` reads its
//! text form.

mod check;
pub(crate) mod layout;
mod parse;
pub mod shape;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use self::layout::Layout;
use self::shape::House;
use super::fault::Fault;

/// Maximum number of ranks of a world.
pub const MOST_RANKS: u32 = 1 << 17;

/// The complete input of a [`World`](super::World). The same spec always gives the same frames.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorldSpec {
    /// The job's name.
    pub job: Arc<str>,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Number of nodes, each with its own sidecar.
    pub nodes: u32,
    /// GPUs, and therefore ranks, per node.
    pub gpus_per_node: u32,
    /// Number of racks, to which the nodes are assigned in order. Zero if racks are not reported.
    pub racks: u32,
    /// The parallel layout.
    pub layout: Layout,
    /// How replicas synchronize their weights.
    pub framework: Framework,
    /// The role that ranks declare. Empty if they declare none.
    pub role: Arc<str>,
    /// Optimizer steps until training ends.
    pub steps: u64,
    /// Steps after which training is restarted.
    pub restarts: Vec<u64>,
    /// Time from the last step before a restart to the first events after it, seconds.
    pub restart_s: f64,
    /// Step durations and their variation.
    pub step: StepModel,
    /// Relative work of each pipeline stage, where 1 is ordinary work. Empty if all stages are equal.
    pub stages: Vec<f64>,
    /// Work that differs from step to step.
    pub work: Work,
    /// True if GPUs are read.
    pub readings: bool,
    /// True if hosts are read. With `None`, they are read if a fault can only be recognized by that.
    pub host: Option<bool>,
    /// The share of a GPU's readings that are taken between two kernels. In these readings, its link is in power
    /// saving, and its utilization reflects the past as much as the present.
    pub idle: f64,
    /// Seconds per second of work that each rank's process waits for a CPU, on every node, as if there were more
    /// threads than cores.
    pub oversubscribed: f64,
    /// True if communicators are declared and timed.
    pub comms: bool,
    /// True if communication is timed by the GPU, as by the NCCL plugin. This includes sends and receives of pipelines,
    /// and single collectives on request.
    pub comms_by_gpu: bool,
    /// Number of layers (FSDP) or buckets (DDP) of a step whose collectives overlap with compute, as timed by the GPU.
    /// The exposed part is unknown then. If zero, the time in collectives between replicas is fully exposed.
    pub beside: u32,
    /// True if ranks report the phases of their steps.
    pub phases: bool,
    /// True if the job reports its earlier speed as a baseline.
    pub baseline: bool,
    /// Time after which a hung job is killed, seconds.
    pub hang_s: f64,
    /// The faults.
    pub faults: Vec<Fault>,
}

/// How replicas synchronize their weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Framework {
    /// Gradients are reduced in buckets that overlap the backward pass. Replicas synchronize at its end.
    #[default]
    Ddp,
    /// Weights are sharded. Replicas therefore synchronize at every layer, and each layer is requested one layer ahead.
    Fsdp,
}

/// The duration of a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StepModel {
    /// Median self-time of a rank, seconds.
    pub self_s: f64,
    /// Exposed time of the reduction over replicas, after all of them have entered it, in seconds.
    pub transfer_s: f64,
    /// Time of the exchanges inside the layers of a step (tensor, context, expert parallel), in seconds per axis in
    /// use.
    pub exchange_s: f64,
    /// Transfer from one pipeline stage to the next, seconds.
    pub hop_s: f64,
    /// Share of self-time spent waiting for data.
    pub data_share: f64,
    /// Standard deviation of log self-time between steps. It is 0.005 for homogeneous data and [`PACKED_SIGMA`] for
    /// packed sequences.
    pub sigma: f64,
    /// Share of steps that take longer. The logarithm of the factor by which they are longer is exponentially
    /// distributed.
    pub tail_share: f64,
    /// Mean of the logarithm of that factor.
    pub tail_scale: f64,
    /// Correlation of the noise of consecutive steps (AR(1)), 0 to below 1.
    pub autocorrelation: f64,
    /// Standard deviation of the lasting difference between identical GPUs, in the logarithm.
    pub offset: f64,
    /// Number of first steps that take up to three times as long. This applies again after each restart.
    pub warm_up_steps: u64,
    /// Checkpoints.
    pub checkpoint: Checkpoint,
    /// Evaluations.
    pub evaluation: Evaluation,
    /// Garbage collection.
    pub gc: Gc,
}

/// Spread of the log self-time of healthy steps with packed sequences (1.4826 × MAD of a real job).
pub const PACKED_SIGMA: f64 = 0.11;

/// Steps that write a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Checkpoint {
    /// Interval in steps. Zero means never.
    pub every: u64,
    /// Duration relative to other steps.
    pub factor: f64,
    /// True if the probe reports the checkpoint. Its time is then in the checkpoint phase, and the step has the kind
    /// `Checkpoint`. Otherwise, its time counts as self-time.
    pub declared: bool,
    /// True if only rank 0 writes.
    pub first_rank_only: bool,
}

/// Steps with an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Evaluation {
    /// Interval in steps. Zero means never.
    pub every: u64,
    /// Compute time relative to other steps.
    pub factor: f64,
    /// True if the step has the kind `Evaluation`.
    pub declared: bool,
}

/// Pauses for garbage collection, on every rank at different times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gc {
    /// Interval in steps of a rank. Zero means never.
    pub every: u64,
    /// Duration, seconds.
    pub pause_s: f64,
}

/// Work that differs between ranks and between steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Work {
    /// If not zero, sequences are packed to a token budget. The value is the resulting 1.4826 × MAD of log self-time.
    /// If zero, all sequences are equal.
    pub packed: f64,
    /// Standard deviation of the log of tokens routed to the experts of a rank. It drifts slowly. If zero, all ranks
    /// get equally many tokens.
    pub experts: f64,
    /// True if steps declare their work.
    pub declared: bool,
}

impl Default for WorldSpec {
    fn default() -> WorldSpec {
        WorldSpec {
            job: Arc::from("simulated"),
            seed: 1,
            nodes: 1,
            gpus_per_node: 8,
            racks: 0,
            layout: Layout::default(),
            framework: Framework::Ddp,
            role: Arc::from(""),
            steps: 1000,
            restarts: Vec::new(),
            restart_s: 30.0,
            step: StepModel::default(),
            stages: Vec::new(),
            work: Work::default(),
            readings: true,
            host: None,
            idle: 0.01,
            oversubscribed: 0.0,
            comms: false,
            comms_by_gpu: false,
            beside: 0,
            phases: true,
            baseline: false,
            hang_s: 180.0,
            faults: Vec::new(),
        }
    }
}

impl Default for StepModel {
    fn default() -> StepModel {
        StepModel {
            self_s: 0.2,
            transfer_s: 0.01,
            exchange_s: 0.01,
            hop_s: 0.0005,
            data_share: 0.04,
            sigma: 0.005,
            tail_share: 0.0,
            tail_scale: 0.3,
            autocorrelation: 0.0,
            offset: 0.003,
            warm_up_steps: 3,
            checkpoint: Checkpoint::default(),
            evaluation: Evaluation::default(),
            gc: Gc::default(),
        }
    }
}

impl Default for Checkpoint {
    fn default() -> Checkpoint {
        // The factor is from a real 32-GPU run, in which every 500th step takes 1.7 times as long.
        Checkpoint {
            every: 0,
            factor: 1.7,
            declared: true,
            first_rank_only: false,
        }
    }
}

impl Default for Evaluation {
    fn default() -> Evaluation {
        Evaluation {
            every: 0,
            factor: 3.0,
            declared: true,
        }
    }
}

impl Default for Gc {
    fn default() -> Gc {
        // The pause is a typical duration of a full collection of a trainer's heap
        // (https://docs.python.org/3/library/gc.html). Megatron-LM's --manual-gc exists because of such pauses.
        Gc {
            every: 0,
            pause_s: 0.1,
        }
    }
}

impl Default for Work {
    fn default() -> Work {
        Work {
            packed: 0.0,
            experts: 0.0,
            declared: true,
        }
    }
}

/// Why a spec is invalid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SpecError {
    /// A number is outside of the valid range.
    #[error("{what} is {value}; expected {expected}")]
    Range {
        /// The value's name.
        what: &'static str,
        /// The given value.
        value: f64,
        /// The valid values.
        expected: &'static str,
    },
    /// The fault's target does not exist in the world.
    #[error("fault \"{fault}\": there is no {what} {number}; there are {count}, counted from 0")]
    NoSuch {
        /// The fault.
        fault: String,
        /// The kind of target: `rank`, `gpu`, `node` or `rack`.
        what: &'static str,
        /// The number that the fault gives.
        number: u32,
        /// How many such targets exist.
        count: u32,
    },
    /// A fault has no effect in this world.
    #[error("fault \"{fault}\": {why}")]
    Futile {
        /// The fault.
        fault: String,
        /// The reason.
        why: &'static str,
    },
    /// The product of the axes is not the number of ranks.
    #[error("{}", misfit(.layout, *.ranks))]
    Layout {
        /// The axes.
        layout: Layout,
        /// The number of ranks.
        ranks: u32,
    },
    /// Expert parallelism does not divide the replicas.
    #[error("ep={ep} does not divide dp={dp}")]
    Experts {
        /// Size of the expert-parallel axis.
        ep: u32,
        /// Size of the data-parallel axis.
        dp: u32,
    },
    /// Parts of the spec contradict each other.
    #[error("{0}")]
    Conflict(&'static str),
}

fn misfit(layout: &Layout, ranks: u32) -> String {
    let &Layout { dp, tp, pp, cp, .. } = layout;
    if dp == 0 {
        return format!("tp={tp} pp={pp} cp={cp} do not divide {ranks} ranks (nodes × GPUs)");
    }
    let product = [dp, tp, pp, cp].into_iter().map(u64::from).product::<u64>();
    format!("dp={dp} tp={tp} pp={pp} cp={cp} are {product} ranks; nodes × GPUs are {ranks}")
}

impl WorldSpec {
    /// Returns the number of ranks in the world.
    pub fn ranks(&self) -> u32 {
        self.nodes.saturating_mul(self.gpus_per_node)
    }

    /// Returns the placement of the ranks.
    pub(super) fn house(&self) -> House {
        House {
            ranks: self.ranks(),
            gpus_per_node: self.gpus_per_node,
            nodes: self.nodes,
            racks: self.racks,
        }
    }

    /// Returns true if hosts are read.
    pub(super) fn reads_hosts(&self) -> bool {
        self.host
            .unwrap_or_else(|| self.oversubscribed > 0.0 || self.faults.iter().any(Fault::needs_host))
    }

    /// Returns true if a baseline is reported. That is the case on request, or if it is needed to recognize a job that
    /// is slow from its start.
    pub(super) fn tells_baseline(&self) -> bool {
        self.baseline
            || self
                .faults
                .iter()
                .any(|fault| matches!(fault, Fault::Birth { .. }))
    }
}
