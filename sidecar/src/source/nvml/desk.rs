//! Records a thread's current call, so that other threads can detect a call that does not return. Also records what
//! calls cost.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::host::monotonic_ns;

/// The record of one thread; see the module.
#[derive(Debug, Default)]
pub struct Desk(Mutex<Work>);

#[derive(Debug, Default)]
struct Work {
    /// Start time of the current round, and the name of its current call.
    round: Option<(u64, &'static str)>,
    /// Time spent in the driver in this round.
    spent_ns: u64,
    /// Time spent in the driver by call, if enabled.
    by_call: Option<BTreeMap<&'static str, u64>>,
}

/// A round of calls. It ends when this value is dropped.
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

    /// Makes one call. Holds no lock during the call.
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

    /// Returns the duration of the current round so far, and the name of its current call.
    pub fn busy(&self, now_ns: u64) -> Option<(u64, &'static str)> {
        let (since_ns, call) = self.work().round?;
        Some((now_ns.saturating_sub(since_ns), call))
    }

    /// Returns the time spent in the driver in this round so far, in nanoseconds.
    pub fn spent_ns(&self) -> u64 {
        self.work().spent_ns
    }

    /// Enables [`Desk::by_call`].
    pub fn tell_apart(&self) {
        self.work().by_call = Some(BTreeMap::new());
    }

    /// Returns the time spent in the driver by call since [`Desk::tell_apart`].
    pub fn by_call(&self) -> BTreeMap<&'static str, u64> {
        self.work().by_call.clone().unwrap_or_default()
    }
}

impl Drop for Round<'_> {
    fn drop(&mut self) {
        self.0.work().round = None;
    }
}
