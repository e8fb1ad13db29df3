//! An aggregator that was itself held up: stopped by a signal or with its machine, or waiting for its disk. What was said to
//! it meanwhile waits in sockets.

use std::sync::Arc;

use paceline_health::event::{Event, Job};

use super::Aggregator;

/// It looks at the clock every second. More than this between two looks, and it was held up.
const HELD_UP_NS: u64 = 2_000_000_000;

impl Aggregator {
    /// Whose journal it is; and that nobody's deadline passed up to now, for nobody listened.
    pub(super) fn say_whose(&mut self, now_ns: u64) {
        let paceline = Arc::from(env!("CARGO_PKG_VERSION"));
        let job = self.plan.job.clone();
        self.own(Event::Job(Job { job, paceline }), now_ns);
    }

    /// It was stopped, or its disk held it up: what was sent meanwhile waits to be read, and nobody is late.
    pub(super) fn wake(&mut self, now_ns: u64) {
        let away_ns = now_ns.saturating_sub(self.awake_ns);
        self.awake_ns = now_ns;
        if away_ns > HELD_UP_NS {
            self.say_whose(now_ns);
        }
    }
}

#[cfg(test)]
#[path = "held_up_tests.rs"]
mod tests;
