//! Uneven work, and the step time if the work were even: experts by routed tokens, sequences by declared work, and
//! stages by their own levels.

use serde::{Deserialize, Serialize};

use crate::detect::job::job_step::JobStep;
use crate::detect::step::matrix::RankStep;
use crate::stats;

/// Number of steps over which levels and fits are averaged.
const MEMORY: f64 = 64.0;
/// Share of a self-time that always remains after a part is taken out.
const LEAST: f64 = 0.05;

/// Self-times with even work of experts.
#[derive(Debug)]
pub struct EvenExperts {
    pub own: Vec<f64>,
    /// Routed tokens of the busiest rank, and the mean over all ranks.
    pub most: f64,
    pub mean: f64,
    /// Share of the variance between ranks that routed tokens explain.
    pub explained: f64,
}

/// Fit of self-time against routed tokens, both divided by their means within a step and a stage. The sums decay.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Experts {
    xx: f64,
    xy: f64,
    yy: f64,
}

/// The ranks of one stage: their number, and the sums of their tokens and self-times.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    ranks: f64,
    tokens: f64,
    own_s: f64,
}

impl Experts {
    /// Returns the self-time of each rank as it would be at its stage's mean of routed tokens. Returns `None` if not
    /// all ranks declared routed tokens, or if these do not explain which ranks are slow.
    pub fn even(&mut self, job_step: &JobStep<'_>, own: &[f64]) -> Option<EvenExperts> {
        let rank_steps = &job_step.matrix.rank_steps;
        if rank_steps.iter().any(|rank_step| rank_step.sample.work[2] <= 0.0) {
            return None;
        }
        let mut sums = vec![Sum::default(); job_step.view.plan.stages.max(1) as usize];
        for (rank_step, own) in rank_steps.iter().zip(own) {
            let sum = sums.get_mut(rank_step.place.stage as usize)?;
            sum.ranks += 1.0;
            sum.tokens += rank_step.sample.work[2];
            sum.own_s += own;
        }
        let keep = 1.0 - 1.0 / MEMORY;
        (self.xx, self.xy, self.yy) = (self.xx * keep, self.xy * keep, self.yy * keep);
        for (rank_step, own) in rank_steps.iter().zip(own) {
            let sum = sums[rank_step.place.stage as usize];
            let x = rank_step.sample.work[2] * sum.ranks / sum.tokens - 1.0;
            let y = own * sum.ranks / sum.own_s - 1.0;
            self.xx += x * x / rank_steps.len() as f64;
            self.xy += x * y / rank_steps.len() as f64;
            self.yy += y * y / rank_steps.len() as f64;
        }
        let explained = self.xy * self.xy / (self.xx * self.yy).max(1e-12);
        let enough = job_step.view.limits.shares.explained_ratio;
        if self.xx < 1e-6 || explained < enough || self.xy <= 0.0 {
            return None;
        }
        // The slope is limited to 1, because time grows at most in proportion to the tokens.
        let slope = (self.xy / self.xx).min(1.0);
        let mut most = (0.0_f64, 0.0);
        let even = rank_steps.iter().zip(own).map(|(rank_step, own)| {
            let sum = sums[rank_step.place.stage as usize];
            let mean = sum.tokens / sum.ranks;
            if rank_step.sample.work[2] > most.0 {
                most = (rank_step.sample.work[2], mean);
            }
            let surplus_s = slope * (rank_step.sample.work[2] / mean - 1.0) * sum.own_s / sum.ranks;
            (own - surplus_s).max(own * LEAST)
        });
        Some(EvenExperts {
            own: even.collect(),
            most: most.0,
            mean: most.1,
            explained,
        })
    }
}

/// Self-times with all stages at their mean.
#[derive(Debug)]
pub struct EvenStages {
    pub own: Vec<f64>,
    /// The heaviest and the lightest group of the plan with their levels, and the mean over all groups, in seconds.
    pub extremes: [(usize, f64); 2],
    pub mean: f64,
    /// True if some stage is a single rank.
    pub alone: bool,
}

/// ln of each role's level as a mean over the latest steps, which shows the lasting level instead of that of a single
/// step.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Stages {
    levels: Vec<(f64, f64)>,
}

impl Stages {
    /// Returns the self-time of each rank if all stages (or declared roles) had the same work, or `None` if there is
    /// only one.
    pub fn even(&mut self, job_step: &JobStep<'_>, own: &[f64]) -> Option<EvenStages> {
        let plan = job_step.view.plan;
        // Experts are left out, because they differ by their load, which has a finding of its own.
        let one = plan.stages == 1 && plan.roles.iter().any(|role| role.is_expert);
        if one || plan.groups.len() < 2 {
            return None;
        }
        self.levels.resize(plan.roles.len(), (0.0, 0.0));
        // Sum of the levels of a group's ranks, and their number.
        let mut groups = vec![(0.0, 0.0); plan.groups.len()];
        for (index, role) in plan.roles.iter().enumerate() {
            let level = self.level(index, job_step.common.get(index).copied().unwrap_or(0.0))?;
            let ranks = role.members.len() as f64;
            let group = &mut groups[role.group as usize];
            *group = (group.0 + ranks * level, group.1 + ranks);
        }
        let (sum, ranks) = groups
            .iter()
            .fold((0.0, 0.0), |all, one| (all.0 + one.0, all.1 + one.1));
        let mean = sum / ranks;
        let levels: Vec<f64> = groups.iter().map(|(sum, ranks)| sum / ranks.max(1.0)).collect();
        let group = |rank_step: &RankStep| plan.roles[rank_step.place.role as usize].group as usize;
        let rank_steps = job_step.matrix.rank_steps.iter().zip(own);
        let own = rank_steps
            .map(|(rank_step, own)| own * mean / levels[group(rank_step)])
            .collect();
        let by_level = || (0..levels.len()).map(|group| (group, levels[group]));
        let heaviest = by_level().max_by(|a, b| a.1.total_cmp(&b.1))?;
        let lightest = by_level().min_by(|a, b| a.1.total_cmp(&b.1))?;
        Some(EvenStages {
            own,
            extremes: [heaviest, lightest],
            mean,
            alone: plan.roles.iter().any(|role| role.members.len() < 2),
        })
    }

    /// Returns a role's level in seconds, including this step. `now` is zero if none of the role's ranks reported in
    /// this step.
    fn level(&mut self, role: usize, now: f64) -> Option<f64> {
        let (level, steps) = &mut self.levels[role];
        if now > 0.0 {
            *steps = (*steps + 1.0).min(MEMORY);
            *level += (now.ln() - *level) / *steps;
        }
        (*steps > 0.0).then(|| level.exp())
    }
}

/// Differences between ranks of a role that change from step to step, so that they belong to no single rank.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Unexplained {
    /// Spread between the ranks of a role, as a mean over the latest steps.
    spread: f64,
    /// The lasting part of the spread, by rank number.
    kept: Vec<f64>,
    steps: f64,
}

impl Unexplained {
    /// Returns the spread (1.4826 × MAD of ln self-time about the role's level) that belongs to no rank, or zero if
    /// most of it stays with the same ranks.
    pub fn observe(&mut self, job_step: &JobStep<'_>, own: &[f64]) -> f64 {
        let rank_steps = &job_step.matrix.rank_steps;
        self.steps = (self.steps + 1.0).min(MEMORY);
        let ranks = rank_steps
            .last()
            .map_or(0, |rank_step| rank_step.rank.0 as usize + 1);
        self.kept.resize(self.kept.len().max(ranks), 0.0);
        let mut now = Vec::with_capacity(rank_steps.len());
        let mut lasting = Vec::with_capacity(rank_steps.len());
        for (rank_step, own) in rank_steps.iter().zip(own) {
            let level = job_step.common[rank_step.place.role as usize];
            let x = if level > 0.0 { (own / level).ln() } else { 0.0 };
            let kept = &mut self.kept[rank_step.rank.0 as usize];
            *kept += (x - *kept) / self.steps;
            now.push(x.abs());
            lasting.push(kept.abs());
        }
        let wide = stats::MAD_TO_SIGMA * stats::median(&mut now).unwrap_or(0.0);
        let owned = stats::MAD_TO_SIGMA * stats::median(&mut lasting).unwrap_or(0.0);
        self.spread += (wide - self.spread) / self.steps;
        if owned > self.spread / 2.0 {
            0.0
        } else {
            self.spread
        }
    }

    /// Returns the self-times as they would be at each role's mean of declared work.
    pub fn at_usual_work(&self, job_step: &JobStep<'_>, own: &[f64]) -> Vec<f64> {
        let rank_steps = &job_step.matrix.rank_steps;
        // The part that declared sequences explain. Routed tokens are left out, because the rule on experts handles
        // them.
        let explained: Vec<f64> = rank_steps
            .iter()
            .map(|rank_step| rank_step.self_s / rank_step.fair_s * (-rank_step.routed).exp())
            .collect();
        let mut means = vec![(0.0, 0.0); job_step.matrix.roles.len()];
        for (rank_step, explained) in rank_steps.iter().zip(&explained) {
            let mean = &mut means[rank_step.place.role as usize];
            *mean = (mean.0 + explained, mean.1 + 1.0);
        }
        let fair = rank_steps
            .iter()
            .zip(own)
            .zip(&explained)
            .map(|((rank_step, own), explained)| {
                let (sum, ranks) = means[rank_step.place.role as usize];
                own / explained * (sum / ranks)
            });
        fair.collect()
    }
}
