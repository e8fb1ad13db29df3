//! What hosts say.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Reading;
use crate::id::Rank;

/// See [`super::Event::Host`]. Of the frame's node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostReading {
    /// The rank whose process was read; `None`: the node, or the job's cgroup on it.
    pub rank: Option<Rank>,
    /// What was read. A signal that is not here was not asked for.
    pub readings: BTreeMap<HostSignal, Reading>,
}

/// What can be read from a host. All are counters that only grow, unless named otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostSignal {
    /// Time in which the cgroup's CPU quota was used up.
    CpuThrottledNs,
    /// Time in which a thread was ready and no CPU was free for it.
    RunQueueNs,
    /// Time in which some task waited for memory.
    MemoryStallNs,
    /// Time in which some task waited for a disk.
    DiskWaitNs,
    /// Page faults that had to read.
    MajorFaults,
    /// Transmissions that had to be repeated: TCP segments, RDMA retransmissions and timeouts.
    NetRetransmits,
    /// Errors and discards of network ports.
    NetErrors,
    /// Rate of the slowest port of the node now, bits per second; not a counter.
    NetRateBps,
}
