//! What may end a job, as a process or a node met it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::id::Rank;

/// See [`super::Event::Trouble`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trouble {
    /// The rank that met it; `None`: the node.
    pub rank: Option<Rank>,
    /// Of what kind it is.
    pub kind: TroubleKind,
    /// What was said of it: an exception's last lines, a signal's name.
    pub says: Arc<str>,
    /// The code with which the rank's process ended, as a shell gives it; `None`: not known.
    #[serde(default)]
    pub code: Option<i32>,
}

/// Kinds of trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TroubleKind {
    /// The command was asked to end by a signal from outside.
    Signal,
    /// The kernel ended a process of this node or of the job's control group because of a lack of memory.
    OomKill,
    /// The trainer could not have as much memory of its GPU as it wanted.
    GpuMemory,
    /// The trainer could not have as much memory of the host as it wanted.
    HostMemory,
    /// A collective took longer than the trainer waits.
    CollectiveTimeout,
    /// A peer went away in the middle: mostly a consequence.
    PeerLost,
    /// Any other error that ended a trainer.
    Error,
    /// The process of a rank ended with a code other than zero, or by a signal, as it or its launcher said.
    Exit,
    /// The launcher ends the workers of its node: one has failed, or the group changes.
    LauncherStop,
    /// Ranks called different collectives, or one with different sizes.
    CollectiveMismatch,
    /// The scheduler ends the job: its time is over.
    TimeLimit,
    /// The scheduler ends the job: somebody cancelled it, or its batch script ended.
    Cancelled,
    /// The scheduler ends the job: another needs its place.
    Preempted,
    /// The scheduler ends the job to start it again.
    Requeued,
    /// The scheduler ends the job: one of its nodes failed.
    NodeFailed,
}
