//! Readings of network ports.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Reading;

/// See [`super::Event::Port`]. Of the frame's node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PortReading {
    /// The node's name for it: RDMA device and port (`mlx5_0/1`), or interface (`eth0`).
    pub port: Arc<str>,
    /// Its kind of network.
    pub link: PortLink,
    /// The readings. A signal that is missing was not requested, or has not changed; all signals are sent every ten
    /// seconds.
    pub readings: BTreeMap<PortSignal, Reading>,
}

/// The kind of network of a port.
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

/// Signals of a port. Counters grow since the sidecar's start: a reloaded driver and a counter that wraps add nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PortSignal {
    /// Whether the link is up: 0 or 1.
    Up,
    /// Current rate, bits per second.
    RateBps,
    /// How often the link was lost.
    LinkDowns,
    /// Packets that were damaged or dropped by the port, and link errors.
    Errors,
    /// Retransmissions, and peers that did not respond.
    Retransmits,
}
