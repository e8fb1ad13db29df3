//! Readings of network ports.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Reading;

/// See [`super::Event::Port`]. The port belongs to the frame's node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PortReading {
    /// The node's name for the port: RDMA device and port (`mlx5_0/1`), or interface (`eth0`).
    pub port: Arc<str>,
    /// Its kind of network.
    pub link: PortLink,
    /// The readings. A signal is missing if it was not requested or has not changed. All signals are sent every ten
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

/// Signals of a port. Counters start at zero when the sidecar starts. Resets by a reloaded driver and wraparounds do
/// not add to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PortSignal {
    /// 1 if the link is up, else 0.
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
