//! The tests of one rank, and its steps before them.

use serde::{Deserialize, Serialize};

use super::cusum::{Alarm, Bar, Cusum};
use super::noise;

/// State of one rank.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Track {
    pub cusum: Cusum,
    /// The latest steps of the warm-up, each with the step before: tested once they are known to be steady.
    warm_up: Vec<(f64, u64)>,
    /// Steps before the tests began, and the sum of their x.
    untested: (u32, f64),
    /// The step before its first test, and its latest step.
    tested_from: Option<u64>,
    last_step: Option<u64>,
    /// Consecutive alarms that were not this rank's fault, and the step from which the next one counts.
    refused: u32,
    heeded_from: u64,
}

/// A change is dated to the step after the last tested one, if that is at most this far: checkpoints and lost samples
/// may be in between. Longer gaps are unknown.
const NEAR: u64 = 16;
/// A refused alarm is checked again after 1, 2, 4, ... and finally every 32 steps: checking costs far more than
/// testing.
const MOST_REFUSALS: u32 = 5;

impl Track {
    /// Feeds its test with ln(self-time over peers) of `step`. `bar`: `None` while its role warms up. A rank with a
    /// finding is not tested again.
    pub fn feed(&mut self, x: f64, step: u64, bar: Option<&Bar>, is_named: bool) -> Option<Alarm> {
        let last = self.last_step.replace(step);
        let near = last.filter(|last| step.saturating_sub(*last) <= NEAR);
        let before = near.unwrap_or(step.saturating_sub(1));
        let Some(bar) = bar else {
            self.untested.0 += 1;
            self.untested.1 += x;
            self.warm_up.push((x, before));
            let surplus = self.warm_up.len().saturating_sub(noise::SETTLED_ROWS - 1);
            self.warm_up.drain(..surplus);
            return None;
        };
        for (x, before) in std::mem::take(&mut self.warm_up) {
            self.tested_from.get_or_insert(before);
            self.cusum.observe(bar, x, before);
        }
        self.tested_from.get_or_insert(before);
        if is_named {
            return None;
        }
        self.cusum.observe(bar, x, before);
        let alarm = self.cusum.alarm(bar);
        if alarm.is_none() {
            self.refused = 0;
            self.heeded_from = 0;
        }
        alarm.filter(|_| step >= self.heeded_from)
    }

    /// Refuses its alarm of `step`: as far as can be seen, it is not this rank's fault.
    pub fn refuse(&mut self, step: u64) {
        self.heeded_from = step + (1 << self.refused);
        self.refused = (self.refused + 1).min(MOST_REFUSALS);
    }

    /// The start of a change, which the test dates to `alarm.start`. If the rank has been slow in every test, and was
    /// as slow while it warmed up, it was slow from the start: since `born`, the step before the job's first.
    pub fn onset(&self, alarm: Alarm, born: Option<u64>) -> u64 {
        let never_fast = self.tested_from.is_some_and(|tests| tests >= alarm.start);
        let (steps, sum) = self.untested;
        let slow_before = steps == 0 || sum / f64::from(steps) >= alarm.alternative / 2.0;
        match born {
            Some(born) if never_fast && slow_before => born,
            _ => alarm.start,
        }
    }
}
