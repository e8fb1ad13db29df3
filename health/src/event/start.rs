//! A rank's progress before its first step.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::id::Rank;

/// See [`super::Event::Start`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// Global rank.
    pub rank: Rank,
    /// Restart count of the rank's epoch.
    pub restart: u32,
    /// Rank on its node.
    pub local_rank: u32,
    /// Ranks in the job.
    pub world_size: u32,
    /// The stage it has reached.
    pub stage: StartStage,
    /// The current call, if any: `init_process_group`, `barrier`.
    pub call: Arc<str>,
    /// Time in this stage, nanoseconds.
    pub idle_ns: u64,
}

/// Stages of a rank before its first step, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartStage {
    /// Its process has ended.
    Gone,
    /// The process runs and has not tried to connect to its peers.
    Loading,
    /// It waits for its peers in `init_process_group`.
    Joining,
    /// It has joined its peers and runs other code.
    Joined,
    /// It waits for its peers in a collective.
    Waiting,
    /// It has finished its first step.
    Trained,
}

impl StartStage {
    /// Returns true if a rank in this stage waits for other ranks.
    pub fn waits(self) -> bool {
        matches!(self, StartStage::Joining | StartStage::Waiting)
    }
}
