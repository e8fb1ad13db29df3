//! How long steps of this job take.

use hdrhistogram::Histogram;

/// Durations of ordinary steps: 1 µs to an hour, three digits.
#[derive(Debug)]
pub struct Tempo {
    micros: Histogram<u32>,
}

/// Fewer steps than this tell nothing about the tail.
const ENOUGH: u64 = 10;

impl Tempo {
    /// No step yet.
    pub fn new() -> Tempo {
        // The bounds are constants that the crate accepts.
        Tempo {
            micros: Histogram::new_with_bounds(1, 3_600_000_000, 3).expect("constant bounds"),
        }
    }

    /// Takes the duration of one step, seconds.
    pub fn observe(&mut self, seconds: f64) {
        self.micros.saturating_record((seconds * 1e6) as u64);
    }

    /// Median step, seconds.
    pub fn median_s(&self) -> Option<f64> {
        (!self.micros.is_empty()).then(|| self.micros.value_at_quantile(0.5) as f64 / 1e6)
    }

    /// 99th percentile, seconds, once there are enough steps.
    pub fn p99_s(&self) -> Option<f64> {
        (self.micros.len() >= ENOUGH).then(|| self.micros.value_at_quantile(0.99) as f64 / 1e6)
    }
}
