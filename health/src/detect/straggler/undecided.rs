//! The rank that looks slow and has no finding yet, and the steps that the sequential test still needs.

use super::StragglerRule;
use crate::detect::step::plan::Plan;
use crate::detect::straggler::cusum::Progress;
use crate::id::Rank;
use crate::policy::StragglerThresholds;
use crate::report::Undecided;

/// Likelihood ratio from which a rank is worth mentioning, for one rank: a hundred times likelier slow than not.
const ODDS: f64 = 100.0;

impl StragglerRule {
    /// The rank whose test is furthest without a decision; `None` if that may be chance, or after too few steps.
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
        // At the rate so far.
        let a_step = progress.height / f64::from(steps);
        Some(Undecided {
            rank,
            slowdown_ratio,
            steps_needed: (progress.missing / a_step).ceil().min(1e9) as u64,
        })
    }
}
