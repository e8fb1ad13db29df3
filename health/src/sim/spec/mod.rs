//! What world to make: size, layout, how its steps behave, what goes wrong. `parse` reads its text.

mod check;
pub(crate) mod layout;
mod parse;
pub mod shape;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use self::layout::Layout;
use self::shape::House;
use super::fault::Fault;

/// Most ranks that a world may have.
pub const MOST_RANKS: u32 = 1 << 17;

/// Everything that a [`World`](super::World) is made of: the same spec gives the same frames.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorldSpec {
    /// The job's name.
    pub job: Arc<str>,
    /// Where chance begins.
    pub seed: u64,
    /// Nodes, each with a sidecar of its own.
    pub nodes: u32,
    /// GPUs, and so ranks, on each node.
    pub gpus_per_node: u32,
    /// Racks, among which the nodes are dealt in order; zero: nobody says where a node stands.
    pub racks: u32,
    /// How the ranks share the work.
    pub layout: Layout,
    /// How replicas keep their weights alike.
    pub framework: Framework,
    /// The role that ranks declare; empty: none.
    pub role: Arc<str>,
    /// Optimizer steps until training ends.
    pub steps: u64,
    /// After which steps training is restarted.
    pub restarts: Vec<u64>,
    /// From the last step before a restart to the first words after it, seconds.
    pub restart_s: f64,
    /// How long a step takes and how much that varies.
    pub step: StepModel,
    /// Work of each pipeline stage, 1 for the ordinary one; empty: all alike.
    pub stages: Vec<f64>,
    /// Work that differs from step to step.
    pub work: Work,
    /// Whether GPUs are read.
    pub readings: bool,
    /// Whether hosts are read; `None`: when a fault can only be told by it.
    pub host: Option<bool>,
    /// Share of a GPU's readings that find it between two kernels: its link is asleep, and its utilization tells of the
    /// time before as much as of now.
    pub idle: f64,
    /// Seconds that each rank's process waits for a CPU per second of its work, on every node: more threads than cores.
    pub oversubscribed: f64,
    /// Whether communicators are declared and timed.
    pub comms: bool,
    /// Timed by the GPU, as by the NCCL plugin: sends and receives of pipelines as well, and single collectives on
    /// request.
    pub comms_by_gpu: bool,
    /// So many layers (FSDP) or buckets (DDP) of a step run their collectives beside the work, as the GPU then times
    /// them: the exposed part is unknown. Zero: the time in collectives between replicas is all exposed.
    pub beside: u32,
    /// Whether ranks say where their steps went.
    pub phases: bool,
    /// Whether the job says how fast it was before it began.
    pub baseline: bool,
    /// For how long a job that hangs goes on hanging until somebody kills it, seconds.
    pub hang_s: f64,
    /// What goes wrong.
    pub faults: Vec<Fault>,
}

/// How replicas keep their weights alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Framework {
    /// Gradients are reduced in buckets that overlap the backward pass; replicas meet at its end.
    #[default]
    Ddp,
    /// Weights are sharded: replicas meet at every layer, one layer ahead.
    Fsdp,
}

/// The time of a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StepModel {
    /// Median self-time of a rank, seconds.
    pub self_s: f64,
    /// The reduction over replicas once all have arrived, as far as it is not hidden, seconds.
    pub transfer_s: f64,
    /// Exchanges inside the layers of a step (tensor, context, expert parallel), seconds on each axis in use.
    pub exchange_s: f64,
    /// From one pipeline stage to the next, seconds.
    pub hop_s: f64,
    /// Share of self-time that waits for data.
    pub data_share: f64,
    /// Standard deviation of log self-time from step to step: 0.005 homogeneous, [`PACKED_SIGMA`] packed sequences.
    pub sigma: f64,
    /// Share of steps that take longer by an exponential tail in the logarithm.
    pub tail_share: f64,
    /// Mean of that tail, in the logarithm.
    pub tail_scale: f64,
    /// Correlation of a step's noise with that of the step before (AR(1)), 0 to below 1.
    pub autocorrelation: f64,
    /// Standard deviation of the lasting difference between identical GPUs, in the logarithm.
    pub offset: f64,
    /// First steps that take up to three times as long, again after each restart.
    pub warm_up_steps: u64,
    /// Checkpoints.
    pub checkpoint: Checkpoint,
    /// Evaluations.
    pub evaluation: Evaluation,
    /// Garbage collection.
    pub gc: Gc,
}

/// Log self-time of honest steps varies by this much with packed sequences (1.4826 × MAD of a real job).
pub const PACKED_SIGMA: f64 = 0.11;

/// Steps that are slow on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Checkpoint {
    /// Every so many steps; zero: never.
    pub every: u64,
    /// Such a step takes this many times as long as others.
    pub factor: f64,
    /// The probe knows: the time is in the checkpoint phase and the step's kind says so. Otherwise it is self-time.
    pub declared: bool,
    /// Only rank 0 writes.
    pub first_rank_only: bool,
}

/// Steps that hold an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Evaluation {
    /// Every so many steps; zero: never.
    pub every: u64,
    /// Such a step computes this many times as long as others.
    pub factor: f64,
    /// The step's kind says so.
    pub declared: bool,
}

/// Pauses of the interpreter, on every rank at a time of its own.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gc {
    /// Every so many steps of a rank; zero: it never pauses.
    pub every: u64,
    /// How long, seconds.
    pub pause_s: f64,
}

/// Work that differs between ranks and from step to step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Work {
    /// Sequences are packed to a token budget; 1.4826 × MAD of log self-time that comes of it. Zero: all alike.
    pub packed: f64,
    /// Standard deviation of the log of tokens routed to the experts of a rank, slowly drifting. Zero: all alike.
    pub experts: f64,
    /// Steps say how much work they held.
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
        // A real 32-GPU run: every 500th step takes 1.7 times as long.
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
        // A full collection of a trainer's heap takes this order of time:
        // https://docs.python.org/3/library/gc.html, and Megatron-LM's --manual-gc exists because of it.
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

/// Why a spec is not a world.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SpecError {
    /// A number outside of what can be simulated.
    #[error("{what} is {value}; expected {expected}")]
    Range {
        /// Which.
        what: &'static str,
        /// What it is.
        value: f64,
        /// What it could be.
        expected: &'static str,
    },
    /// A fault of something that the world does not have.
    #[error("fault \"{fault}\": there is no {what} {number}; there are {count}, counted from 0")]
    NoSuch {
        /// The fault.
        fault: String,
        /// `rank`, `gpu`, `node` or `rack`.
        what: &'static str,
        /// The number it names.
        number: u32,
        /// How many there are.
        count: u32,
    },
    /// A fault that this world cannot have.
    #[error("fault \"{fault}\": {why}")]
    Futile {
        /// The fault.
        fault: String,
        /// Why not.
        why: &'static str,
    },
    /// Axes whose product is not the number of ranks.
    #[error("{}", misfit(.layout, *.ranks))]
    Layout {
        /// The axes.
        layout: Layout,
        /// The ranks.
        ranks: u32,
    },
    /// Experts that do not divide the replicas.
    #[error("ep={ep} does not divide dp={dp}")]
    Experts {
        /// Expert parallel.
        ep: u32,
        /// Data parallel.
        dp: u32,
    },
    /// Parts of a spec that do not go together.
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
    /// Ranks in the world.
    pub fn ranks(&self) -> u32 {
        self.nodes.saturating_mul(self.gpus_per_node)
    }

    /// How the ranks are housed.
    pub(super) fn house(&self) -> House {
        House {
            ranks: self.ranks(),
            gpus_per_node: self.gpus_per_node,
            nodes: self.nodes,
            racks: self.racks,
        }
    }

    /// Whether hosts are read.
    pub(super) fn reads_hosts(&self) -> bool {
        self.host
            .unwrap_or_else(|| self.oversubscribed > 0.0 || self.faults.iter().any(Fault::needs_host))
    }

    /// Whether a baseline is told: asked for, or needed to tell that something was slow from its birth.
    pub(super) fn tells_baseline(&self) -> bool {
        self.baseline
            || self
                .faults
                .iter()
                .any(|fault| matches!(fault, Fault::Birth { .. }))
    }
}
