//! The plugin's cost budget: a share of elapsed time. The plugin measures its cost itself.

use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// All callbacks of a step, on all threads together, may take at most half a percent of the step.
const PPM: u32 = 5_000;
/// The callbacks of one in this many collectives are timed; each sample counts for all of them.
pub const TIMED_ONE_IN: u64 = 16;
/// Longest callback time that is counted in full. A callback that took longer was preempted by other programs. That
/// time is not the plugin's cost, and it must not be multiplied by sixteen. A normal callback takes a hundredth of this
/// limit.
const LONGEST_NS: u64 = 50_000;
/// The interval over which the cost is checked.
const OVER_NS: u64 = 2_000_000_000;

/// See the module documentation.
pub struct Budget {
    ppm: AtomicU32,
    spent_ns: AtomicU64,
    /// Start of the current interval, and the time spent before it.
    since_ns: AtomicU64,
    before_ns: AtomicU64,
}

/// Returns true if the callbacks of this collective are timed.
pub const fn is_timed(ticket: u64) -> bool {
    ticket.is_multiple_of(TIMED_ONE_IN)
}

/// Returns the time that one timed callback counts for.
pub fn of_sample(ns: u64) -> u64 {
    ns.min(LONGEST_NS) * TIMED_ONE_IN
}

impl Default for Budget {
    fn default() -> Budget {
        Budget::new()
    }
}

impl Budget {
    /// Returns a budget with nothing spent.
    pub const fn new() -> Budget {
        Budget {
            ppm: AtomicU32::new(PPM),
            spent_ns: AtomicU64::new(0),
            since_ns: AtomicU64::new(0),
            before_ns: AtomicU64::new(0),
        }
    }

    /// Sets the limit, in millionths of elapsed time.
    pub fn allow(&self, ppm: u32) {
        self.ppm.store(ppm, Relaxed);
    }

    /// Adds time spent in callbacks.
    pub fn spend(&self, ns: u64) {
        self.spent_ns.fetch_add(ns, Relaxed);
    }

    /// Returns true if the last interval exceeded the budget. Only one thread gets this result, once per interval.
    pub fn is_exceeded(&self, now_ns: u64) -> bool {
        let since = self.since_ns.load(Relaxed);
        let passed = now_ns.saturating_sub(since);
        let is_first = since == 0;
        if !is_first && passed < OVER_NS {
            return false;
        }
        if self
            .since_ns
            .compare_exchange(since, now_ns, AcqRel, Relaxed)
            .is_err()
        {
            return false;
        }
        let spent = self.spent_ns.load(Relaxed);
        let used = spent.saturating_sub(self.before_ns.swap(spent, Relaxed));
        !is_first && used.saturating_mul(1_000_000) / passed.max(1) > u64::from(self.ppm.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Once in two seconds, another program runs for a scheduler time slice. The plugin cannot avoid that, so it is not
    /// a cost.
    #[test]
    fn an_interrupted_callback_is_not_our_cost() {
        let budget = Budget::new();
        let second = 1_000_000_000;
        assert!(!budget.is_exceeded(second));
        (0..1_000).for_each(|_| budget.spend(of_sample(300)));
        budget.spend(of_sample(4_000_000));
        assert!(!budget.is_exceeded(3 * second));
        (0..1_000).for_each(|_| budget.spend(of_sample(1_000)));
        assert!(budget.is_exceeded(5 * second), "0.8 %, each its own");
    }

    #[test]
    fn more_than_half_a_per_cent_is_told_once() {
        let budget = Budget::new();
        let second = 1_000_000_000;
        budget.spend(second);
        assert!(
            !budget.is_exceeded(second),
            "what came before the first look counts for nothing"
        );
        budget.spend(9_000_000);
        assert!(!budget.is_exceeded(2 * second), "too soon to say");
        assert!(!budget.is_exceeded(3 * second), "0.45 %");
        budget.spend(11_000_000);
        assert!(budget.is_exceeded(5 * second), "0.55 %");
        assert!(!budget.is_exceeded(5 * second) && !budget.is_exceeded(7 * second));
    }
}
