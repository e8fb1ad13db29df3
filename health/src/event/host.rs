//! Readings of hosts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Reading;
use crate::id::Rank;

/// See [`super::Event::Host`]. The host is the frame's node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostReading {
    /// The rank whose process was read. `None` for the node, or for the job's cgroup on it.
    pub rank: Option<Rank>,
    /// The readings. A missing signal was not requested.
    pub readings: BTreeMap<HostSignal, Reading>,
}

/// Signals of a host. All are monotonic counters unless noted otherwise.
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
    /// Major page faults.
    MajorFaults,
    /// Retransmitted TCP segments, RDMA retransmissions and RDMA timeouts.
    NetRetransmits,
    /// Errors and discards of network ports.
    NetErrors,
    /// Current rate of the node's slowest port, bits per second. It is not a counter.
    NetRateBps,
}
