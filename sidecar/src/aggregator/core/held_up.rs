//! Detects pauses of the aggregator itself: its process was stopped by a signal, its machine was suspended, or its disk
//! blocked it. During a pause, incoming messages wait in sockets.

use std::sync::Arc;

use paceline_health::Time;
use paceline_health::event::{Event, Job};

use super::Aggregator;

/// A gap between two clock reads that is longer than this means that the aggregator was paused. It reads the clock
/// every second.
const HELD_UP_NS: u64 = 2_000_000_000;

impl Aggregator {
    /// Records the journal's job, and that no deadline has expired since the aggregator last received messages.
    pub(super) fn say_whose(&mut self, listened_to: Option<Time>, now_ns: u64) {
        let job = Job {
            job: self.plan.job.clone(),
            paceline: Arc::from(env!("CARGO_PKG_VERSION")),
            listened_to,
        };
        self.own(Event::Job(job), now_ns);
    }

    /// Reads the clock before any deadline is checked. A node that seemed silent during a pause of the aggregator may
    /// have been fine.
    pub(super) fn wake(&mut self, now_ns: u64) {
        let before_ns = std::mem::replace(&mut self.awake_ns, now_ns);
        if now_ns.saturating_sub(before_ns) > HELD_UP_NS {
            let listened_to = self.clock.at(before_ns);
            self.say_whose(Some(listened_to), now_ns);
        }
    }
}

#[cfg(test)]
#[path = "held_up_tests.rs"]
mod tests;
