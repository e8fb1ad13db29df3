//! How noisy the ranks of one role are, and whether they have warmed up.

use std::collections::VecDeque;

use crate::policy::StragglerThresholds;
use crate::stats;

/// Most observations kept per rank.
const MAX_WINDOW: usize = 64;
/// Ranks over which noise is pooled; more add nothing.
pub const POOLED_RANKS: usize = 256;

/// The latest observations of one rank, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Window {
    values: VecDeque<f32>,
}

impl Window {
    /// Adds one, and drops the oldest beyond `length`.
    pub fn push(&mut self, value: f64, length: u32) {
        self.values.push_back(value as f32);
        while self.values.len() > (length as usize).clamp(1, MAX_WINDOW) {
            self.values.pop_front();
        }
    }

    fn to_vec(&self) -> Vec<f64> {
        self.values.iter().copied().map(f64::from).collect()
    }
}

/// Standard deviation of one observation of one rank about its own level, pooled over the role; as large as it must be
/// taken so that a sum of such observations is not overrated: with what few samples leave open, and with their
/// autocorrelation. `None` until there is enough to tell.
pub fn pooled_sigma<'a>(
    windows: impl Iterator<Item = &'a Window>,
    table: &StragglerThresholds,
) -> Option<f64> {
    let mut sigmas = Vec::new();
    let mut correlations = Vec::new();
    let mut samples = 0;
    for window in windows.take(POOLED_RANKS) {
        let values = window.to_vec();
        samples += values.len();
        if let Some(sigma) = stats::robust_sigma(&mut values.clone()) {
            sigmas.push(sigma);
            correlations.extend(stats::lag_one_correlation(&values, sigma));
        }
    }
    let sigma = stats::median(&mut sigmas)?.max(table.sigma_floor);
    // Two standard errors of a robust spread estimate.
    let unsure = 1.0 + 2.0 / (samples.max(1) as f64).sqrt();
    let correlation = stats::median(&mut correlations).unwrap_or(0.0).clamp(0.0, 0.9);
    // Variance of a mean of AR(1) observations over that of independent ones.
    let inflation = ((1.0 + correlation) / (1.0 - correlation)).sqrt();
    Some(sigma * unsure * inflation)
}

/// The noise of one role. It changes slowly and costs to measure: early on it is measured at each row, later at every
/// eighth.
#[derive(Clone, Debug, Default)]
pub struct Noise {
    rows: u32,
    sigma: Option<f64>,
}

impl Noise {
    /// The present noise; `measure` is asked when it is due.
    pub fn sigma(&mut self, measure: impl FnOnce() -> Option<f64>) -> Option<f64> {
        if self.rows < 64 || self.rows.is_multiple_of(8) {
            self.sigma = measure();
        }
        self.rows = self.rows.wrapping_add(1);
        self.sigma
    }
}

/// Warm-up of one role: compilation, autotuning, caches.
#[derive(Clone, Debug, Default)]
pub struct WarmUp {
    levels: VecDeque<f64>,
    rows: u32,
    over: bool,
}

impl WarmUp {
    /// Takes the role's level (ln of its median self-time); true once the level has settled: the last four rows lie
    /// where the four before them lay, or the longest warm-up has passed.
    pub fn is_over(&mut self, level: f64, max_rows: u32) -> bool {
        if self.over {
            return true;
        }
        self.rows += 1;
        self.levels.push_back(level);
        if self.levels.len() > 8 {
            self.levels.pop_front();
        }
        if self.levels.len() == 8 {
            let mut levels: Vec<f64> = self.levels.iter().copied().collect();
            let (older, newer) = levels.split_at_mut(4);
            let shift = stats::median(older)
                .zip(stats::median(newer))
                .map(|(old, new)| (new - old).abs());
            let spread = stats::robust_sigma(&mut levels).unwrap_or(0.0);
            self.over = shift.is_some_and(|shift| shift <= 0.02 + spread);
        }
        self.over |= self.rows >= max_rows;
        self.over
    }
}
