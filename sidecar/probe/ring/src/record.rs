//! The records as plain structs. `layout.md` defines their fields, and `encoding` defines their bytes.

/// The kind of a step in the ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StepWord {
    /// An ordinary step, or a kind unknown to this version.
    #[default]
    Train,
    /// A step that contains a checkpoint.
    Checkpoint,
    /// A step that contains an evaluation.
    Evaluation,
    /// A step that the program declared as warm-up.
    WarmUp,
}

/// The trainer's current activity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PhaseWord {
    /// The trainer is between phases, or in a phase unknown to this version.
    #[default]
    Other,
    /// The trainer waits for the data loader.
    Data,
    /// The trainer runs a forward or backward pass.
    Compute,
    /// The trainer is in a collective.
    Wait,
    /// The trainer is in the optimizer.
    Optimizer,
    /// The trainer writes a checkpoint.
    Checkpoint,
    /// The trainer evaluates.
    Evaluation,
}

/// The framework that the probe runs in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framework {
    /// PyTorch.
    Torch,
    /// The demo's trainer.
    Demo,
    /// NCCL's profiler plugin, which does not know the framework.
    Nccl,
    /// Any other framework.
    #[default]
    Other,
}

/// One optimizer step. Durations are in µs unless the name has another unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Number of optimizer steps since training began.
    pub step: u64,
    /// Time from the end of the previous step to the end of this one.
    pub duration_ns: u64,
    /// Time spent waiting for the data loader.
    pub data_us: u32,
    /// Time in forward and backward passes, without waits.
    pub compute_us: u32,
    /// Time in collectives.
    pub wait_us: u32,
    /// Time in the optimizer.
    pub optimizer_us: u32,
    /// Time spent writing a checkpoint.
    pub checkpoint_us: u32,
    /// Number of backward passes in the step.
    pub micro_batches: u16,
    /// The kind of step.
    pub kind: StepWord,
    /// True if the phases were measured.
    pub phases_known: bool,
    /// Work declared by the program, in tokens; 0 if none.
    pub tokens: u64,
}

/// Identifies the rank that writes the ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attach {
    /// Global rank.
    pub rank: u32,
    /// Rank on its node.
    pub local_rank: u32,
    /// Number of ranks in the job.
    pub world_size: u32,
    /// Number of restarts of the worker group so far.
    pub restart: u32,
    /// CUDA device index; -1 for a CPU.
    pub device: i32,
    /// UUID of the GPU; zeros if unknown.
    pub gpu_uuid: [u8; 16],
    /// Version of the framework.
    pub version: [u8; 3],
    /// The framework.
    pub framework: Framework,
    /// Version of NCCL; zeros if there is none or it is unknown.
    pub nccl: [u8; 3],
    /// Version of CUDA that the framework was built for; zeros if there is none or it is unknown.
    pub cuda: [u8; 2],
}

/// A mark set by the training program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// The step in which it was set.
    pub step: u64,
    /// A number that the program passed with the mark.
    pub value: u64,
    /// Kind of the mark: at most 32 bytes of UTF-8.
    pub kind: String,
}

/// The rank ended normally.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Detach {
    /// The last step that the rank finished.
    pub step: u64,
}

/// A note about why the hook switched something off, in at most 48 bytes of UTF-8.
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

/// The rank's position on one axis of parallelism. An unused axis has size one.
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
    /// Number of micro-batches in a step; 0 if not declared.
    pub micro_batches: u32,
}

/// Additional data about the step whose record follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// The step.
    pub step: u64,
    /// Work declared by the program: the sum of the squared lengths of its sequences; 0 if none.
    pub sum_sq: u64,
    /// Work declared by the program: the tokens routed to this rank's experts; 0 if none.
    pub expert_tokens: u64,
    /// Time in garbage collection, which is also included in the step's phases.
    pub gc_us: u32,
}

/// States that the rank is a member of a communicator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// Identifies the communicator; the same number on all members.
    pub comm: u64,
    /// Number of members.
    pub size: u32,
    /// Name of the communicator: at most 24 bytes of UTF-8, empty if unknown.
    pub name: String,
}

/// The rank's totals in one communicator during the step whose record follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Comm {
    /// The step.
    pub step: u64,
    /// The communicator.
    pub comm: u64,
    /// Payload of its collectives, in bytes.
    pub bytes: u64,
    /// Time in its collectives, including both waiting and transfer.
    pub duration_ns: u64,
    /// Number of collectives, sends and receives.
    pub collectives: u32,
}

/// One record of the ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Record kind 1.
    Step(Step),
    /// Record kind 2.
    Attach(Attach),
    /// Record kind 3.
    Mark(Mark),
    /// Record kind 4.
    Detach(Detach),
    /// Record kind 5.
    Note(Note),
    /// Record kind 6.
    Role(Role),
    /// Record kind 7.
    Layout(Layout),
    /// Record kind 8.
    Work(Work),
    /// Record kind 9.
    Group(Group),
    /// Record kind 10.
    Comm(Comm),
    /// Record kind 11.
    Collective(crate::Collective),
    /// Record kind 12.
    Timed(crate::Timed),
    /// A record of a kind that only a later version defines.
    Unknown(u16),
}
