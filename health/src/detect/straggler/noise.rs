//! The noise of the ranks of one role, and whether these ranks have warmed up.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::policy::StragglerThresholds;
use crate::stats;

/// Maximum number of ranks over which noise is pooled. More of them add nothing.
pub const POOLED_RANKS: usize = 256;

/// How far one observation of a rank may be from the rank's own level without being significant.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Spread {
    /// Standard deviation. It is enlarged by the uncertainty of few samples and by their autocorrelation, so that a sum
    /// of observations is not overrated.
    pub sigma: f64,
    /// True if the estimate is based on few ranks.
    pub few: bool,
    /// Correlation of one observation with the next, from 0 to below 1. [`Noise`] includes it in `sigma`.
    pub correlation: f64,
    /// Mean of a healthy rank. It differs from the median, because skewed noise has its mean above its median.
    pub center: f64,
    /// Share of observations that are further above the level than the noise explains. It is between 0 and 1 and never
    /// 0.
    pub outliers: f64,
}

/// With at least this many ranks, one slow rank does not change the spread between them.
const MANY: usize = 8;

/// Observations that are this many sigma above their level are outliers.
const OUTLYING: f64 = 4.0;

/// Pools the noise of a role's ranks. Returns `None` until there is enough data. `windows` holds the latest
/// observations of each rank.
pub fn pool(windows: Vec<Vec<f64>>, table: &StragglerThresholds) -> Option<Spread> {
    let mut sigmas = Vec::new();
    let mut correlations = Vec::new();
    for values in &windows {
        if let Some(sigma) = stats::robust_sigma(&mut values.clone()) {
            sigmas.push(sigma);
            correlations.extend(stats::lag_one_correlation(values, sigma));
        }
    }
    let own = stats::median(&mut sigmas)?.max(table.sigma_floor);
    let (center, sigma) = if windows.len() >= MANY {
        let center = center(&windows);
        // Use the spread between ranks only if it exceeds each rank's own noise by more than chance.
        let wide = about_peers(&windows, center);
        let chance = 1.0 + 2.0 * doubt(&windows);
        (center, if wide > own * chance { wide } else { own })
    } else {
        (0.0, own)
    };
    let unsure = 1.0 + doubt(&windows);
    // If noise changes slowly, a few consecutive steps look calmer than they are, however many ranks there are. Enlarge
    // sigma for short windows.
    let longest = windows.iter().map(Vec::len).max().unwrap_or(0) as f64;
    let early = 1.5 - 0.5 * (longest / f64::from(table.noise_window_steps.max(1))).min(1.0);
    // A correlation this small counts as none.
    let correlation = stats::median(&mut correlations)
        .filter(|correlation| *correlation > 2.0 * doubt(&windows))
        .map_or(0.0, |correlation| correlation.clamp(0.0, 0.95));
    Some(Spread {
        sigma: sigma * unsure * early,
        few: windows.len() < MANY,
        correlation,
        center,
        outliers: outliers(windows, sigma),
    })
}

/// Returns one standard error of a robust spread estimate, as a share of the estimate. For the MAD of normal noise it
/// is 1.16 / sqrt(n).
fn doubt(windows: &[Vec<f64>]) -> f64 {
    let samples: usize = windows.iter().map(Vec::len).sum();
    1.16 / (samples.max(1) as f64).sqrt()
}

/// Returns the mean of the typical rank.
fn center(windows: &[Vec<f64>]) -> f64 {
    let means = windows.iter().map(|window| stats::mean(window));
    stats::median(&mut means.collect::<Vec<f64>>()).unwrap_or(0.0)
}

/// Returns the spread of the typical rank about its own level.
pub fn typical_sigma(windows: Vec<Vec<f64>>) -> Option<f64> {
    let sigmas = windows
        .into_iter()
        .filter_map(|mut values| stats::robust_sigma(&mut values));
    stats::median(&mut sigmas.collect::<Vec<f64>>())
}

/// Returns the spread of all ranks about their peers. It shows slowly changing noise, which a short window of one rank
/// does not. If ranks usually differ this much, a difference makes no rank a suspect.
fn about_peers(windows: &[Vec<f64>], center: f64) -> f64 {
    let mut distances: Vec<f64> = windows.iter().flatten().map(|x| (x - center).abs()).collect();
    stats::MAD_TO_SIGMA * stats::median(&mut distances).unwrap_or(0.0)
}

/// Returns the share of outliers. The quarter of the ranks with the most outliers is left out, so that a rank that has
/// just become slow does not affect the estimate for the others.
fn outliers(windows: Vec<Vec<f64>>, sigma: f64) -> f64 {
    let count = |mut values: Vec<f64>| {
        let level = stats::median(&mut values).unwrap_or(0.0);
        (
            values
                .iter()
                .filter(|value| **value > level + OUTLYING * sigma)
                .count(),
            values.len(),
        )
    };
    let mut counts: Vec<(usize, usize)> = windows.into_iter().map(count).collect();
    counts.sort_unstable();
    counts.truncate(counts.len() - counts.len() / 4);
    let (found, samples) = counts
        .iter()
        .fold((0, 0), |sum, (found, len)| (sum.0 + found, sum.1 + len));
    (found as f64 + 1.0) / (samples as f64 + 2.0)
}

/// The noise of one role. It changes slowly and is expensive to measure, so it is measured at each row early on, and
/// later at every eighth row.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Noise {
    rows: u32,
    spread: Option<Spread>,
    /// Sigma and correlation as means over about the last [`USUAL`] measurements, and the number of measurements.
    usual: (f64, f64),
    measured: f64,
}

/// Number of measurements over which noise is smoothed.
const USUAL: f64 = 16.0;

impl Noise {
    /// Returns the present noise. `measure` is called when a measurement is due.
    pub fn spread(&mut self, measure: impl FnOnce() -> Option<Spread>) -> Option<Spread> {
        if self.rows < 64 || self.rows.is_multiple_of(8) {
            self.spread = measure().map(|now| self.with_usual(now));
        }
        self.rows = self.rows.wrapping_add(1);
        self.spread
    }

    /// Returns the larger of the present and the recent noise, because the short windows of few ranks may look calmer
    /// than the noise is.
    fn with_usual(&mut self, now: Spread) -> Spread {
        self.measured = (self.measured + 1.0).min(USUAL);
        self.usual.0 += (now.sigma - self.usual.0) / self.measured;
        self.usual.1 += (now.correlation - self.usual.1) / self.measured;
        let (sigma, correlation) = if now.few {
            (now.sigma.max(self.usual.0), now.correlation.max(self.usual.1))
        } else {
            (now.sigma, self.usual.1)
        };
        Spread {
            sigma: sigma * stats::mean_inflation(correlation),
            ..now
        }
    }
}

/// Warm-up of one role: compilation, autotuning, caches.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct WarmUp {
    levels: VecDeque<f64>,
    rows: u32,
    over: bool,
}

/// Number of rows that must agree for a role to count as warmed up.
pub const SETTLED_ROWS: usize = 8;

impl WarmUp {
    /// Takes the role's level (ln of its median self-time). Returns true once level and noise have settled, or once the
    /// longest warm-up has passed. They have settled if the last four rows are at the level of the four before them,
    /// and `sigma` of a rank over these rows is that of work and not of compilation.
    pub fn is_over(&mut self, level: f64, sigma: impl FnOnce() -> f64, table: &StragglerThresholds) -> bool {
        if self.over {
            return true;
        }
        self.rows += 1;
        self.levels.push_back(level);
        if self.levels.len() > SETTLED_ROWS {
            self.levels.pop_front();
        }
        if self.levels.len() == SETTLED_ROWS {
            let mut levels: Vec<f64> = self.levels.iter().copied().collect();
            let (older, newer) = levels.split_at_mut(SETTLED_ROWS / 2);
            let shift = stats::median(older)
                .zip(stats::median(newer))
                .map(|(old, new)| (new - old).abs());
            let spread = stats::robust_sigma(&mut levels).unwrap_or(0.0);
            self.over = shift.is_some_and(|shift| shift <= 0.02 + spread) && sigma() <= table.warm_up_sigma;
        }
        self.over |= self.rows >= table.warm_up_max_steps;
        self.over
    }
}
