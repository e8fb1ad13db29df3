//! The sequential test of whether a rank is persistently slower than its peers.
//!
//! It is a one-sided CUSUM of the log-likelihood ratio of "at most this slow" against each of a mixture of alternatives
//! (Page 1954, Lorden 1971). To limit the effect of heavy tails, each step's increment is bounded. The observation
//! itself is never bounded.

use serde::{Deserialize, Serialize};

use super::noise::Spread;
use crate::policy::StragglerThresholds;

/// Maximum number of alternatives in a table.
pub const MAX_ALTERNATIVES: usize = 8;

/// Constants of the test for the present noise and size of the job.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Bar {
    /// ln of the tolerated ratio.
    null: f64,
    /// ln of each alternative. Only the first `len` are used.
    alternatives: [f64; MAX_ALTERNATIVES],
    len: usize,
    /// Alarm threshold.
    pub height: f64,
    /// Maximum of a sum. It is limited so that an ignored alarm outlasts its reason by only a few steps.
    most: f64,
    /// Maximum that one step may add or subtract.
    bound: f64,
    pub sigma: f64,
    /// Mean of a healthy rank.
    pub center: f64,
}

/// An observation counts as at most this many sigma beyond the alternative, because anything further out reflects only
/// the tail of the noise.
const BEYOND: f64 = 3.0;

impl Bar {
    /// Returns the bar that limits the false alarms of a whole job. The alarm threshold is ln(tests a day / false
    /// alarms a day).
    pub fn new(table: &StragglerThresholds, ranks: usize, step_s: f64, spread: &Spread) -> Bar {
        let mut alternatives = [0.0; MAX_ALTERNATIVES];
        // Alternatives within the tolerated ratio are not tested.
        let beyond = table
            .alternatives
            .iter()
            .filter(|ratio| **ratio > table.tolerated_ratio);
        let mut len = 0;
        for (slot, ratio) in alternatives.iter_mut().zip(beyond) {
            *slot = ratio.ln();
            len += 1;
        }
        let steps_a_day = 86_400.0 / step_s.max(1e-4);
        let tests_a_day = ranks.max(1) as f64 * steps_a_day;
        let height = (tests_a_day / table.false_alarms_per_day).ln().max(1.0);
        // The height that a single alternative must reach on its own.
        let alone = height + (len.max(1) as f64).ln();
        // An outlier that healthy ranks show at some rate is no stronger evidence than that rate. The factor beyond 1
        // makes `min_steps` full steps reach the height despite rounding.
        let full = alone / f64::from(table.min_steps.max(1)) * (1.0 + 1e-9);
        let bound = full.min(-spread.outliers.ln());
        Bar {
            null: table.tolerated_ratio.ln(),
            alternatives,
            len,
            height,
            most: alone + bound,
            bound,
            sigma: spread.sigma,
            center: spread.center,
        }
    }

    /// Returns the bounded log-likelihood ratio of mean `to` against mean `from`. Bounding the increment limits the
    /// effect of heavy tails, but does not hide large changes where noise is small.
    fn increment(&self, from: f64, to: f64, x: f64) -> f64 {
        let (shift, sigma) = (to - from, self.sigma);
        let gain = shift * (x - self.center - (to + from) / 2.0) / (sigma * sigma);
        let most = shift.abs() * (shift.abs() / 2.0 + BEYOND * sigma) / (sigma * sigma);
        gain.clamp(-self.bound, self.bound.min(most))
    }
}

/// The running sum of one alternative, and the step before the sum left zero.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Sum {
    height: f64,
    start: u64,
}

/// The test of one rank.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Cusum {
    sums: [Sum; MAX_ALTERNATIVES],
}

/// An alarm, with the step before the change began.
#[derive(Clone, Copy, Debug)]
pub struct Alarm {
    pub start: u64,
    /// ln of the alternative that fits best.
    pub alternative: f64,
}

/// A test in progress: the step before its sum left zero, the log-likelihood ratio since then, and how much is missing
/// for an alarm.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    pub start: u64,
    pub height: f64,
    pub missing: f64,
}

impl Cusum {
    /// Takes one observation, which is ln of self-time over the peers'. `before` is the step before it.
    pub fn observe(&mut self, bar: &Bar, x: f64, before: u64) {
        for (sum, alternative) in self.sums.iter_mut().zip(bar.alternatives).take(bar.len) {
            if sum.height <= 0.0 {
                sum.start = before;
            }
            sum.height = (sum.height + bar.increment(bar.null, alternative, x)).clamp(0.0, bar.most);
        }
    }

    /// Returns the alarm, if the bar is reached.
    pub fn alarm(&self, bar: &Bar) -> Option<Alarm> {
        let sums = self.sums.iter().zip(bar.alternatives).take(bar.len);
        let (sum, alternative) = sums.max_by(|(a, _), (b, _)| a.height.total_cmp(&b.height))?;
        // The mean likelihood ratio of the mixture is at most its largest one, so comparing the largest with the bar is
        // safe.
        if sum.height < bar.height {
            return None;
        }
        let sums = self.sums.iter().take(bar.len);
        let mean = sums.map(|other| (other.height - sum.height).exp()).sum::<f64>() / bar.len as f64;
        (sum.height + mean.ln() >= bar.height).then_some(Alarm {
            start: sum.start,
            alternative,
        })
    }

    /// Returns the progress of the alternative that is nearest to an alarm, or `None` if there is no evidence of a
    /// change.
    pub fn progress(&self, bar: &Bar) -> Option<Progress> {
        let sums = self.sums.iter().take(bar.len);
        let sum = sums.max_by(|a, b| a.height.total_cmp(&b.height))?;
        (sum.height > 0.0).then(|| Progress {
            start: sum.start,
            height: sum.height,
            missing: bar.height + (bar.len as f64).ln() - sum.height,
        })
    }

    /// Resets the test.
    pub fn reset(&mut self) {
        *self = Cusum::default();
    }
}

/// The mirrored test for a straggler, which detects that it is as fast as its peers again.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Clearing {
    sum: Sum,
}

impl Clearing {
    /// Returns true if there is no evidence of a recovery yet.
    pub fn is_idle(&self) -> bool {
        self.sum.height <= 0.0
    }

    /// Takes one observation. Returns the last slow step once the bar is reached.
    pub fn observe(&mut self, bar: &Bar, alternative: f64, x: f64, before: u64) -> Option<u64> {
        if self.is_idle() {
            self.sum.start = before;
        }
        self.sum.height = (self.sum.height + bar.increment(alternative, 0.0, x)).max(0.0);
        (self.sum.height >= bar.height).then_some(self.sum.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Policy;

    #[test]
    fn an_alarm_does_not_outlast_its_reason() {
        let spread = Spread {
            sigma: 0.005,
            few: false,
            correlation: 0.0,
            center: 0.0,
            outliers: 1e-6,
        };
        let bar = Bar::new(&Policy::default().detector.straggler, 64, 0.2, &spread);
        for slow in [5, 100, 10_000] {
            let mut cusum = Cusum::default();
            for step in 0..slow {
                cusum.observe(&bar, 0.2, step);
            }
            assert!(cusum.alarm(&bar).is_some(), "{slow}");
            let after = (slow..).take_while(|step| {
                cusum.observe(&bar, 0.0, *step);
                cusum.alarm(&bar).is_some()
            });
            let after = after.count();
            assert!(after <= 2, "{after} steps after {slow}");
        }
    }
}
