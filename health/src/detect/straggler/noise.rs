//! The noise of the ranks of one role, and whether they have warmed up.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::policy::StragglerThresholds;
use crate::stats;

/// Maximum ranks over which noise is pooled; more add nothing.
pub const POOLED_RANKS: usize = 256;

/// How far one observation of one rank may be from the rank's own level without being significant.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Spread {
    /// Standard deviation, enlarged so that a sum of observations is not overrated: by the uncertainty of few samples,
    /// and by their autocorrelation.
    pub sigma: f64,
    /// It is based on few ranks.
    pub few: bool,
    /// Correlation of one observation with the next, 0 to below 1; [`Noise`] includes it in `sigma`.
    pub correlation: f64,
    /// Mean of a healthy rank: skewed noise has its mean above its median.
    pub center: f64,
    /// Share of observations that are further above the level than the noise explains, 0 to 1 and never 0.
    pub outliers: f64,
}

/// With at least this many ranks, one slow rank does not change the spread between them.
const MANY: usize = 8;

/// Observations this many sigma above their level are outliers.
const OUTLYING: f64 = 4.0;

/// Pools the noise of a role's ranks. `None` until there is enough data. `windows`: the latest observations of each.
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
        // Only a spread beyond chance counts as more than the noise that each rank shows by itself.
        let wide = about_peers(&windows, center);
        let chance = 1.0 + 2.0 * doubt(&windows);
        (center, if wide > own * chance { wide } else { own })
    } else {
        (0.0, own)
    };
    let unsure = 1.0 + doubt(&windows);
    // If noise lasts, a few consecutive steps look calmer than they are, however many ranks there are.
    let longest = windows.iter().map(Vec::len).max().unwrap_or(0) as f64;
    let early = 1.5 - 0.5 * (longest / f64::from(table.noise_window_steps.max(1))).min(1.0);
    // So small a correlation counts as none.
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

/// One standard error of a robust spread estimate, as a share of it: 1.16 / sqrt(n) for the MAD of normal noise.
fn doubt(windows: &[Vec<f64>]) -> f64 {
    let samples: usize = windows.iter().map(Vec::len).sum();
    1.16 / (samples.max(1) as f64).sqrt()
}

/// The typical rank's mean.
fn center(windows: &[Vec<f64>]) -> f64 {
    let means = windows.iter().map(|window| stats::mean(window));
    stats::median(&mut means.collect::<Vec<f64>>()).unwrap_or(0.0)
}

/// Spread of the typical rank about its own level.
pub fn typical_sigma(windows: Vec<Vec<f64>>) -> Option<f64> {
    let sigmas = windows
        .into_iter()
        .filter_map(|mut values| stats::robust_sigma(&mut values));
    stats::median(&mut sigmas.collect::<Vec<f64>>())
}

/// Spread of all ranks about their peers. Noise that lasts does not show within a short window, but it does between
/// ranks: a usual difference between them makes no rank a suspect.
fn about_peers(windows: &[Vec<f64>], center: f64) -> f64 {
    let mut distances: Vec<f64> = windows.iter().flatten().map(|x| (x - center).abs()).collect();
    stats::MAD_TO_SIGMA * stats::median(&mut distances).unwrap_or(0.0)
}

/// The share of outliers. The quarter of the ranks with the most is left out: a rank that has just become slow must not
/// affect the estimate for the others.
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

/// The noise of one role. It changes slowly and is expensive to measure: early on it is measured at each row, later at
/// every eighth.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Noise {
    rows: u32,
    spread: Option<Spread>,
    /// Sigma and correlation over about the last [`USUAL`] measurements, and their number.
    usual: (f64, f64),
    measured: f64,
}

/// Measurements over which noise is smoothed.
const USUAL: f64 = 16.0;

impl Noise {
    /// The present noise; `measure` is called when it is due.
    pub fn spread(&mut self, measure: impl FnOnce() -> Option<Spread>) -> Option<Spread> {
        if self.rows < 64 || self.rows.is_multiple_of(8) {
            self.spread = measure().map(|now| self.with_usual(now));
        }
        self.rows = self.rows.wrapping_add(1);
        self.spread
    }

    /// The short windows of few ranks may look calmer than the noise is: the present or the recent noise counts,
    /// whichever is larger.
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

/// Rows that must agree for a role to count as warmed up.
pub const SETTLED_ROWS: usize = 8;

impl WarmUp {
    /// Takes the role's level (ln of its median self-time); returns true once level and noise have settled: the last
    /// four rows are where the four before them were, and `sigma` of a rank over them is that of work and not of
    /// compilation; or once the longest warm-up has passed.
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
