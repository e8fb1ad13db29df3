//! Stops threads, and lets them sleep until then.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::host::monotonic_ns;

const SECOND_NS: u64 = 1_000_000_000;

/// See the module.
#[derive(Debug, Default)]
pub struct Halt {
    over: Mutex<bool>,
    bell: Condvar,
}

impl Halt {
    /// Requests the stop.
    pub fn set(&self) {
        *self.over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.bell.notify_all();
    }

    /// Sleeps until the clock's next whole second, or until the stop. Returns whether to stop. All once-a-second reads
    /// happen at the same time, so that a node wakes up, and sends, once.
    pub fn sleep_to_next_second(&self) -> bool {
        self.sleep(Duration::from_nanos(SECOND_NS - monotonic_ns() % SECOND_NS))
    }

    /// Sleeps for `time`, or until the stop. Returns whether to stop.
    pub fn sleep(&self, time: Duration) -> bool {
        let over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        let result = self.bell.wait_timeout_while(over, time, |over| !*over);
        *result.unwrap_or_else(PoisonError::into_inner).0
    }
}
