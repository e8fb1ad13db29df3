//! A closed step as input for the rules, with the times of every rank compared with those of its peers.

use serde::{Deserialize, Serialize};

use super::path::Path;
use super::plan::{Place, Plan};
use super::rows::{Row, Sample};
use super::work::WorkModels;
use crate::event::{Signal, StepKind};
use crate::id::Rank;
use crate::stats;
use crate::time::Time;

/// One rank in one step. Times are in seconds.
#[derive(Clone, Copy, Debug)]
pub struct RankStep {
    pub rank: Rank,
    pub place: Place,
    pub sample: Sample,
    /// Self-time.
    pub self_s: f64,
    /// Self-time as it would be at the usual work of the rank's role. The effect of declared work is taken out.
    pub fair_s: f64,
    /// ln of the part of that effect that routed tokens cause.
    pub routed: f64,
    /// Median of the peers' `fair_s`, or the rank's own if it has no peers.
    pub peers_s: f64,
    /// ln(fair_s / peers_s).
    pub x: f64,
}

/// Medians over the members of a role in the step, in seconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct RoleLevel {
    /// Number of members that reported.
    pub seen: usize,
    pub self_s: f64,
    pub wait_s: f64,
    pub data_s: f64,
    pub gc_s: f64,
    pub checkpoint_s: f64,
    /// Share of the self-time spent on data loading and in the optimizer.
    pub outside_ratio: f64,
    /// True if the role's work model explains part of the time.
    pub works: bool,
}

impl RoleLevel {
    /// Returns the wait of the peers of a member that waits `own_s`. With two members, it is that of the other one.
    pub fn peers_wait_s(&self, own_s: f64) -> f64 {
        if self.seen == 2 {
            2.0 * self.wait_s - own_s
        } else {
            self.wait_s
        }
    }
}

/// One step of all ranks.
#[derive(Debug)]
pub struct StepMatrix<'a> {
    pub at: Time,
    pub step: u64,
    pub kind: StepKind,
    /// Source of the self-times. S0 if there are none.
    pub signal: Signal,
    /// First and last journal entry of the samples.
    pub entries: (u64, u64),
    pub plan: &'a Plan,
    /// Ranks with known phases, in order.
    pub rank_steps: Vec<RankStep>,
    /// Levels by role of the plan.
    pub roles: Vec<RoleLevel>,
    /// The longest wall time, and the shortest wait, which is the exposed transfer.
    pub dur_s: f64,
    pub transfer_s: f64,
    /// Maximum number of backward passes of any rank.
    pub micro_batches: u16,
}

impl<'a> StepMatrix<'a> {
    /// Compares the ranks of a row. Samples without phases, and ranks without a place, are left out.
    pub fn new(row: &Row, plan: &'a Plan, work: &mut WorkModels) -> StepMatrix<'a> {
        let mut matrix = StepMatrix {
            at: row.closed_at,
            step: row.step,
            kind: row.kind,
            signal: row.signal,
            entries: (u64::MAX, 0),
            plan,
            rank_steps: Vec::with_capacity(row.len()),
            roles: Vec::with_capacity(plan.roles.len()),
            dur_s: 0.0,
            transfer_s: f64::INFINITY,
            micro_batches: 1,
        };
        for (rank, sample) in row.samples() {
            matrix.dur_s = matrix.dur_s.max(sample.dur_s);
            matrix.micro_batches = matrix.micro_batches.max(sample.micro_batches);
            matrix.entries = (
                matrix.entries.0.min(sample.entry),
                matrix.entries.1.max(sample.entry),
            );
            let (Some(self_s), Some(place)) = (sample.self_s, plan.place(rank)) else {
                continue;
            };
            matrix.transfer_s = matrix.transfer_s.min(sample.wait_s);
            matrix.rank_steps.push(RankStep {
                rank,
                place: *place,
                sample: *sample,
                self_s,
                fair_s: self_s,
                routed: 0.0,
                peers_s: self_s,
                x: 0.0,
            });
        }
        if matrix.rank_steps.is_empty() {
            matrix.transfer_s = 0.0;
        }
        let mut of_role: Vec<Vec<usize>> = vec![Vec::new(); plan.roles.len()];
        for (index, rank_step) in matrix.rank_steps.iter().enumerate() {
            if let Some(members) = of_role.get_mut(rank_step.place.role as usize) {
                members.push(index);
            }
        }
        let learn = row.kind == StepKind::Train;
        for (role, members) in of_role.iter().enumerate() {
            let level = matrix.compare(role, members, work, learn);
            matrix.roles.push(level);
        }
        matrix
    }

    /// Returns true if nothing is known beyond wall times.
    pub fn is_empty(&self) -> bool {
        self.rank_steps.is_empty()
    }

    /// Returns the mean work of the ranks in seconds, without data loading and garbage collection.
    pub fn mean_work_s(&self) -> f64 {
        let work = self.rank_steps.iter().map(|rank_step| {
            let paused_s = rank_step.sample.data_s + rank_step.sample.gc_s;
            (rank_step.self_s - paused_s).max(0.0)
        });
        work.sum::<f64>() / self.rank_steps.len().max(1) as f64
    }

    /// Returns the shape of this step, for hypothetical step times.
    pub fn path(&self) -> Path {
        Path::new(self.plan, self.micro_batches, &self.roles)
    }

    /// Returns the step time in seconds if each rank works as long as `own` says, without transfers.
    pub fn step_s(&self, path: &mut Path, own: impl Fn(&RankStep) -> f64) -> f64 {
        path.step_s(
            self.rank_steps
                .iter()
                .map(|rank_step| (rank_step.place, own(rank_step))),
        )
    }

    /// Compares the members of one role.
    fn compare(&mut self, role: usize, members: &[usize], work: &mut WorkModels, learn: bool) -> RoleLevel {
        let mut level = RoleLevel {
            seen: members.len(),
            ..RoleLevel::default()
        };
        if members.is_empty() {
            return level;
        }
        level.works = work.explain(role, &mut self.rank_steps, members, learn);
        let mut order: Vec<(f64, usize)> = members
            .iter()
            .map(|index| (self.rank_steps[*index].fair_s.ln(), *index))
            .collect();
        order.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let sorted: Vec<f64> = order.iter().map(|(own, _)| *own).collect();
        for (place, (own, index)) in order.iter().enumerate() {
            let peers = stats::median_without(&sorted, place).unwrap_or(*own);
            let rank_step = &mut self.rank_steps[*index];
            rank_step.peers_s = peers.exp();
            rank_step.x = own - peers;
        }
        let mut scratch = Vec::with_capacity(members.len());
        let mut median = |pick: fn(&RankStep) -> f64| {
            scratch.clear();
            scratch.extend(members.iter().map(|index| pick(&self.rank_steps[*index])));
            stats::median(&mut scratch).unwrap_or(0.0)
        };
        level.self_s = median(|rank_step| rank_step.self_s);
        level.wait_s = median(|rank_step| rank_step.sample.wait_s);
        level.data_s = median(|rank_step| rank_step.sample.data_s);
        level.outside_ratio =
            median(|rank_step| (rank_step.sample.data_s + rank_step.sample.optimizer_s) / rank_step.self_s)
                .clamp(0.0, 1.0);
        level.gc_s = median(|rank_step| rank_step.sample.gc_s);
        level.checkpoint_s = median(|rank_step| rank_step.sample.checkpoint_s);
        level
    }
}
