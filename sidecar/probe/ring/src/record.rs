//! The records, as plain structs. `layout.md` defines their fields; `encoding` has their bytes.

/// The kind of a step in the ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StepWord {
    /// An ordinary step, or a kind unknown to this version.
    #[default]
    Train,
    /// Contains a checkpoint.
    Checkpoint,
    /// Contains an evaluation.
    Evaluation,
    /// Declared as warm-up.
    WarmUp,
}

/// The trainer's current activity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PhaseWord {
    /// Between phases, or a phase unknown to this version.
    #[default]
    Other,
    /// In the data loader.
    Data,
    /// Forward or backward.
    Compute,
    /// In a collective.
    Wait,
    /// In the optimizer.
    Optimizer,
    /// Writing a checkpoint.
    Checkpoint,
    /// Evaluating.
    Evaluation,
}

/// The framework that the probe runs in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framework {
    /// PyTorch.
    Torch,
    /// The demo's trainer.
    Demo,
    /// NCCL's profiler plugin: the framework is unknown.
    Nccl,
    /// Anything else.
    #[default]
    Other,
}

/// One optimizer step. Durations are µs unless named otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Optimizer steps since training began.
    pub step: u64,
    /// From the end of the previous step to the end of this one.
    pub duration_ns: u64,
    /// Waiting for the data loader.
    pub data_us: u32,
    /// Forward and backward, without waits.
    pub compute_us: u32,
    /// In collectives.
    pub wait_us: u32,
    /// In the optimizer.
    pub optimizer_us: u32,
    /// Writing a checkpoint.
    pub checkpoint_us: u32,
    /// Backward passes in the step.
    pub micro_batches: u16,
    /// The kind of step.
    pub kind: StepWord,
    /// Whether the phases were measured.
    pub phases_known: bool,
    /// Declared work, 0: none.
    pub tokens: u64,
}

/// A rank declares itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attach {
    /// Global rank.
    pub rank: u32,
    /// Rank on its node.
    pub local_rank: u32,
    /// Ranks in the job.
    pub world_size: u32,
    /// Restarts of the worker group so far.
    pub restart: u32,
    /// CUDA device index; -1: CPU.
    pub device: i32,
    /// UUID of the GPU, zeros: unknown.
    pub gpu_uuid: [u8; 16],
    /// Version of the framework.
    pub version: [u8; 3],
    /// The framework.
    pub framework: Framework,
    /// Version of NCCL, zeros: none or unknown.
    pub nccl: [u8; 3],
    /// Version of CUDA that the framework was built for, zeros: none or unknown.
    pub cuda: [u8; 2],
}

/// A mark set by the training program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// The step in which it was set.
    pub step: u64,
    /// A number passed with it.
    pub value: u64,
    /// At most 32 bytes of UTF-8.
    pub kind: String,
}

/// The rank ended normally.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Detach {
    /// The last step it finished.
    pub step: u64,
}

/// Why the hook switched something off; at most 48 bytes of UTF-8.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Note {
    /// The reason.
    pub text: String,
}

/// The rank's place in the parallel layout; at most 48 bytes of UTF-8.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Role {
    /// Ranks with the same text do the same work.
    pub text: String,
}

/// A place on one axis of parallelism. An unused axis has size one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Index, from 0.
    pub index: u16,
    /// Size of the axis.
    pub size: u16,
}

impl Default for Axis {
    fn default() -> Axis {
        Axis { index: 0, size: 1 }
    }
}

/// The rank's place in the parallel layout, by axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Data parallel.
    pub dp: Axis,
    /// Tensor parallel.
    pub tp: Axis,
    /// Pipeline parallel.
    pub pp: Axis,
    /// Expert parallel.
    pub ep: Axis,
    /// Context parallel.
    pub cp: Axis,
    /// Micro-batches of a step, 0: not declared.
    pub micro_batches: u32,
}

/// More about the step whose record follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// The step.
    pub step: u64,
    /// Declared work: sum of the squared lengths of its sequences, 0: none.
    pub sum_sq: u64,
    /// Declared work: tokens routed to this rank's experts, 0: none.
    pub expert_tokens: u64,
    /// Time in garbage collection; included in the step's phases.
    pub gc_us: u32,
}

/// The rank is a member of a communicator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// The same number on all members.
    pub comm: u64,
    /// Number of members.
    pub size: u32,
    /// At most 24 bytes of UTF-8; empty: unknown.
    pub name: String,
}

/// The rank's totals in one communicator during the step whose record follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Comm {
    /// The step.
    pub step: u64,
    /// The communicator.
    pub comm: u64,
    /// Bytes of payload.
    pub bytes: u64,
    /// Time in its collectives, waiting and transfer together.
    pub duration_ns: u64,
    /// Collectives, sends and receives.
    pub collectives: u32,
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Kind 1.
    Step(Step),
    /// Kind 2.
    Attach(Attach),
    /// Kind 3.
    Mark(Mark),
    /// Kind 4.
    Detach(Detach),
    /// Kind 5.
    Note(Note),
    /// Kind 6.
    Role(Role),
    /// Kind 7.
    Layout(Layout),
    /// Kind 8.
    Work(Work),
    /// Kind 9.
    Group(Group),
    /// Kind 10.
    Comm(Comm),
    /// Kind 11.
    Collective(crate::Collective),
    /// Kind 12.
    Timed(crate::Timed),
    /// A kind from a later version.
    Unknown(u16),
}
