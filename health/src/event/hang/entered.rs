//! The last collectives that a rank which does not move has enqueued.

use serde::{Deserialize, Serialize};

use crate::id::Rank;

/// Most communicators of which a rank tells.
pub const MAX_ENTERED: usize = 32;

/// See [`crate::event::Event::Entered`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entered {
    /// Global rank.
    pub rank: Rank,
    /// Its epoch.
    pub restart: u32,
    /// By communicator, the one with the latest first, at most [`MAX_ENTERED`].
    pub comms: Vec<CommEntered>,
    /// All that the rank ever enqueued was seen: what is not here, it has not entered.
    pub whole: bool,
}

/// What a rank has enqueued last in one communicator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommEntered {
    /// The communicator.
    pub comm: u64,
    /// The last collective of each function, the latest first.
    pub each: Vec<LastCollective>,
    /// Since the latest was enqueued, nanoseconds.
    pub ago_ns: u64,
}

/// A collective; written as `[function, sequence, bytes]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u8, u64, u64)", into = "(u8, u64, u64)")]
pub struct LastCollective {
    /// What it does, by the numbers of [`crate::event::Collective::function`]; 4: broadcast, 5: reduce.
    pub function: u8,
    /// Its number among those of its function in the communicator: the same on all members.
    pub sequence: u64,
    /// Bytes of payload.
    pub bytes: u64,
}

impl LastCollective {
    /// `all_reduce`.
    pub fn name(&self) -> &'static str {
        match self.function {
            1 => "all_reduce",
            2 => "reduce_scatter",
            3 => "all_gather",
            4 => "broadcast",
            5 => "reduce",
            _ => "collective",
        }
    }
}

impl From<(u8, u64, u64)> for LastCollective {
    fn from((function, sequence, bytes): (u8, u64, u64)) -> LastCollective {
        LastCollective {
            function,
            sequence,
            bytes,
        }
    }
}

impl From<LastCollective> for (u8, u64, u64) {
    fn from(last: LastCollective) -> (u8, u64, u64) {
        (last.function, last.sequence, last.bytes)
    }
}
