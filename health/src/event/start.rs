//! Where a rank stands before its first step.

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
    /// How far it has got.
    pub stage: StartStage,
    /// In which call, where it is in one: `init_process_group`, `barrier`.
    pub call: Arc<str>,
    /// Time since it got there, nanoseconds.
    pub idle_ns: u64,
}

/// How far a rank has got before its first step, in that order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartStage {
    /// Its process is gone.
    Gone,
    /// It runs and has not tried to meet others.
    Loading,
    /// In `init_process_group`: it waits for the others.
    Joining,
    /// It has met the others and does something of its own.
    Joined,
    /// In a collective: it waits for the others.
    Waiting,
    /// It has made its first step.
    Trained,
}

impl StartStage {
    /// Whether it waits for other ranks.
    pub fn waits(self) -> bool {
        matches!(self, StartStage::Joining | StartStage::Waiting)
    }
}
