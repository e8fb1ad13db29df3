//! Limits the rate of printed lines: a burst is allowed, and then one line per interval. New critical findings have a
//! separate allowance.

use std::time::{Duration, Instant};

/// Number of lines that may be printed at once.
const BURST: u32 = 5;
/// After a burst, one more line is permitted per interval.
const REFILL: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct Pace {
    usual: Allowance,
    urgent: Allowance,
    /// Number of lines held back since the last line that reported this number.
    held: u64,
}

/// A token bucket.
#[derive(Debug, Default)]
struct Allowance {
    used: u32,
    /// Time of the last refill.
    since: Option<Instant>,
}

impl Allowance {
    fn refill(&mut self, now: Instant) {
        let since = *self.since.get_or_insert(now);
        let free = now.duration_since(since).as_secs() / REFILL.as_secs();
        let free = u32::try_from(free).unwrap_or(u32::MAX);
        if free >= self.used {
            (self.used, self.since) = (0, None);
        } else {
            self.used -= free;
            self.since = Some(since + REFILL * free);
        }
    }

    fn take(&mut self, now: Instant) -> bool {
        self.refill(now);
        let is_free = self.used < BURST;
        if is_free {
            self.used += 1;
            self.since.get_or_insert(now);
        }
        is_free
    }
}

impl Pace {
    /// Returns true if a line may be printed. Otherwise the line is counted as held back.
    pub(super) fn admit(&mut self, is_urgent: bool, now: Instant) -> bool {
        let is_free = is_urgent && self.urgent.take(now) || self.usual.take(now);
        self.held += u64::from(!is_free);
        is_free
    }

    /// Returns the number of lines held back, if a line that reports it may be printed.
    pub(super) fn take_held(&mut self, now: Instant) -> Option<u64> {
        (self.held > 0 && self.usual.take(now)).then(|| std::mem::take(&mut self.held))
    }

    /// Returns the time when [`Pace::take_held`] may return a number.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        let since = self.usual.since.filter(|_| self.held > 0)?;
        Some(since + REFILL)
    }
}
