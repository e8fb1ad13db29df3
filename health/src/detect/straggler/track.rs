//! The tests of one rank, and its steps before the tests began.

use serde::{Deserialize, Serialize};

use super::cusum::{Alarm, Bar, Cusum};
use super::noise;

/// The test state of one rank.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Track {
    pub cusum: Cusum,
    /// The latest steps of the warm-up, each with the step before it. They are tested once they are known to be steady.
    warm_up: Vec<(f64, u64)>,
    /// Number of steps before the tests began, and the sum of their x.
    untested: (u32, f64),
    /// The step before the first test, and the latest step.
    tested_from: Option<u64>,
    last_step: Option<u64>,
    /// Number of consecutive alarms that were refused, and the step from which the next alarm counts.
    refused: u32,
    heeded_from: u64,
}

/// A change is dated to the step after the last tested one if that is at most this many steps earlier, because
/// checkpoints and lost samples may be in between. After a longer gap the start of the change is not known.
const NEAR: u64 = 16;
/// Limit on refusals. A refused alarm is checked again after 1, 2, 4, ... and finally every 32 steps, because a check
/// costs far more than a test.
const MOST_REFUSALS: u32 = 5;

impl Track {
    /// Feeds the rank's test with ln(self-time over peers) of `step`. `bar` is `None` while the role warms up. A rank
    /// that has a finding (`is_named`) is not tested again.
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

    /// Refuses the rank's alarm at `step` because, as far as can be seen, the slowness is not this rank's fault.
    pub fn refuse(&mut self, step: u64) {
        self.heeded_from = step + (1 << self.refused);
        self.refused = (self.refused + 1).min(MOST_REFUSALS);
    }

    /// Returns the start of a change, which the test dates to `alarm.start`. If the rank has been slow in every test
    /// and was as slow while it warmed up, it was slow from the start. It then returns `born`, the step before the
    /// job's first.
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
