//! Observations on processes and nodes that may end a job.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::id::Rank;

/// See [`super::Event::Trouble`]. Describes a problem of a process or node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trouble {
    /// The affected rank, or `None` if the whole node is affected.
    pub rank: Option<Rank>,
    /// The kind of problem.
    pub kind: TroubleKind,
    /// The message: the last lines of an exception, or the name of a signal.
    pub says: Arc<str>,
    /// The exit code of the rank's process, as a shell reports it, or `None` if not known.
    #[serde(default)]
    pub code: Option<i32>,
}

/// Kinds of problems that an observation reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TroubleKind {
    /// The command received a signal from outside that asked it to end.
    Signal,
    /// The kernel killed a process of this node or of the job's control group for lack of memory.
    OomKill,
    /// An allocation of GPU memory failed in the trainer.
    GpuMemory,
    /// An allocation of host memory failed in the trainer.
    HostMemory,
    /// A collective took longer than the trainer's timeout.
    CollectiveTimeout,
    /// A peer disconnected. This is mostly a consequence of another problem.
    PeerLost,
    /// Any other error that ended a trainer.
    Error,
    /// A rank's process ended with a nonzero code or by a signal, as reported by itself or its launcher.
    Exit,
    /// The launcher stops the workers of its node because one has failed or because the group changes.
    LauncherStop,
    /// Ranks called different collectives, or the same one with different sizes.
    CollectiveMismatch,
    /// The scheduler ends the jobbecause its time limit is reached.
    TimeLimit,
    /// The scheduler ends the job because it was canceled or because its batch script ended.
    Cancelled,
    /// The scheduler ends the job because another job needs its nodes.
    Preempted,
    /// The scheduler ends the job to requeue it.
    Requeued,
    /// The scheduler ends the job because one of its nodes failed.
    NodeFailed,
}
