//! The change-point rule, as in Greyhound: a rank is slow if its own series splits best into two levels that differ by
//! 10 % or more, which is Greyhound's floor. (Greyhound adds its own check afterwards, which is not part of this rule.)
//!
//! Fits the last 100 steps by least squares, every 10 steps. It takes the split that explains most of the variance,
//! provided that this is enough compared with the remaining noise and that the second level is higher. Sources: Wu and
//! others 2025, <https://www.usenix.org/conference/atc25/presentation/wu-tianyuan>; the two-segment model, Hinkley
//! 1970, <https://doi.org/10.1093/biomet/57.1.1>.

use std::collections::VecDeque;

use super::{Rule, Sample, at};

const WINDOW_STEPS: usize = 100;
const EVERY_STEPS: u32 = 10;
const LEAST_CHANGE: f64 = 0.10;
/// Minimum number of steps in a level.
const LEAST_STEPS: usize = 5;
/// Threshold of the squared difference of the levels over its variance. It corresponds to about three standard
/// deviations, after a search over all splits.
const LIMIT: f64 = 13.0;

#[derive(Default)]
pub(super) struct ChangePoint {
    rows: u32,
    /// The last step times of each rank.
    series: Vec<VecDeque<f64>>,
}

impl Rule for ChangePoint {
    fn row(&mut self, row: &[Sample], name: &mut dyn FnMut(u32)) {
        for sample in row {
            let series = at(&mut self.series, sample.rank);
            series.push_back(sample.own);
            if series.len() > WINDOW_STEPS {
                series.pop_front();
            }
        }
        self.rows += 1;
        if !self.rows.is_multiple_of(EVERY_STEPS) {
            return;
        }
        for (rank, series) in (0..).zip(&mut self.series) {
            if rises(series.make_contiguous()) {
                name(rank);
            }
        }
    }
}

/// Returns true if the best split of the series into two levels is a significant rise.
fn rises(series: &[f64]) -> bool {
    let n = series.len();
    if n < 2 * LEAST_STEPS {
        return false;
    }
    let total: f64 = series.iter().sum();
    let squares: f64 = series.iter().map(|value| value * value).sum();
    let mut before = 0.0;
    let mut best = (0.0, 0.0, 0.0);
    for (index, value) in series.iter().enumerate().take(n - LEAST_STEPS) {
        before += value;
        let left = index + 1;
        if left < LEAST_STEPS {
            continue;
        }
        let (low, high) = (before / left as f64, (total - before) / (n - left) as f64);
        let explained = (high - low).powi(2) * (left * (n - left)) as f64 / n as f64;
        if explained > best.0 {
            best = (explained, low, high);
        }
    }
    let (explained, low, high) = best;
    let noise = (squares - total * total / n as f64 - explained).max(0.0) / (n - 2) as f64;
    high >= low * (1.0 + LEAST_CHANGE) && explained > LIMIT * noise
}
