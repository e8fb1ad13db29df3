//! An aggregator that was itself held up: stopped by a signal or with its machine, or waiting for its disk. What was said to
//! it meanwhile waits in sockets.

use std::sync::Arc;

use paceline_health::Time;
use paceline_health::event::{Event, Job};

use super::Aggregator;

/// It looks at the clock every second. More than this between two looks, and it was held up.
const HELD_UP_NS: u64 = 2_000_000_000;

impl Aggregator {
    /// Whose journal it is; and that nobody's deadline passed since it last listened.
    pub(super) fn say_whose(&mut self, listened_to: Option<Time>, now_ns: u64) {
        let job = Job {
            job: self.plan.job.clone(),
            paceline: Arc::from(env!("CARGO_PKG_VERSION")),
            listened_to,
        };
        self.own(Event::Job(job), now_ns);
    }

    /// Looks at the clock, before anything is judged by it: of whom nothing was heard while it was held up, nobody can say.
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
