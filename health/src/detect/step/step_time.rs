//! Step time of the job: median and 99th percentile of ordinary steps.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::codec::serde_impls;

/// Durations of ordinary steps, from 1 µs to an hour, with three significant digits.
#[derive(Debug, Serialize, Deserialize)]
pub struct StepTime {
    #[serde(with = "serde_impls::histogram")]
    micros: Histogram<u32>,
    /// The median is computed once per step because every frame reads it.
    median_s: Option<f64>,
    p99_s: Option<f64>,
}

/// With fewer steps than this, nothing is known about the tail.
const ENOUGH: u64 = 10;
/// With fewer steps than this, the 99th percentile is the longest step. That is often the first one, which may compile
/// for minutes, so the result is capped at `FAR` medians.
const MANY: u64 = 100;
const FAR: f64 = 20.0;

impl StepTime {
    /// Creates the statistics without any step.
    pub fn new() -> StepTime {
        // This cannot fail, because the crate accepts these constant bounds.
        let micros = Histogram::new_with_bounds(1, 3_600_000_000, 3).expect("constant bounds");
        StepTime {
            micros,
            median_s: None,
            p99_s: None,
        }
    }

    /// Takes the duration of one step in seconds.
    pub fn observe(&mut self, seconds: f64) {
        self.micros.saturating_record((seconds * 1e6) as u64);
        let quantile = |quantile| self.micros.value_at_quantile(quantile) as f64 / 1e6;
        let (median, steps) = (quantile(0.5), self.micros.len());
        let most = if steps < MANY { FAR * median } else { f64::INFINITY };
        self.median_s = Some(median);
        self.p99_s = (steps >= ENOUGH).then(|| quantile(0.99).min(most));
    }

    /// Returns the median step in seconds.
    pub fn median_s(&self) -> Option<f64> {
        self.median_s
    }

    /// Returns the 99th percentile in seconds, once there are enough steps.
    pub fn p99_s(&self) -> Option<f64> {
        self.p99_s
    }
}
