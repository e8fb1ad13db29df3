//! Frames: an event with its node, sequence number and provenance.

use serde::{Deserialize, Serialize};

use crate::event::Event;
use crate::id::NodeId;
use crate::time::Time;

/// Schema version of [`Frame`] and everything in it. A reader accepts this version and older ones.
pub const SCHEMA_VERSION: u16 = 1;

/// The origin of an event. Only a verdict whose evidence is all live may act. Variants are ordered from most to least
/// trusted, so that the provenance of a verdict is the maximum over its evidence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Provenance {
    /// Observed on a real machine now.
    #[default]
    Live,
    /// Sent again from an old journal by the replay source.
    Replay,
    /// Injected by hand (`paceline inject`).
    Injected,
    /// From a simulator.
    Sim,
}

/// The value of [`Frame::agent`] for frames from the aggregator itself, including those that it creates on behalf of
/// other nodes.
pub const AGGREGATOR: u64 = 0;

/// One event on its way from a node to the detector.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Frame {
    /// Schema version of the writer.
    pub v: u16,
    /// The node that the event is about.
    pub node: NodeId,
    /// Identifies one run of that node's sidecar. Sequence numbers restart with each run. It is [`AGGREGATOR`] if the
    /// frame is not from a sidecar.
    pub agent: u64,
    /// Sequence number within that run of the sidecar, from 1. A gap means lost frames.
    pub seq: u64,
    /// The event's origin.
    pub provenance: Provenance,
    /// The event.
    pub event: Event,
}

/// A frame with the number and time that the aggregator assigned. Each entry is one line of the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Number of the entry in the journal, from 1.
    pub n: u64,
    /// When the aggregator received it.
    pub at_ns: Time,
    /// The frame itself.
    pub frame: Frame,
}
