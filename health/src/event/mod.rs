//! The closed list of observations. The detector receives all of its input as one of these.
//!
//! Fields are never skipped in serialization, because the same types are encoded as positional MessagePack; a field
//! that a later version appends has `#[serde(default)]`.

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
    /// The aggregator opened the journal (again): the job's name.
    Job(Job),
    /// A node's sidecar started. A second one without a `Bye` before it marks a gap.
    Agent(Agent),
    /// A rank registered.
    Attach(Attach),
    /// One optimizer step of one rank.
    Step(Step),
    /// The trainer set a mark: a checkpoint, an evaluation, a layout.
    Mark(Mark),
    /// A rank ended in order (its hook reported it).
    Detach(Detach),
    /// One reading of one GPU.
    Gpu(GpuReading),
    /// The node's sidecar is alive: the position of its ranks, and its losses so far.
    Beat(Beat),
    /// A policy value changed at run time.
    Policy(PolicyChange),
    /// The launched command of a node ended.
    Exit(Exit),
    /// A node's sidecar ended in order.
    Bye(Bye),
    /// The aggregator closed the journal in order.
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
    /// Whether a GPU, or any GPU of a node, can be read: sent on change.
    GpuAccess(GpuAccess),
    /// Which processes use a GPU: sent on change.
    GpuHolders(GpuHolders),
    /// Whether a node's kernel log can be read: sent on change.
    Kernel(KernelWatch),
    /// One reading of one network port of a node.
    Port(PortReading),
    /// The answer of NCCL's RAS service: sent when ranks are stalled, and when the answer changes.
    Ras(RasReport),
    /// A requested source provides no data: sent on change.
    Source(SourceState),
    /// The result of a preflight before the job began.
    Preflight(Preflight),
    /// The results of a preflight for one node; they replace those of an earlier preflight.
    Bench(Bench),
    /// A problem that a preflight found.
    PreflightFinding(Noted),
    /// A measurement that a preflight could not do.
    PreflightProblem(Problem),
    /// Trouble of a process or node that may end the job.
    Trouble(Trouble),
    /// Each collective of one rank in one communicator in one step, on request.
    Collectives(Collectives),
    /// The aggregator removed lines from the journal to keep it within its size limit.
    Thinned(Thinned),
    /// A rank's progress before its first step: sent on change.
    Start(Start),
    /// The activity of stalled ranks: requested once, and then less and less often while they are stalled.
    Stacks(Stacks),
    /// The last collectives that a stalled rank enqueued: sent with the stacks.
    Entered(Entered),
}

impl Event {
    /// The step that the event is about, if any.
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
    /// delayed. Deadlines expired up to then, and none between then and now.
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
    /// Wall clock at its start, milliseconds since 1970, for people only.
    pub unix_ms: u64,
    /// The node's rack or switch, as the site names it; empty: not known.
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
    /// Process id on its node, for people only: never used as a key.
    pub pid: u32,
    /// The GPU that the rank trains on, if it does.
    pub gpu: Option<GpuId>,
    /// Position in the parallel layout; ranks of one role do the same work. Empty: not declared.
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
    /// The user's value; its meaning depends on the kind.
    pub value: u64,
}

/// See [`Event::Detach`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Detach {
    /// Global rank.
    pub rank: Rank,
    /// Its epoch.
    pub restart: u32,
    /// The last step it finished.
    pub step: u64,
}

/// A reading is a value, unsupported, or an error; a missing value is never reported as zero.
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
    /// The value, if there is one.
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
    /// In a collective: it has arrived and waits for its peers.
    Wait,
    /// In the optimizer.
    Optimizer,
    /// Writing a checkpoint.
    Checkpoint,
    /// Evaluating.
    Evaluation,
}

/// See [`Event::Beat`]. Counters grow since the sidecar's start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Beat {
    /// The node's ranks that have attached and not ended.
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
    /// Time spent reading each of [`Agent::sources`], nanoseconds; empty in most beats, which means unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub source_ns: Vec<u64>,
}

/// One rank's position, by its own node's clock.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pulse {
    /// Global rank.
    pub rank: Rank,
    /// Its epoch.
    pub restart: u32,
    /// The current step: the last finished one plus one.
    pub step: u64,
    /// Its last known phase.
    pub phase: Phase,
    /// Time since its last change of phase or step, nanoseconds.
    pub idle_ns: u64,
    /// Its process exists.
    pub alive: bool,
}

/// See [`Event::Policy`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PolicyChange {
    /// Dotted name of the value in the policy tables.
    pub key: Arc<str>,
    /// Its new value.
    pub value: f64,
    /// The origin of the change: `start` (flags and files), `reload` (files read again), `set` (a request at run time);
    /// empty: not known.
    #[serde(default)]
    pub by: Arc<str>,
}

/// See [`Event::Exit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// Exit code as a shell reports it: 128 + n for a signal.
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

/// See [`Event::Baseline`]: the reference of the absolute axis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Baseline {
    /// Its subject.
    pub of: BaselineOf,
    /// How long it took, seconds.
    pub seconds: f64,
    /// Its source: `preflight`, or the run in which it was measured.
    pub source: Arc<str>,
}

/// The subject of a [`Baseline`].
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
