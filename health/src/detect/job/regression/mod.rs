//! Step-time regressions: the whole job becomes slower than it was, during a run or across a restart.
//!
//! The rule uses the step time that all ranks would have at the common levels of their roles, so that one slow rank
//! does not change it. The effect of declared work within a role is taken out. The finding is always about all ranks,
//! never about one of them.

mod job_cause;

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use self::job_cause::UsualCounters;
use super::job_step::JobStep;
use super::level_shift::{Level, LevelShift};
use crate::detect::claim::{Claim, Outcome, piece};
use crate::event::StepKind;
use crate::policy::{ShiftThresholds, bounds};
use crate::stats;
use crate::time::Time;
use crate::verdict::{Evidence, Finding};

/// Number of steps that are kept in order to date a change.
const KEPT: usize = bounds::JOB_STEPS;
/// Maximum number of roles listed in the evidence.
const TOLD: usize = 3;

/// One steady step.
#[derive(Debug, Serialize, Deserialize)]
struct Row {
    step: u64,
    at: Time,
    /// True if the step is an outlier. An outlier is used only to date a change that lasts.
    apart: bool,
    /// ln of the common step time in seconds.
    value: f64,
    exposed_s: f64,
    /// Data loading time of the role that loads longest.
    data_s: f64,
    /// ln of the declared work of a step, as means over the ranks: tokens, squared lengths, routed tokens.
    work: [f64; 3],
    /// Common self-time by role, in seconds.
    roles: Vec<f32>,
}

/// Steady steps of the epoch, the usual level, and the open regression.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Regression {
    recent: VecDeque<Row>,
    /// The first step of this epoch, and the number of steady steps.
    first: Option<(u64, Time)>,
    steps: u64,
    /// The usual level, once there are enough steps.
    reference: Option<Level>,
    /// Transfer time in the steps of the reference, in seconds.
    usual_exposed_s: f64,
    /// The usual level before the restart.
    before: Option<Level>,
    /// The usual GPU readings.
    counters: UsualCounters,
    open: Vec<LevelShift>,
}

impl Regression {
    /// Starts a new group of ranks. If its size differs, its steps cannot be compared with the old group's.
    pub fn begin_epoch(&mut self, at: Time, ranks: u32, resized: bool, out: &mut VecDeque<Claim>) {
        let first = self.reference.take();
        self.before = if resized {
            None
        } else {
            self.before.take().or(first)
        };
        // A finding on a group of the same size stays open. Whether it still holds is decided once the new group has
        // settled.
        let ends = |slower: &LevelShift| resized || slower.finding != Finding::AllRanksSlow;
        out.extend(
            self.open
                .iter()
                .filter(|slower| ends(slower))
                .map(|slower| slower.end(at, ranks)),
        );
        self.open.retain(|slower| !ends(slower));
        self.recent.clear();
        self.counters.reset();
        self.steps = 0;
        self.first = None;
    }

    /// Learns the usual level again, because the reporting ranks or their roles have changed. Open findings keep their
    /// reference.
    pub fn reset_window(&mut self) {
        self.recent.clear();
        self.counters.reset();
        self.reference = None;
    }

    /// Takes a step.
    pub fn row(&mut self, job_step: &JobStep<'_>, out: &mut VecDeque<Claim>) {
        self.first.get_or_insert((job_step.matrix.step, job_step.view.at));
        let ordinary = job_step.matrix.kind == StepKind::Train;
        if !job_step.steady || !(ordinary || job_step.apart) {
            return;
        }
        let table = &job_step.view.limits.shift;
        self.keep(job_step);
        if job_step.apart {
            return;
        }
        self.steps += 1;
        if job_step.job_is_slow {
            // A slowdown of all ranks is dropped, because it is already reported for the ranks concerned.
            self.open.retain(|slower| slower.finding != Finding::AllRanksSlow);
        }
        self.follow(job_step, out);
        if self.open.is_empty() && !job_step.job_is_slow {
            self.counters.observe(job_step);
        }
        match self.reference {
            None => self.settle(job_step, table, out),
            Some(reference) => self.judge(job_step, reference, table, out),
        }
    }

    /// Returns the outcome of an open finding so far.
    pub fn outcome_now(&self, finding: Finding, ranks: u32) -> Option<Outcome> {
        let slower = self.open.iter().find(|slower| slower.finding == finding)?;
        Some(slower.outcome(ranks))
    }

    /// Returns the share of a step that would be gained without these findings.
    pub fn open_share(&self) -> f64 {
        self.open.iter().map(LevelShift::share).fold(0.0, f64::max)
    }

    /// Returns the ln seconds of the latest steady steps, oldest first, at most `count`.
    pub fn latest(&self, count: usize) -> Vec<f64> {
        let ordinary = self.recent.iter().rev().filter(|row| !row.apart);
        let mut values: Vec<f64> = ordinary.take(count).map(|row| row.value).collect();
        values.reverse();
        values
    }

    /// Returns the number of steady steps in this epoch.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    fn keep(&mut self, job_step: &JobStep<'_>) {
        let matrix = job_step.matrix;
        let mut work = [0.0; 3];
        for rank_step in &matrix.rank_steps {
            for (sum, one) in work.iter_mut().zip(rank_step.sample.work) {
                *sum += one.max(1.0).ln() / matrix.rank_steps.len() as f64;
            }
        }
        self.recent.push_back(Row {
            step: matrix.step,
            at: matrix.at,
            apart: job_step.apart,
            value: job_step.common_step_s.max(1e-9).ln(),
            exposed_s: job_step.exposed_s,
            data_s: matrix.roles.iter().map(|role| role.data_s).fold(0.0, f64::max),
            work,
            roles: job_step.common.iter().map(|level| *level as f32).collect(),
        });
        if self.recent.len() > KEPT {
            self.recent.pop_front();
        }
    }

    /// Updates the open findings.
    fn follow(&mut self, job_step: &JobStep<'_>, out: &mut VecDeque<Claim>) {
        let table = &job_step.view.limits.shift;
        let latest = self.latest(table.held_steps as usize);
        let Some(now) = latest.last() else { return };
        let ranks = job_step.view.roster.world_size;
        let counters = &self.counters;
        self.open.retain_mut(|slower| {
            let is_worse = slower.take(job_step, *now);
            let has_turned = slower.asks_again(job_step.view.at) && explain(slower, counters, job_step);
            if is_worse || has_turned {
                out.push_back(slower.claim(job_step));
            }
            let over = slower.is_over(&latest, table);
            if over {
                out.push_back(slower.end(job_step.view.at, ranks));
            }
            !over
        });
    }

    /// Sets the usual level once there are enough steps, and compares it with the level before the restart.
    fn settle(&mut self, job_step: &JobStep<'_>, table: &ShiftThresholds, out: &mut VecDeque<Claim>) {
        let values = self.latest(table.reference_steps as usize);
        if values.len() < table.reference_steps as usize {
            return;
        }
        let Some(now) = Level::of(&values) else { return };
        // A slowdown that began before the restart keeps the usual level from before it began as its reference.
        let exposed = self
            .recent
            .iter()
            .filter(|row| !row.apart)
            .map(|row| row.exposed_s);
        self.usual_exposed_s = stats::median(&mut exposed.collect::<Vec<_>>()).unwrap_or(0.0);
        let lasting = self
            .open
            .iter()
            .find(|slower| slower.finding == Finding::AllRanksSlow);
        self.reference = Some(lasting.map_or(now, |slower| slower.base));
        let Some(before) = self.before.take().filter(|_| lasting.is_none()) else {
            return;
        };
        let base = Level {
            mean: before.mean,
            sigma: before.sigma.max(now.sigma),
        };
        if now.mean - base.mean >= base.bar(table) {
            self.raise(job_step, Finding::StepRegression, base, 0, out);
            // If the job recovers and is slow again after another restart, it is compared with the same level.
            self.before = Some(before);
        }
    }

    fn judge(
        &mut self,
        job_step: &JobStep<'_>,
        reference: Level,
        table: &ShiftThresholds,
        out: &mut VecDeque<Claim>,
    ) {
        let held = table.held_steps as usize;
        let latest = self.latest(held);
        if latest.len() < held {
            return;
        }
        let bar = reference.bar(table);
        // A faster level becomes the new reference only after it has lasted as long as the first reference took, so
        // that a short faster period does not.
        let long = self.latest(table.reference_steps as usize);
        let is_faster = |value: &f64| reference.mean - value >= bar / 2.0;
        if latest.iter().all(is_faster) && reference.mean - stats::mean(&long) >= bar {
            self.reference = Some(reference.moved_to(&long));
            return;
        }
        let known = |slower: &LevelShift| slower.finding == Finding::AllRanksSlow;
        if job_step.job_is_slow || self.open.iter().any(known) || !reference.is_left(&latest, table) {
            return;
        }
        let first = self.first_above(reference.mean + bar / 2.0);
        // Use all steps before the change for the noise, because the reference is based on only a few steps.
        let before = self.recent.range(..first).filter(|row| !row.apart);
        let before = Level::of(&before.map(|row| row.value).collect::<Vec<_>>());
        let noisier = before.map_or(reference.sigma, |before| before.sigma.max(reference.sigma));
        let with_noise = Level {
            sigma: noisier,
            ..reference
        };
        if !with_noise.is_left(&latest, table) {
            return;
        }
        let change = stats::mean(&latest) - reference.mean;
        if self.is_more_work(first, change) {
            self.reference = Some(reference.moved_to(&latest));
            return;
        }
        if self.is_data(job_step, first, reference) {
            return;
        }
        // Longer transfers may come from a slow link, which takes longer to detect, so wait. If a link or a rank is
        // known to be slow, do not report transfers here; with a slow rank they are not known precisely.
        let long = self.recent.len() - first >= table.transfer_held_steps as usize;
        if self.is_transfer(first, reference) && (!long || job_step.link_is_slow || job_step.rank_is_slow) {
            return;
        }
        if job_step.view.waits.latecomer(job_step.view.comms).is_some() {
            return;
        }
        self.raise(job_step, Finding::AllRanksSlow, reference, first, out);
    }

    /// Returns the first of the latest steps that all exceed `line`.
    fn first_above(&self, line: f64) -> usize {
        let below = self.recent.iter().rposition(|row| row.value < line);
        below.map_or(0, |below| below + 1)
    }

    /// Returns true if each step has more declared work.
    fn is_more_work(&self, first: usize, change: f64) -> bool {
        let mean = |rows: &mut dyn Iterator<Item = &Row>, axis: usize| {
            let (mut sum, mut count) = (0.0, 0.0);
            for row in rows {
                sum += row.work[axis];
                count += 1.0;
            }
            (count > 0.0).then(|| sum / count)
        };
        (0..3).any(|axis| {
            let before = mean(&mut self.recent.range(..first), axis);
            let after = mean(&mut self.recent.range(first..), axis);
            before
                .zip(after)
                .is_some_and(|(before, after)| after - before >= change / 2.0)
        })
    }

    /// Returns true if most of the change is in data loading, and data loading is long enough to be reported.
    fn is_data(&self, job_step: &JobStep<'_>, first: usize, reference: Level) -> bool {
        let mean = |rows: &mut dyn Iterator<Item = &Row>, pick: fn(&Row) -> f64| {
            let (sum, count) = rows.fold((0.0, 0.0), |sum, row| (sum.0 + pick(row), sum.1 + 1.0));
            if count > 0.0 { sum / count } else { 0.0 }
        };
        let before_s = mean(&mut self.recent.range(..first), |row| row.data_s);
        let after_s = mean(&mut self.recent.range(first..), |row| row.data_s);
        let step_s = mean(&mut self.recent.range(first..), |row| row.value.exp());
        after_s - before_s > (step_s - reference.mean.exp()) / 2.0
            && after_s >= job_step.view.limits.shares.data_warning_ratio * step_s
    }

    /// Returns true if most of the change is in transfers.
    fn is_transfer(&self, first: usize, reference: Level) -> bool {
        let mean = |pick: fn(&Row) -> f64| {
            let values: Vec<f64> = self.recent.range(first..).map(pick).collect();
            stats::mean(&values)
        };
        let exposed = mean(|row| row.exposed_s) - self.usual_exposed_s;
        exposed > (mean(|row| row.value.exp()) - reference.mean.exp()) / 2.0
    }

    fn raise(
        &mut self,
        job_step: &JobStep<'_>,
        finding: Finding,
        base: Level,
        first: usize,
        out: &mut VecDeque<Claim>,
    ) {
        let dated = match finding {
            // After a restart the whole new group is slow, including its warm-up.
            Finding::StepRegression => self.first,
            _ => self.recent.get(first).map(|row| (row.step, row.at)),
        };
        let Some(begin) = dated else { return };
        let values: Vec<f64> = self.recent.range(first..).map(|row| row.value).collect();
        let evidence = self.evidence(job_step, first);
        let mut slower = LevelShift::new(job_step, finding, job_step.job(), base, begin, &values, evidence);
        explain(&mut slower, &self.counters, job_step);
        out.push_back(slower.claim(job_step));
        self.open.push(slower);
    }

    /// Returns transfers, and the roles whose levels changed most, each with its former value.
    fn evidence(&self, job_step: &JobStep<'_>, first: usize) -> Vec<Evidence> {
        let (Some(old), Some(new)) = (
            first.checked_sub(1).and_then(|last| self.recent.get(last)),
            self.recent.back(),
        ) else {
            return Vec::new();
        };
        let mut evidence = vec![piece("exposed_transfer_s", new.exposed_s, Some(old.exposed_s))];
        let roles = old.roles.iter().zip(&new.roles).zip(&job_step.view.plan.roles);
        let mut changed: Vec<(f32, f32, &str)> = roles
            .filter(|((old, new), _)| **old > 0.0 && **new > 0.0)
            .map(|((old, new), role)| (*old, *new, &*role.name))
            .collect();
        changed.sort_by(|a, b| (b.1 / b.0).total_cmp(&(a.1 / a.0)));
        for (old, new, name) in changed.into_iter().take(TOLD) {
            let what = format!("{name} self_time_s");
            evidence.push(piece(what.trim_start(), f64::from(new), Some(f64::from(old))));
        }
        evidence
    }
}

/// Searches for the cause of a slowdown. Returns true if the cause changed. A slowdown across a restart gets no cause,
/// because other GPUs may be involved, whose earlier readings are not known.
fn explain(slower: &mut LevelShift, counters: &UsualCounters, job_step: &JobStep<'_>) -> bool {
    if slower.finding != Finding::AllRanksSlow {
        return false;
    }
    let found = counters.explain(job_step, slower.since, slower.slowdown() - 1.0);
    slower.explain(job_step.view.at, found, job_step.view.limits.causes.min_readings)
}
