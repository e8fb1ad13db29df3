//! A rank's progress before its first step.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::id::Rank;

/// See [`super::Event::Start`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// Global rank.
    pub rank: Rank,
    /// Its epoch.
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
    /// Its process is gone.
    Gone,
    /// It runs and has not tried to connect to its peers.
    Loading,
    /// In `init_process_group`: it waits for its peers.
    Joining,
    /// It has joined its peers and runs other code.
    Joined,
    /// In a collective: it waits for its peers.
    Waiting,
    /// It has finished its first step.
    Trained,
}

impl StartStage {
    /// Whether it waits for other ranks.
    pub fn waits(self) -> bool {
        matches!(self, StartStage::Joining | StartStage::Waiting)
    }
}
