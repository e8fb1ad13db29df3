//! The closed list of observations. The detector receives all of its input as one of these.
//!
//! Fields are never skipped in serialization, because the same types are also encoded as MessagePack, by position. For
//! the same reason, later versions only append fields, with `#[serde(default)]`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::id::{GpuId, JobId, NodeId, Rank};
use crate::preflight::{Noted, Problem};
use crate::time::Time;

mod collective;
mod ending;
mod gpu;
mod hang;
mod host;
mod kernel;
mod layout;
mod port;
mod preflight;
mod source;
mod start;
mod step;
mod thinned;

pub use collective::*;
pub use ending::*;
pub use gpu::*;
pub use hang::*;
pub use host::*;
pub use kernel::*;
pub use layout::*;
pub use port::*;
pub use preflight::*;
pub use source::*;
pub use start::*;
pub use step::*;
pub use thinned::*;

/// One observation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The aggregator opened the journal (again). Contains the job's name.
    Job(Job),
    /// A node's sidecar started. If a node sends a second one without a `Bye` before it, data between them may be
    /// missing.
    Agent(Agent),
    /// A rank registered.
    Attach(Attach),
    /// One optimizer step of one rank.
    Step(Step),
    /// The trainer set a mark: a checkpoint, an evaluation, a layout.
    Mark(Mark),
    /// A rank ended normally, as its hook reported.
    Detach(Detach),
    /// One reading of one GPU.
    Gpu(GpuReading),
    /// The node's sidecar is alive. Contains the position of its ranks, and how much data it has lost so far.
    Beat(Beat),
    /// A policy value changed at run time.
    Policy(PolicyChange),
    /// The launched command of a node ended.
    Exit(Exit),
    /// A node's sidecar ended normally.
    Bye(Bye),
    /// The aggregator closed the journal normally.
    End(End),
    /// A rank's position in the parallel layout.
    Layout(Layout),
    /// A rank is a member of a communicator.
    Group(Group),
    /// Sums over the collectives of one rank in one communicator in one step.
    Comm(Comm),
    /// One reading of a host, or of one rank's process on it.
    Host(HostReading),
    /// How fast something was before this job began.
    Baseline(Baseline),
    /// A GPU reported that something is wrong with it.
    GpuFault(GpuFault),
    /// Whether a GPU, or any GPU of a node, can be read. Sent when this changes.
    GpuAccess(GpuAccess),
    /// Which processes use a GPU. Sent when this changes.
    GpuHolders(GpuHolders),
    /// Whether a node's kernel log can be read. Sent when this changes.
    Kernel(KernelWatch),
    /// One reading of one network port of a node.
    Port(PortReading),
    /// The answer of NCCL's RAS service. Sent when ranks are stalled, and when the answer changes.
    Ras(RasReport),
    /// A requested source provides no data, or works again. Sent when this changes.
    Source(SourceState),
    /// The result of a preflight before the job began.
    Preflight(Preflight),
    /// The results of a preflight for one node. They replace the results of an earlier preflight.
    Bench(Bench),
    /// A problem that a preflight found.
    PreflightFinding(Noted),
    /// A measurement that a preflight could not do.
    PreflightProblem(Problem),
    /// A problem of a process or node that may end the job.
    Trouble(Trouble),
    /// Each collective of one rank in one communicator in one step, on request.
    Collectives(Collectives),
    /// The aggregator removed lines from the journal to keep it within its size limit.
    Thinned(Thinned),
    /// A rank's progress before its first step. Sent when it changes.
    Start(Start),
    /// The activity of stalled ranks. It is requested when they stall, and then at growing intervals while they are
    /// stalled.
    Stacks(Stacks),
    /// The last collectives that a stalled rank enqueued. Sent with the stacks.
    Entered(Entered),
}

impl Event {
    /// Returns the step that the event is about, if any.
    pub fn step(&self) -> Option<u64> {
        match self {
            Event::Step(step) => Some(step.step),
            Event::Mark(mark) => Some(mark.step),
            Event::Detach(detach) => Some(detach.step),
            Event::Comm(comm) => Some(comm.step),
            Event::Collectives(did) => Some(did.step),
            _ => None,
        }
    }
}

/// See [`Event::Job`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// The job's name.
    pub job: JobId,
    /// Version of the program that writes this journal.
    pub paceline: Arc<str>,
    /// The time up to which the aggregator had received data, if it wrote the previous lines itself and was only
    /// delayed. Deadlines up to that time have expired. Between that time and now, no deadline has, because the
    /// aggregator received nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listened_to: Option<Time>,
}

/// See [`Event::Agent`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Agent {
    /// Version of the sidecar.
    pub paceline: Arc<str>,
    /// Its sources by name: `probe`, `sim-gpu`, `nvml`.
    pub sources: Vec<Arc<str>>,
    /// Wall clock at its start, milliseconds since 1970. For people only.
    pub unix_ms: u64,
    /// The node's rack or switch, as the site names it. Empty if not known.
    #[serde(default)]
    pub rack: Arc<str>,
    /// Versions that should be the same on all nodes, by name: `driver`, `cuda`, `nccl`, `kernel`.
    #[serde(default)]
    pub versions: BTreeMap<Arc<str>, Arc<str>>,
}

/// See [`Event::Attach`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attach {
    /// Global rank.
    pub rank: Rank,
    /// Rank on its node.
    pub local_rank: u32,
    /// Ranks in the job.
    pub world_size: u32,
    /// How often the launcher has restarted the group (TORCHELASTIC_RESTART_COUNT).
    pub restart: u32,
    /// Process id on its node. It is for people only and never used as a key.
    pub pid: u32,
    /// The GPU that the rank trains on, or `None` if it trains on no GPU.
    pub gpu: Option<GpuId>,
    /// Position in the parallel layout. Ranks with the same role do the same work. Empty if not declared.
    pub role: Arc<str>,
    /// The framework of the trainer: `torch 2.15.0`, `demo`.
    pub framework: Arc<str>,
}

/// See [`Event::Mark`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    /// Global rank.
    pub rank: Rank,
    /// Its step.
    pub step: u64,
    /// `checkpoint`, `evaluation`, or a user-defined kind.
    pub kind: Arc<str>,
    /// The user's value. Its meaning depends on the kind.
    pub value: u64,
}

/// See [`Event::Detach`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Detach {
    /// Global rank.
    pub rank: Rank,
    /// Restart count of the rank's epoch.
    pub restart: u32,
    /// The last step it finished.
    pub step: u64,
}

/// The result of reading a signal: a value, or the reason why there is none. A missing value is never reported as zero.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Reading {
    /// The value.
    Value(f64),
    /// The reason for the missing value.
    Missing(Missing),
}

/// Why a reading has no value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Missing {
    /// The device does not support the signal.
    Unsupported,
    /// The library returned this error.
    Error(Arc<str>),
}

impl Reading {
    /// Returns the value, if there is one.
    pub fn value(&self) -> Option<f64> {
        match self {
            Reading::Value(value) => Some(*value),
            Reading::Missing(_) => None,
        }
    }
}

/// A rank's last known phase, in the order of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Before the first step or between phases.
    #[default]
    Other,
    /// In the data loader.
    Data,
    /// Forward or backward.
    Compute,
    /// In a collective. The rank has entered it and waits for its peers.
    Wait,
    /// In the optimizer.
    Optimizer,
    /// Writing a checkpoint.
    Checkpoint,
    /// Evaluating.
    Evaluation,
}

/// See [`Event::Beat`]. Counters start at zero when the sidecar starts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Beat {
    /// The node's ranks that have attached and have not ended.
    pub ranks: Vec<Pulse>,
    /// Records that trainers dropped because a ring was full.
    pub ring_dropped: u64,
    /// Torn or unfinished records in a ring.
    pub ring_torn: u64,
    /// Frames that the sidecar dropped because its spool was full.
    pub spool_dropped: u64,
    /// CPU time of the sidecar, nanoseconds.
    pub cpu_ns: u64,
    /// Resident memory of the sidecar, bytes.
    pub rss_bytes: u64,
    /// Time that NCCL spent in our profiler plugin, sum over the node's trainers, nanoseconds.
    #[serde(default)]
    pub plugin_ns: u64,
    /// Number of calls from NCCL.
    #[serde(default)]
    pub plugin_calls: u64,
    /// Time spent reading each of [`Agent::sources`], nanoseconds. Empty in most beats, which means that the times are
    /// unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub source_ns: Vec<u64>,
}

/// One rank's position, by its own node's clock.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pulse {
    /// Global rank.
    pub rank: Rank,
    /// Restart count of the rank's epoch.
    pub restart: u32,
    /// The current step, which is the last finished one plus one.
    pub step: u64,
    /// Its last known phase.
    pub phase: Phase,
    /// Time since its last change of phase or step, nanoseconds.
    pub idle_ns: u64,
    /// True if its process exists.
    pub alive: bool,
}

/// See [`Event::Policy`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PolicyChange {
    /// Dotted name of the value in the policy tables.
    pub key: Arc<str>,
    /// Its new value.
    pub value: f64,
    /// The origin of the change: `start` (flags and files), `reload` (files read again), `set` (a request at run time).
    /// Empty if not known.
    #[serde(default)]
    pub by: Arc<str>,
}

/// See [`Event::Exit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// Exit code as a shell reports it, which is 128 + n if signal n ended the command.
    pub code: i32,
}

/// See [`Event::Bye`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bye {
    /// Why it left.
    pub reason: Arc<str>,
}

/// See [`Event::End`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// Nodes that never sent `Bye`.
    pub missing: Vec<NodeId>,
}

/// See [`Event::Baseline`]. The detector compares measurements of this job with it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Baseline {
    /// What was measured.
    pub of: BaselineOf,
    /// How long the subject took, in seconds.
    pub seconds: f64,
    /// The source of the value: `preflight`, or the run in which it was measured.
    pub source: Arc<str>,
}

/// What a [`Baseline`] describes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum BaselineOf {
    /// An ordinary step of the job.
    Step,
    /// Self-time of an ordinary step on a node, for any rank.
    SelfTime {
        /// The node.
        node: NodeId,
    },
}
