//! Removal of journal lines to keep it within its size limit on disk.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Event;
use crate::time::Time;

/// See [`super::Event::Thinned`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thinned {
    /// Whether this line replaces the removed ones; otherwise it describes an earlier part of the journal.
    pub here: bool,
    /// More than telemetry was removed, and the range begins with the journal: it counts all removals so far.
    pub whole: bool,
    /// The first entry of the range.
    pub from: u64,
    /// The last entry.
    pub to: u64,
    /// The time of that entry.
    pub to_ns: Time,
    /// Number of removed lines, by event name.
    pub gone: BTreeMap<Arc<str>, u64>,
    /// Of these, frames numbered by a sidecar: they were not lost in transit.
    pub frames: u64,
    /// The journal's size limit, bytes.
    pub bound_bytes: u64,
}

impl Thinned {
    /// Removed lines: telemetry, and all others.
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

/// Frequent events, by their name in a line.
const TELEMETRY: [&str; 7] = ["step", "beat", "comm", "collectives", "gpu", "host", "port"];

/// [`Event::is_telemetry`] by the event's name.
pub fn is_telemetry(kind: &str) -> bool {
    TELEMETRY.contains(&kind)
}

impl Event {
    /// Whether it is telemetry, which is sent in batches and deleted first when space is short. Faults, starts and ends
    /// are sent at once and kept.
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
