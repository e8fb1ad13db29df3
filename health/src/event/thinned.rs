//! Records that lines were removed from the journal to keep it within its size limit on disk.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Event;
use crate::time::Time;

/// See [`super::Event::Thinned`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thinned {
    /// True if this line replaces the removed ones. Otherwise, it describes an earlier part of the journal.
    pub here: bool,
    /// True if more than telemetry was removed and the range begins at the start of the journal. The line then counts
    /// all removals so far.
    pub whole: bool,
    /// Number of the first entry of the range.
    pub from: u64,
    /// Number of the last entry of the range.
    pub to: u64,
    /// Time of the last entry.
    pub to_ns: Time,
    /// Number of removed lines, by event name.
    pub gone: BTreeMap<Arc<str>, u64>,
    /// How many of the removed lines were frames numbered by a sidecar. Gaps in those numbers do not mean that frames
    /// were lost in transit.
    pub frames: u64,
    /// The journal's size limit, bytes.
    pub bound_bytes: u64,
}

impl Thinned {
    /// Returns the numbers of removed lines: telemetry, and all others.
    pub fn lines(&self) -> (u64, u64) {
        let of = |telemetry: bool| {
            let kinds = self
                .gone
                .iter()
                .filter(|(kind, _)| is_telemetry(kind) == telemetry);
            kinds.map(|(_, lines)| *lines).fold(0, u64::saturating_add)
        };
        (of(true), of(false))
    }
}

/// The events that count as telemetry, by their name in a line.
const TELEMETRY: [&str; 7] = ["step", "beat", "comm", "collectives", "gpu", "host", "port"];

/// Like [`Event::is_telemetry`], but for an event's name.
pub fn is_telemetry(kind: &str) -> bool {
    TELEMETRY.contains(&kind)
}

impl Event {
    /// Returns true if the event is telemetry, which is sent in batches and deleted first when space is short. Faults,
    /// starts and ends are sent at once and kept.
    pub fn is_telemetry(&self) -> bool {
        matches!(
            self,
            Event::Step(_)
                | Event::Beat(_)
                | Event::Comm(_)
                | Event::Collectives(_)
                | Event::Gpu(_)
                | Event::Host(_)
                | Event::Port(_)
        )
    }
}
