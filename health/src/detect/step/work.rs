//! Declared work: how much of the difference between ranks of a role is only a difference in work.
//!
//! ln(self-time) is regressed on ln(tokens), ln(sum of squared lengths) and ln(tokens routed to the rank's experts).
//! This is done within each step of a role, by recursive least squares, so that what a step's ranks have in common
//! plays no part. The tests use the residuals.

use serde::{Deserialize, Serialize};

use super::matrix::RankStep;

const FEATURES: usize = 3;
/// Index of the tokens routed to the rank's experts.
const ROUTED: usize = 2;
/// Number of observations over which old steps are forgotten.
const MEMORY: f64 = 20_000.0;
/// Number of observations after which the fit is used.
const ENOUGH: u32 = 64;
/// Maximum number of a role's ranks that train its model. More of them add nothing.
const TEACHERS: usize = 256;
/// A residual counts as at most this many times the usual one, so that a slow rank does not distort the cost of work.
const OUTLYING: f64 = 3.0;
/// Maximum exponents of time in tokens, squared lengths and routed tokens. The minimum is zero. The exponents are
/// limited because a rank that always has one token more than its peers must not have its slowness explained by that.
const STEEPEST: Vector = [2.0, 1.0, 1.0];

type Vector = [f64; FEATURES];

/// The models of all roles.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct WorkModels {
    roles: Vec<Model>,
}

/// One role's fit.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Model {
    slope: Vector,
    /// Inverse of the features' second moments.
    inverse: [Vector; FEATURES],
    /// Usual size of a residual.
    spread: f64,
    observed: u32,
}

impl Default for Model {
    fn default() -> Model {
        let mut inverse = [[0.0; FEATURES]; FEATURES];
        for (index, row) in inverse.iter_mut().enumerate() {
            row[index] = 1e4;
        }
        Model {
            slope: [0.0; FEATURES],
            inverse,
            spread: 0.0,
            observed: 0,
        }
    }
}

impl WorkModels {
    /// Clears everything.
    pub fn clear(&mut self) {
        self.roles.clear();
    }

    /// Takes out of `fair_s` what declared work explains among `members` (indices of ranks of one role). Returns true
    /// if it explains something. If `learn` is true, the step trains the model afterwards.
    pub fn explain(
        &mut self,
        role: usize,
        rank_steps: &mut [RankStep],
        members: &[usize],
        learn: bool,
    ) -> bool {
        let Some(features) = centred(rank_steps, members) else {
            return false;
        };
        if role >= self.roles.len() {
            self.roles.resize(role + 1, Model::default());
        }
        let model = &mut self.roles[role];
        let believed = model.observed >= ENOUGH;
        let slope = std::array::from_fn(|axis| model.slope[axis].clamp(0.0, STEEPEST[axis]));
        if learn {
            model.learn(rank_steps, members, &features);
        }
        if believed {
            for (index, feature) in members.iter().zip(&features) {
                let rank_step = &mut rank_steps[*index];
                rank_step.fair_s = rank_step.self_s * (-dot(&slope, feature)).exp();
                rank_step.routed = slope[ROUTED] * feature[ROUTED];
            }
        }
        believed
    }
}

/// Returns ln of each member's declared work minus its mean over the members, or `None` if all declared the same work.
fn centred(rank_steps: &[RankStep], members: &[usize]) -> Option<Vec<Vector>> {
    let mut features: Vec<Vector> = Vec::with_capacity(members.len());
    let mut mean = [0.0; FEATURES];
    let mut declared = [true; FEATURES];
    for index in members {
        let work = rank_steps[*index].sample.work;
        let mut feature = [0.0; FEATURES];
        for axis in 0..FEATURES {
            declared[axis] &= work[axis] > 0.0;
            feature[axis] = work[axis].max(1.0).ln();
            mean[axis] += feature[axis] / members.len() as f64;
        }
        features.push(feature);
    }
    let mut differs = false;
    for feature in &mut features {
        for axis in 0..FEATURES {
            feature[axis] = if declared[axis] {
                feature[axis] - mean[axis]
            } else {
                0.0
            };
            differs |= feature[axis].abs() > 1e-9;
        }
    }
    differs.then_some(features)
}

fn dot(a: &Vector, b: &Vector) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

impl Model {
    fn learn(&mut self, rank_steps: &[RankStep], members: &[usize], features: &[Vector]) {
        let mean = members
            .iter()
            .map(|index| rank_steps[*index].self_s.ln())
            .sum::<f64>()
            / members.len() as f64;
        let stride = members.len().div_ceil(TEACHERS);
        for (index, feature) in members.iter().zip(features).step_by(stride) {
            self.observe(feature, rank_steps[*index].self_s.ln() - mean);
        }
    }

    /// Performs one step of recursive least squares with forgetting.
    fn observe(&mut self, feature: &Vector, value: f64) {
        let keep = 1.0 - 1.0 / MEMORY;
        let through: Vector = std::array::from_fn(|row| dot(&self.inverse[row], feature));
        let scale = keep + dot(feature, &through);
        let residual = value - dot(&self.slope, feature);
        let bounded = if self.observed < ENOUGH {
            residual
        } else {
            residual.clamp(-OUTLYING * self.spread, OUTLYING * self.spread)
        };
        for (slope, through) in self.slope.iter_mut().zip(&through) {
            *slope += through / scale * bounded;
        }
        for row in 0..FEATURES {
            for column in 0..FEATURES {
                let less = through[row] * through[column] / scale;
                // Clamp the value, because for a feature that never varies it would grow without bound.
                self.inverse[row][column] = ((self.inverse[row][column] - less) / keep).clamp(-1e4, 1e4);
            }
        }
        let weight = (1.0 / f64::from(self.observed + 1)).max(0.01);
        self.spread += weight * (bounded.abs().max(1e-4) - self.spread);
        self.observed = self.observed.saturating_add(1);
    }
}
