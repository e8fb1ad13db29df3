//! Determines whether a role has warmed up, and the bar of its tests.

use serde::{Deserialize, Serialize};

use super::cusum::Bar;
use super::noise::{self, Noise, WarmUp};
use crate::detect::step::history::{History, Kept};
use crate::detect::step::matrix::StepMatrix;
use crate::detect::view::View;
use crate::id::Rank;
use crate::policy::StragglerThresholds;

/// The state of all roles, by their index in the plan.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Readiness {
    roles: Vec<Role>,
    all_warm: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Role {
    warm_up: WarmUp,
    noise: Noise,
    bar: Option<Bar>,
}

impl Readiness {
    /// Returns the bar for the tests of a role, or `None` while the role warms up or if it has no peers.
    pub fn bar(&self, role: usize) -> Option<Bar> {
        self.roles.get(role)?.bar
    }

    /// Returns true if every role has warmed up.
    pub fn have_warmed_up(&self) -> bool {
        self.all_warm
    }

    /// Takes a step that is already in `history`.
    pub fn observe(&mut self, matrix: &StepMatrix<'_>, history: &mut History, view: &View<'_>) {
        let table = &view.limits.straggler;
        self.roles.resize_with(matrix.roles.len(), Role::default);
        let mut all = true;
        let mut steady = Vec::with_capacity(matrix.roles.len());
        for ((role, level), known) in self.roles.iter_mut().zip(&matrix.roles).zip(&view.plan.roles) {
            let sigma = || {
                let latest = columns(&known.members, history.since(0), noise::SETTLED_ROWS);
                noise::typical_sigma(latest).unwrap_or(0.0)
            };
            let is_steady = level.seen > 0 && role.warm_up.is_over(level.self_s.ln(), sigma, table);
            all &= is_steady || level.seen == 0;
            steady.push(is_steady);
        }
        self.all_warm = all;
        if all {
            history.settle(noise::SETTLED_ROWS);
        }
        for ((role, steady), known) in self.roles.iter_mut().zip(steady).zip(&view.plan.roles) {
            if steady && known.members.len() > 1 {
                let spread = role.noise.spread(|| pool(&known.members, history, table));
                let ranks = view.roster.world_size as usize;
                role.bar = spread.map(|spread| Bar::new(table, ranks, matrix.dur_s, &spread));
            }
        }
    }
}

/// Returns the recent noise of a role's ranks.
fn pool(members: &[Rank], history: &History, table: &StragglerThresholds) -> Option<noise::Spread> {
    let window = table.noise_window_steps as usize;
    noise::pool(columns(members, history.latest(window), window), table)
}

/// Returns the last `count` observations of some of the ranks.
fn columns<'a>(
    members: &[Rank],
    rows: impl DoubleEndedIterator<Item = &'a Kept> + Clone,
    count: usize,
) -> Vec<Vec<f64>> {
    let column = |rank: &Rank| -> Vec<f64> {
        let x = |row: &Kept| row.x.get(rank.0 as usize).copied().filter(|x| !x.is_nan());
        let mut latest: Vec<f64> = rows
            .clone()
            .rev()
            .take(count)
            .filter_map(x)
            .map(f64::from)
            .collect();
        latest.reverse();
        latest
    };
    let stride = members.len().div_ceil(noise::POOLED_RANKS);
    members.iter().step_by(stride).map(column).collect()
}
