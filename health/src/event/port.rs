//! What network ports say.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Reading;

/// See [`super::Event::Port`]. Of the frame's node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PortReading {
    /// As its node names it: RDMA device and port (`mlx5_0/1`), or interface (`eth0`).
    pub port: Arc<str>,
    /// What kind of network it leads to.
    pub link: PortLink,
    /// What was read. A signal that is not here was not asked for, or is as it was told last; all are told every ten
    /// seconds.
    pub readings: BTreeMap<PortSignal, Reading>,
}

/// The kind of network that a port leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PortLink {
    /// InfiniBand.
    Infiniband,
    /// RDMA over Ethernet.
    Roce,
    /// AWS Elastic Fabric Adapter.
    Efa,
    /// Ethernet without RDMA.
    Ethernet,
}

/// What can be read from a port. Counters grow since the sidecar began: a driver that is loaded anew, and a counter
/// that wraps, add nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PortSignal {
    /// Whether it can carry data now: 0 or 1.
    Up,
    /// Its rate now, bits per second.
    RateBps,
    /// How often the link was lost.
    LinkDowns,
    /// Packets that were damaged or dropped by the port, and errors of the link.
    Errors,
    /// Transmissions that had to be repeated, and peers that did not answer.
    Retransmits,
}
