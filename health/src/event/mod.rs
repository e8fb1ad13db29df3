//! The closed list of things that can be seen. Everything the detector knows arrives as one of these.
//!
//! Fields are never skipped when written, so that the same types travel as positional MessagePack; a field that a
//! later version appends carries `#[serde(default)]`.

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

/// One thing seen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The aggregator opened the journal (again): job, and what is known of its size.
    Job(Job),
    /// A node's sidecar began to watch. A second one without a `Bye` before it marks a gap.
    Agent(Agent),
    /// A rank declared itself.
    Attach(Attach),
    /// One optimizer step of one rank.
    Step(Step),
    /// The trainer marked something: a checkpoint, an evaluation, a layout.
    Mark(Mark),
    /// A rank ended in order (its hook said so).
    Detach(Detach),
    /// One reading of one GPU.
    Gpu(GpuReading),
    /// The node's sidecar is alive: where its ranks are and what was lost so far.
    Beat(Beat),
    /// A policy value changed while running.
    Policy(PolicyChange),
    /// The launched command of a node ended.
    Exit(Exit),
    /// A node's sidecar ended in order.
    Bye(Bye),
    /// The aggregator closed the journal in order.
    End(End),
    /// Where a rank stands in the parallel layout.
    Layout(Layout),
    /// A rank is a member of a communicator.
    Group(Group),
    /// What one rank did in one communicator in one step.
    Comm(Comm),
    /// One reading of a host, or of one rank's process on it.
    Host(HostReading),
    /// How fast something was before this job began.
    Baseline(Baseline),
    /// A GPU reported that something is wrong with it.
    GpuFault(GpuFault),
    /// Whether a GPU, or any GPU of a node, can be read: told when it changes.
    GpuAccess(GpuAccess),
    /// Which processes hold a GPU: told when it changes.
    GpuHolders(GpuHolders),
    /// Whether a node's kernel log can be read: told when it changes.
    Kernel(KernelWatch),
    /// One reading of one network port of a node.
    Port(PortReading),
    /// What NCCL's RAS service answered: told when ranks stand still, and when what it says has changed.
    Ras(RasReport),
    /// Nothing comes from a source that was asked for: told when it changes.
    Source(SourceState),
    /// What a preflight came to, before the job began.
    Preflight(Preflight),
    /// What a preflight measured of one node; what was told of it by an earlier one is void.
    Bench(Bench),
    /// Something that a preflight found.
    PreflightFinding(Noted),
    /// Something that a preflight could not do.
    PreflightProblem(Problem),
    /// Something that may end the job, as a process or a node met it.
    Trouble(Trouble),
    /// Each collective of one rank in one communicator in one step, where that was asked for.
    Collectives(Collectives),
    /// The aggregator took lines out of the journal, which has a bound.
    Thinned(Thinned),
    /// Where a rank stands before its first step: sent when it changes.
    Start(Start),
    /// What ranks that do not move are doing: asked once, and then more and more rarely, while they stand still.
    Stacks(Stacks),
    /// The last collectives that a rank which does not move has enqueued: sent with the stacks.
    Entered(Entered),
}

impl Event {
    /// The step of which it tells, if it tells of one.
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
    /// Up to when it had listened, if it is the one that wrote the lines before and was only held up. Deadlines passed
    /// up to then, and none between then and now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listened_to: Option<Time>,
}

/// See [`Event::Agent`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Agent {
    /// Version of the sidecar.
    pub paceline: Arc<str>,
    /// What it reads, by the source's name: `probe`, `sim-gpu`, `nvml`.
    pub sources: Vec<Arc<str>>,
    /// Wall clock at its start, milliseconds since 1970, for people only.
    pub unix_ms: u64,
    /// The rack or switch under which the node stands, as the site names it; empty: not known.
    #[serde(default)]
    pub rack: Arc<str>,
    /// Versions of what should be alike on all nodes, by name: `driver`, `cuda`, `nccl`, `kernel`.
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
    /// Process id on its node, for people only: never joined by.
    pub pid: u32,
    /// The GPU that the rank trains on, if it does.
    pub gpu: Option<GpuId>,
    /// Place in the parallel layout; ranks of one role do the same work. Empty: not declared.
    pub role: Arc<str>,
    /// What the probe runs in: `torch 2.15.0`, `demo`.
    pub framework: Arc<str>,
}

/// See [`Event::Mark`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    /// Global rank.
    pub rank: Rank,
    /// The step in which it was made.
    pub step: u64,
    /// `checkpoint`, `evaluation`, or the user's own word.
    pub kind: Arc<str>,
    /// A number the user gave with it; meaning by kind.
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

/// A reading is a value, unsupported, or an error; never zero for want of one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Reading {
    /// What it read.
    Value(f64),
    /// The reason why there is none.
    Missing(Missing),
}

/// Why a reading has no value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Missing {
    /// The device has no such signal.
    Unsupported,
    /// The library answered with this error.
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

/// What a rank was last seen doing. The order is that of a step.
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
    /// In a collective: it has arrived and waits for others.
    Wait,
    /// In the optimizer.
    Optimizer,
    /// Writing a checkpoint.
    Checkpoint,
    /// Evaluating.
    Evaluation,
}

/// See [`Event::Beat`]. Counters are since the sidecar's start and only grow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Beat {
    /// The node's ranks that have attached and not ended.
    pub ranks: Vec<Pulse>,
    /// Records that trainers dropped because a ring was full.
    pub ring_dropped: u64,
    /// Records in a ring that were torn or never finished.
    pub ring_torn: u64,
    /// Frames that the sidecar dropped because its spool was full.
    pub spool_dropped: u64,
    /// CPU time of the sidecar, nanoseconds.
    pub cpu_ns: u64,
    /// Resident memory of the sidecar, bytes.
    pub rss_bytes: u64,
    /// Time that NCCL spent in our profiler plugin, all trainers of the node together, nanoseconds.
    #[serde(default)]
    pub plugin_ns: u64,
    /// How often NCCL called it.
    #[serde(default)]
    pub plugin_calls: u64,
    /// Time spent reading each of [`Agent::sources`], nanoseconds; in most beats nothing, which says nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub source_ns: Vec<u64>,
}

/// Where one rank is, by its own node's clock.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pulse {
    /// Global rank.
    pub rank: Rank,
    /// Its epoch.
    pub restart: u32,
    /// The step it is in: one more than the last it finished.
    pub step: u64,
    /// What it was last seen doing.
    pub phase: Phase,
    /// Time since it last moved to another phase or step, nanoseconds.
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
    /// Who changed it: `start` (flags and files), `reload` (files read again), `set` (asked for while running);
    /// empty: not known.
    #[serde(default)]
    pub by: Arc<str>,
}

/// See [`Event::Exit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// Exit code as a shell gives it: 128 + n for a signal.
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
    /// Nodes that never said goodbye.
    pub missing: Vec<NodeId>,
}

/// See [`Event::Baseline`]: what the absolute axis compares with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Baseline {
    /// What it is of.
    pub of: BaselineOf,
    /// How long it took, seconds.
    pub seconds: f64,
    /// Where it comes from: `preflight`, or the run it was measured in.
    pub source: Arc<str>,
}

/// What a [`Baseline`] is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum BaselineOf {
    /// An ordinary step of the job.
    Step,
    /// Self-time of an ordinary step on a node, whatever the rank.
    SelfTime {
        /// The node.
        node: NodeId,
    },
}
