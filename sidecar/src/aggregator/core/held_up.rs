//! Pauses of the aggregator itself: stopped by a signal or with its machine, or blocked on its disk. Incoming messages
//! wait in sockets meanwhile.

use std::sync::Arc;

use paceline_health::Time;
use paceline_health::event::{Event, Job};

use super::Aggregator;

/// It reads the clock every second. A longer gap between two reads means that it was paused.
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

    /// Reads the clock before any deadline is checked: a node's silence during a pause proves nothing.
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
