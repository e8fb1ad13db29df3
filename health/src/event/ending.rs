//! Observations on processes and nodes that may end a job.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::id::Rank;

/// See [`super::Event::Trouble`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trouble {
    /// The rank with the trouble; `None`: the node.
    pub rank: Option<Rank>,
    /// Its kind.
    pub kind: TroubleKind,
    /// The message: an exception's last lines, a signal's name.
    pub says: Arc<str>,
    /// The exit code of the rank's process, as a shell reports it; `None`: not known.
    #[serde(default)]
    pub code: Option<i32>,
}

/// Kinds of trouble.
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
    /// A peer disconnected: mostly a consequence.
    PeerLost,
    /// Any other error that ended a trainer.
    Error,
    /// A rank's process ended with a nonzero code or by a signal, as reported by itself or its launcher.
    Exit,
    /// The launcher stops the workers of its node: one has failed, or the group changes.
    LauncherStop,
    /// Ranks called different collectives, or the same one with different sizes.
    CollectiveMismatch,
    /// The scheduler ends the job: its time limit is reached.
    TimeLimit,
    /// The scheduler ends the job: it was canceled, or its batch script ended.
    Cancelled,
    /// The scheduler ends the job: another job needs its nodes.
    Preempted,
    /// The scheduler ends the job to requeue it.
    Requeued,
    /// The scheduler ends the job: one of its nodes failed.
    NodeFailed,
}
