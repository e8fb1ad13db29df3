//! A stop request that also wakes sleeping threads.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::host::monotonic_ns;

const SECOND_NS: u64 = 1_000_000_000;

/// The stop request; see the module.
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

    /// Sleeps until the clock's next whole second, or until the stop. Returns true if the thread must stop. All threads
    /// that read once a second wake at the same time, so that a node wakes up and sends only once a second.
    pub fn sleep_to_next_second(&self) -> bool {
        self.sleep(Duration::from_nanos(SECOND_NS - monotonic_ns() % SECOND_NS))
    }

    /// Sleeps for `time`, or until the stop. Returns true if the thread must stop.
    pub fn sleep(&self, time: Duration) -> bool {
        let over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        let result = self.bell.wait_timeout_while(over, time, |over| !*over);
        *result.unwrap_or_else(PoisonError::into_inner).0
    }
}
