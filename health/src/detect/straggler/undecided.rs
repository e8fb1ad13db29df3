//! The rank that looks slow but has no finding yet, and how many steps the sequential test still needs.

use super::StragglerRule;
use crate::detect::step::plan::Plan;
use crate::detect::straggler::cusum::Progress;
use crate::id::Rank;
use crate::policy::StragglerThresholds;
use crate::report::Undecided;

/// Minimum likelihood ratio for a rank to be mentioned, in a job of one rank: a hundred times more likely slow than
/// not. It is multiplied by the number of ranks.
const ODDS: f64 = 100.0;

impl StragglerRule {
    /// Returns the rank with the most evidence that has not raised an alarm yet. Returns `None` if its progress may be
    /// chance or there were too few steps.
    pub fn undecided(&self, plan: &Plan, table: &StragglerThresholds) -> Option<Undecided> {
        let least = (ODDS * plan.ranks.max(1) as f64).ln();
        let mut furthest: Option<(Rank, Progress)> = None;
        for (rank, track) in (0..).map(Rank).zip(&self.tracks) {
            let is_named = |raised: &super::OpenStraggler| raised.members.binary_search(&rank).is_ok();
            let Some(bar) = plan
                .place(rank)
                .and_then(|place| self.roles.bar(place.role as usize))
            else {
                continue;
            };
            let progress = track
                .cusum
                .progress(&bar)
                .filter(|now| now.height >= least && now.missing > 0.0);
            let is_further = |now: &Progress| furthest.is_none_or(|(_, best)| now.height > best.height);
            if let Some(now) = progress.filter(is_further)
                && !self.raised.iter().any(is_named)
            {
                furthest = Some((rank, now));
            }
        }
        let (rank, progress) = furthest?;
        let (mut sum, mut steps) = (0.0, 0_u32);
        for kept in self.history.steady_since(progress.start) {
            if let Some(x) = kept.x.get(rank.0 as usize).filter(|x| !x.is_nan()) {
                (sum, steps) = (sum + f64::from(*x), steps + 1);
            }
        }
        let slowdown_ratio = (sum / f64::from(steps.max(1))).exp();
        if steps < table.min_steps || slowdown_ratio <= table.tolerated_ratio {
            return None;
        }
        // The number of steps that are still needed assumes that the evidence grows at the rate so far.
        let a_step = progress.height / f64::from(steps);
        Some(Undecided {
            rank,
            slowdown_ratio,
            steps_needed: (progress.missing / a_step).ceil().min(1e9) as u64,
        })
    }
}
