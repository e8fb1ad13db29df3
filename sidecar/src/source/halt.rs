//! Telling threads to end, and letting them sleep until then.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// See the module.
#[derive(Debug, Default)]
pub struct Halt {
    over: Mutex<bool>,
    bell: Condvar,
}

impl Halt {
    /// It is over.
    pub fn set(&self) {
        *self.over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.bell.notify_all();
    }

    /// Sleeps for `time`, or until it is over. Says whether it is.
    pub fn sleep(&self, time: Duration) -> bool {
        let over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        let result = self.bell.wait_timeout_while(over, time, |over| !*over);
        *result.unwrap_or_else(PoisonError::into_inner).0
    }
}
