//! Single collectives: told of a communicator only when, and for as long as, that is asked for.

use serde::{Deserialize, Serialize};

use crate::id::Rank;

/// See [`super::Event::Collectives`]: what one rank did in one communicator in one step, collective by collective. The
/// sums ([`super::Comm`]) of the same step follow it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collectives {
    /// Global rank.
    pub rank: Rank,
    /// Its epoch.
    pub restart: u32,
    /// The step in which they ran.
    pub step: u64,
    /// The communicator.
    pub comm: u64,
    /// Those that all members meet in, in their order.
    pub each: Vec<Collective>,
    /// Those of the step that are not in `each`: their times were lost, or they were too many.
    pub left_out: u32,
}

/// Collectives of one communicator and step that are told one by one, at most.
pub const MOST_OF_STEP: usize = 1 << 10;

/// One collective; written as `[function, sequence, bytes, dur_ns]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u8, u64, u64, u64)", into = "(u8, u64, u64, u64)")]
pub struct Collective {
    /// What it does: 1 all-reduce, 2 reduce-scatter, 3 all-gather.
    pub function: u8,
    /// Its number among those of its function in the communicator: the same on all members.
    pub sequence: u64,
    /// Bytes of payload.
    pub bytes: u64,
    /// Time in it, waiting for others and transfer together.
    pub dur_ns: u64,
}

impl From<(u8, u64, u64, u64)> for Collective {
    fn from((function, sequence, bytes, dur_ns): (u8, u64, u64, u64)) -> Collective {
        Collective {
            function,
            sequence,
            bytes,
            dur_ns,
        }
    }
}

impl From<Collective> for (u8, u64, u64, u64) {
    fn from(did: Collective) -> (u8, u64, u64, u64) {
        (did.function, did.sequence, did.bytes, did.dur_ns)
    }
}

/// That each collective of a communicator should be told, and for how long: what the detector asks of the sidecars.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Want {
    /// The communicator.
    pub comm: u64,
    /// The epoch.
    pub restart: u32,
    /// The last step of which they are told.
    pub until: u64,
}
