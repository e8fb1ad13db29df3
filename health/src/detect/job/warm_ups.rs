//! Cost of the first steps beyond ordinary ones (compilation, autotuning, caches), either for the whole job or for one
//! rank far more than for its peers. It is reported once, when the warm-up is over.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::job_step::JobStep;
use crate::detect::claim::{Claim, Detail, Outcome, over, piece};
use crate::detect::straggler::open_straggler::OpenStraggler;
use crate::event::StepKind;
use crate::id::Rank;
use crate::stats;
use crate::time::Time;
use crate::verdict::{Finding, Severity, Subject};

/// Maximum number of steps kept. It exceeds the longest warm-up.
const KEPT: usize = 128;
/// Number of ordinary steps after the warm-up that define the usual step.
const AFTER: usize = 10;
/// A step that is longer than the usual one by this factor is still warm-up.
const WARM: f64 = 1.2;
/// Minimum steps of a warm-up in which a rank must be slow.
const LEAST_ROWS: usize = 3;
/// A rank that keeps this share of its excess after the warm-up is simply slow; its warm-up is not reported.
const LASTING: f64 = 0.25;

/// One of the first steps.
#[derive(Debug, Serialize, Deserialize)]
struct Row {
    step: u64,
    at: Time,
    dur_s: f64,
    /// ln of self-time over the role's level, and that level, by rank. NaN if there is no sample.
    x: Vec<f32>,
    level_s: Vec<f32>,
    /// Ranks that had a finding of their own when the step closed, each with the step before that finding began. A
    /// finding begins earlier than the step in which it is raised.
    reported: Vec<(Rank, u64)>,
}

/// The first steps, until the warm-up is over.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct WarmUps {
    rows: Vec<Row>,
    /// Number of rows after the job had settled.
    after: usize,
    over: bool,
}

impl WarmUps {
    /// Takes a step. `raised` holds the open stragglers.
    pub fn row(&mut self, job_step: &JobStep<'_>, raised: &[OpenStraggler], out: &mut VecDeque<Claim>) {
        let matrix = job_step.matrix;
        let counts = matches!(matrix.kind, StepKind::Train | StepKind::WarmUp);
        if self.over || !counts || self.rows.len() >= KEPT {
            return;
        }
        let ranks = matrix
            .rank_steps
            .last()
            .map_or(0, |rank_step| rank_step.rank.0 as usize + 1);
        let mut row = Row {
            step: matrix.step,
            at: matrix.at,
            dur_s: matrix.dur_s,
            x: vec![f32::NAN; ranks],
            level_s: vec![f32::NAN; ranks],
            reported: raised
                .iter()
                .flat_map(|slow| slow.members.iter().map(|rank| (*rank, slow.start)))
                .collect(),
        };
        for rank_step in &matrix.rank_steps {
            let level = job_step.common[rank_step.place.role as usize];
            let index = rank_step.rank.0 as usize;
            row.x[index] = (rank_step.fair_s / level).ln() as f32;
            row.level_s[index] = level as f32;
        }
        self.rows.push(row);
        self.after += usize::from(job_step.steady);
        if self.after >= AFTER {
            self.judge(job_step, out);
            *self = WarmUps {
                over: true,
                ..WarmUps::default()
            };
        }
    }

    fn judge(&self, job_step: &JobStep<'_>, out: &mut VecDeque<Claim>) {
        let (first, last) = self.rows.split_at(self.rows.len() - AFTER);
        let usual = stats::median(&mut last.iter().map(|row| row.dur_s).collect::<Vec<_>>());
        let Some(usual_s) = usual else { return };
        let warm = first.iter().rposition(|row| row.dur_s >= WARM * usual_s);
        let Some(warm) = warm.map(|place| &first[..=place]) else {
            return;
        };
        let table = &job_step.view.limits.occasions;
        let bad = |excess_s: f64, from: f64| {
            if excess_s >= from {
                Severity::Warning
            } else {
                Severity::Info
            }
        };
        let named = self.slow_ranks(job_step, warm, last, usual_s);
        let reported = self.reported(warm, last);
        let by_ranks = named.iter().map(|(_, excess_s, _)| *excess_s);
        let by_ranks = by_ranks.chain(reported.values().copied()).fold(0.0, f64::max);
        for (rank, excess_s, ratio) in named
            .into_iter()
            .filter(|(rank, ..)| !reported.contains_key(rank))
        {
            if let Some(subject) = job_step.view.roster.subject(rank) {
                let severity = bad(excess_s, table.warm_up_s);
                self.report(job_step, subject, severity, (excess_s, Some(ratio)), warm, out);
            }
        }
        let excess_s = warm.iter().map(|row| row.dur_s - usual_s).sum::<f64>() - by_ranks;
        if excess_s >= table.warm_up_s {
            let severity = bad(excess_s, table.warm_up_long_s);
            self.report(job_step, job_step.job(), severity, (excess_s, None), warm, out);
        }
    }

    /// Returns the ranks that had a finding of their own in the warm-up, including findings raised later, with their
    /// excess over their peers in it, beyond the difference afterwards, in seconds.
    fn reported(&self, warm: &[Row], last: &[Row]) -> BTreeMap<Rank, f64> {
        let until = warm.last().map_or(0, |row| row.step);
        let excess_s = |rows: &[Row], rank: Rank, start: u64| {
            let index = rank.0 as usize;
            let rows = rows.iter().filter(|row| row.step > start);
            let known = rows.filter_map(|row| Some((row.level_s.get(index)?, row.x.get(index)?)));
            let excess = known.map(|(level, x)| f64::from(*level) * (f64::from(*x).exp() - 1.0));
            let finite = excess.filter(|excess| excess.is_finite());
            finite.fold((0.0, 0.0), |(sum, count), excess| (sum + excess, count + 1.0))
        };
        let reported = self.rows.iter().flat_map(|row| &row.reported);
        let reported = reported.filter(|(_, start)| *start < until).map(|(rank, start)| {
            let (warm_s, rows) = excess_s(warm, *rank, *start);
            let (last_s, last_rows) = excess_s(last, *rank, *start);
            (*rank, (warm_s - rows * last_s / last_rows.max(1.0)).max(0.0))
        });
        reported.collect()
    }

    /// Returns the ranks whose warm-up was far longer than their peers' although their later steps are not, with the
    /// cost in seconds and the ratio.
    fn slow_ranks(
        &self,
        job_step: &JobStep<'_>,
        warm: &[Row],
        last: &[Row],
        usual_s: f64,
    ) -> Vec<(Rank, f64, f64)> {
        let table = &job_step.view.limits.occasions;
        let sums = |rows: &[Row], index: usize| {
            let known = rows.iter().filter_map(|row| {
                let x = row.x.get(index).filter(|x| x.is_finite())?;
                let level = f64::from(*row.level_s.get(index)?);
                Some((level * f64::from(*x).exp(), level))
            });
            known.fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
        };
        let ratio = |(own, level): (f64, f64)| if level > 0.0 { own / level } else { 1.0 };
        let ranks = warm.iter().map(|row| row.x.len()).max().unwrap_or(0);
        let mut slow = Vec::new();
        for index in 0..ranks {
            let (own, level) = sums(warm, index);
            let times = ratio((own, level));
            let lasting = ratio(sums(last, index)) - 1.0;
            let few = job_step.matrix.roles.iter().all(|role| role.seen < 2);
            let excess_s = own - level;
            // A rank must be slow in several rows, because one long step is not a long warm-up.
            let slow_rows = warm.iter().filter_map(|row| row.x.get(index));
            let slow_rows = slow_rows.filter(|x| f64::from(**x) >= table.warm_up_ratio.ln() / 2.0);
            let often = slow_rows.count() >= LEAST_ROWS.max(warm.len() / 2);
            if often
                && !few
                && times >= table.warm_up_ratio
                && excess_s >= table.warm_up_steps * usual_s
                && lasting < LASTING * (times - 1.0)
            {
                slow.push((Rank(index as u32), excess_s, times));
            }
        }
        // If this many ranks warm up slowly, it is a matter of the job and not of the ranks.
        let limits = &job_step.view.limits.straggler;
        let many = slow.len() >= limits.correlated_min_ranks as usize
            && slow.len() as f64 > limits.correlated_ratio * ranks as f64;
        if many { Vec::new() } else { slow }
    }

    /// Raises a finding and ends it at once.
    fn report(
        &self,
        job_step: &JobStep<'_>,
        subject: Subject,
        severity: Severity,
        (excess_s, times): (f64, Option<f64>),
        warm: &[Row],
        out: &mut VecDeque<Claim>,
    ) {
        let took_s: f64 = warm.iter().map(|row| row.dur_s).sum();
        let lost_rank_s = job_step.lost(excess_s);
        let detail = Detail {
            since: warm.first().map_or(job_step.view.at, |row| row.at),
            since_step: warm.first().map(|row| row.step),
            slowdown_ratio: times,
            lost_rank_s,
            evidence: vec![
                piece("warm_up_s", took_s, Some((took_s - excess_s).max(0.0))),
                piece("warm_up_steps", warm.len() as f64, None),
            ],
            ..job_step.detail(severity)
        };
        out.push_back(job_step.holds(Finding::SlowWarmUp, subject.clone(), detail));
        let outcome = Outcome {
            lost_rank_s,
            ..Outcome::default()
        };
        out.push_back(over(job_step.view.at, Finding::SlowWarmUp, subject, outcome));
    }
}
