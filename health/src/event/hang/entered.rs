//! The last collectives that a stalled rank enqueued.

use serde::{Deserialize, Serialize};

use crate::id::Rank;

/// Most communicators per rank.
pub const MAX_ENTERED: usize = 32;

/// See [`crate::event::Event::Entered`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entered {
    /// Global rank.
    pub rank: Rank,
    /// Restart count of the rank's epoch.
    pub restart: u32,
    /// The last collectives by communicator, at most [`MAX_ENTERED`]. The communicator with the latest collective is
    /// first.
    pub comms: Vec<CommEntered>,
    /// True if all collectives that the rank ever enqueued were observed. The rank has then not entered any collective
    /// that is missing here.
    pub whole: bool,
}

/// The last collectives that a rank enqueued in one communicator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommEntered {
    /// The communicator.
    pub comm: u64,
    /// The last collective of each function, latest first.
    pub each: Vec<LastCollective>,
    /// Time since the latest one was enqueued, nanoseconds.
    pub ago_ns: u64,
}

/// A collective; written as `[function, sequence, bytes]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u8, u64, u64)", into = "(u8, u64, u64)")]
pub struct LastCollective {
    /// The function, numbered as in [`crate::event::Collective::function`]; 4: broadcast, 5: reduce.
    pub function: u8,
    /// Its sequence number among the collectives of this function in the communicator: the same on all members.
    pub sequence: u64,
    /// Bytes of payload.
    pub bytes: u64,
}

impl LastCollective {
    /// Returns the function's name, for example `all_reduce`, or `None` if the number is unknown.
    pub fn known_name(&self) -> Option<&'static str> {
        Some(match self.function {
            1 => "all_reduce",
            2 => "reduce_scatter",
            3 => "all_gather",
            4 => "broadcast",
            5 => "reduce",
            _ => return None,
        })
    }

    /// Returns the function's name, or `collective` if the number is unknown.
    pub fn name(&self) -> &'static str {
        self.known_name().unwrap_or("collective")
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
