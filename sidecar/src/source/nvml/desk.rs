//! Where a thread notes which call it is in, so that others see when one does not come back, and what calls cost.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::host::monotonic_ns;

/// See the module.
#[derive(Debug, Default)]
pub struct Desk(Mutex<Work>);

#[derive(Debug, Default)]
struct Work {
    /// When the round that is under way began, and the call that it is in.
    round: Option<(u64, &'static str)>,
    /// Time in the driver in this round.
    spent_ns: u64,
    /// The same by call, where somebody wants to know.
    by_call: Option<BTreeMap<&'static str, u64>>,
}

/// A round of calls, until it is dropped.
#[derive(Debug)]
pub struct Round<'a>(&'a Desk);

impl Desk {
    fn work(&self) -> MutexGuard<'_, Work> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A round of calls begins.
    pub fn begin(&self, first: &'static str) -> Round<'_> {
        let mut work = self.work();
        work.round = Some((monotonic_ns(), first));
        work.spent_ns = 0;
        Round(self)
    }

    /// Does one call. Nothing is held while it runs.
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

    /// For how long the round under way has run, and the call it is in.
    pub fn busy(&self, now_ns: u64) -> Option<(u64, &'static str)> {
        let (since_ns, call) = self.work().round?;
        Some((now_ns.saturating_sub(since_ns), call))
    }

    /// Time in the driver in this round so far, nanoseconds.
    pub fn spent_ns(&self) -> u64 {
        self.work().spent_ns
    }

    /// From now on calls are told apart.
    pub fn tell_apart(&self) {
        self.work().by_call = Some(BTreeMap::new());
    }

    /// Time in the driver since then, by call.
    pub fn by_call(&self) -> BTreeMap<&'static str, u64> {
        self.work().by_call.clone().unwrap_or_default()
    }
}

impl Drop for Round<'_> {
    fn drop(&mut self) {
        self.0.work().round = None;
    }
}
