//! Step time of the job: median and 99th percentile of ordinary steps.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::codec::serde_impls;

/// Durations of ordinary steps: 1 µs to an hour, three digits.
#[derive(Debug, Serialize, Deserialize)]
pub struct StepTime {
    #[serde(with = "serde_impls::histogram")]
    micros: Histogram<u32>,
    /// Computed once per step, read with every frame.
    median_s: Option<f64>,
    p99_s: Option<f64>,
}

/// Fewer steps say nothing about the tail.
const ENOUGH: u64 = 10;
/// With fewer steps the 99th percentile is the longest one, often the first, which may compile for minutes. It is then
/// capped at `FAR` medians.
const MANY: u64 = 100;
const FAR: f64 = 20.0;

impl StepTime {
    /// No step yet.
    pub fn new() -> StepTime {
        // The bounds are constants that the crate accepts.
        let micros = Histogram::new_with_bounds(1, 3_600_000_000, 3).expect("constant bounds");
        StepTime {
            micros,
            median_s: None,
            p99_s: None,
        }
    }

    /// Takes the duration of one step, seconds.
    pub fn observe(&mut self, seconds: f64) {
        self.micros.saturating_record((seconds * 1e6) as u64);
        let quantile = |quantile| self.micros.value_at_quantile(quantile) as f64 / 1e6;
        let (median, steps) = (quantile(0.5), self.micros.len());
        let most = if steps < MANY { FAR * median } else { f64::INFINITY };
        self.median_s = Some(median);
        self.p99_s = (steps >= ENOUGH).then(|| quantile(0.99).min(most));
    }

    /// Median step, seconds.
    pub fn median_s(&self) -> Option<f64> {
        self.median_s
    }

    /// 99th percentile, seconds, once there are enough steps.
    pub fn p99_s(&self) -> Option<f64> {
        self.p99_s
    }
}
