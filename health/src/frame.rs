//! A frame: an event, who saw it, in which order, and whether it is real.

use serde::{Deserialize, Serialize};

use crate::event::Event;
use crate::id::NodeId;
use crate::time::Time;

/// Version of the schema of [`Frame`] and of everything in it. A reader takes this version and older ones.
pub const SCHEMA_VERSION: u16 = 1;

/// Where an event came from. Only a verdict whose evidence is all live may act. The order is from most to least
/// trusted, so that the provenance of a verdict is the largest of its evidence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Provenance {
    /// Seen on a real machine now.
    #[default]
    Live,
    /// Sent again from an old journal by the replay source.
    Replay,
    /// Put in by hand (`paceline inject`).
    Injected,
    /// Made by a simulator.
    Sim,
}

/// Incarnation under which the aggregator itself speaks, also of another node.
pub const AGGREGATOR: u64 = 0;

/// One event on its way from a node to the detector.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Frame {
    /// Schema version of the writer.
    pub v: u16,
    /// The node that saw it.
    pub node: NodeId,
    /// Incarnation of that node's sidecar; its sequence starts anew with each. [`AGGREGATOR`]: not of a sidecar.
    pub agent: u64,
    /// Sequence number within the incarnation, from 1, without holes unless frames were lost.
    pub seq: u64,
    /// Real or not.
    pub provenance: Provenance,
    /// What was seen.
    pub event: Event,
}

/// A frame in the order and at the time that the aggregator fixed: one line of the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Number of the entry in the journal, from 1.
    pub n: u64,
    /// When the aggregator took it.
    pub at_ns: Time,
    /// The frame itself.
    pub frame: Frame,
}
