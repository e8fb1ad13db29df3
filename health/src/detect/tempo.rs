//! How long steps of this job take.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::keep;

/// Durations of ordinary steps: 1 µs to an hour, three digits.
#[derive(Debug, Serialize, Deserialize)]
pub struct Tempo {
    #[serde(with = "keep::histogram")]
    micros: Histogram<u32>,
    /// Read off once a step, asked for with every frame.
    median_s: Option<f64>,
    p99_s: Option<f64>,
}

/// Fewer steps than this tell nothing about the tail.
const ENOUGH: u64 = 10;

impl Tempo {
    /// No step yet.
    pub fn new() -> Tempo {
        // The bounds are constants that the crate accepts.
        let micros = Histogram::new_with_bounds(1, 3_600_000_000, 3).expect("constant bounds");
        Tempo {
            micros,
            median_s: None,
            p99_s: None,
        }
    }

    /// Takes the duration of one step, seconds.
    pub fn observe(&mut self, seconds: f64) {
        self.micros.saturating_record((seconds * 1e6) as u64);
        let quantile = |quantile| self.micros.value_at_quantile(quantile) as f64 / 1e6;
        self.median_s = Some(quantile(0.5));
        self.p99_s = (self.micros.len() >= ENOUGH).then(|| quantile(0.99));
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
