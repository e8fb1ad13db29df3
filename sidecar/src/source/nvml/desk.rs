//! Records a thread's current call, so that other threads detect a call that does not return, and the cost of calls.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::host::monotonic_ns;

/// See the module.
#[derive(Debug, Default)]
pub struct Desk(Mutex<Work>);

#[derive(Debug, Default)]
struct Work {
    /// Start of the current round, and its current call.
    round: Option<(u64, &'static str)>,
    /// Time in the driver in this round.
    spent_ns: u64,
    /// The same by call, if enabled.
    by_call: Option<BTreeMap<&'static str, u64>>,
}

/// A round of calls, until it is dropped.
#[derive(Debug)]
pub struct Round<'a>(&'a Desk);

impl Desk {
    fn work(&self) -> MutexGuard<'_, Work> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a round of calls.
    pub fn begin(&self, first: &'static str) -> Round<'_> {
        let mut work = self.work();
        work.round = Some((monotonic_ns(), first));
        work.spent_ns = 0;
        Round(self)
    }

    /// Makes one call. No lock is held meanwhile.
    pub fn time<T>(&self, call: &'static str, run: impl FnOnce() -> T) -> T {
        if let Some(round) = &mut self.work().round {
            round.1 = call;
        }
        let before = monotonic_ns();
        let result = run();
        let took = monotonic_ns().saturating_sub(before);
        let mut work = self.work();
        work.spent_ns += took;
        if let Some(by_call) = &mut work.by_call {
            *by_call.entry(call).or_default() += took;
        }
        drop(work);
        result
    }

    /// Duration of the current round so far, and its current call.
    pub fn busy(&self, now_ns: u64) -> Option<(u64, &'static str)> {
        let (since_ns, call) = self.work().round?;
        Some((now_ns.saturating_sub(since_ns), call))
    }

    /// Time in the driver in this round so far, nanoseconds.
    pub fn spent_ns(&self) -> u64 {
        self.work().spent_ns
    }

    /// Enables [`Desk::by_call`].
    pub fn tell_apart(&self) {
        self.work().by_call = Some(BTreeMap::new());
    }

    /// Time in the driver by call, since enabled.
    pub fn by_call(&self) -> BTreeMap<&'static str, u64> {
        self.work().by_call.clone().unwrap_or_default()
    }
}

impl Drop for Round<'_> {
    fn drop(&mut self) {
        self.0.work().round = None;
    }
}
