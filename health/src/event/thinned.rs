//! What of a journal is not there any more, so that it keeps within its room on the disk.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Event;
use crate::time::Time;

/// See [`super::Event::Thinned`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thinned {
    /// Whether this line stands where the others stood; else it tells of a part of the journal that lies before it.
    pub here: bool,
    /// Not only telemetry is gone, and the part begins with the journal: it counts what went of it at any time.
    pub whole: bool,
    /// The first entry of that part.
    pub from: u64,
    /// The last.
    pub to: u64,
    /// When that was taken.
    pub to_ns: Time,
    /// How many lines are gone, by the name of their event.
    pub gone: BTreeMap<Arc<str>, u64>,
    /// Of these, frames that a sidecar had numbered: they were not lost on the way.
    pub frames: u64,
    /// The room that the journal is given, bytes.
    pub bound_bytes: u64,
}

impl Thinned {
    /// Lines that are gone: telemetry, and all others.
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

/// Events of which there are many alike, by the names that they have in a line.
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
