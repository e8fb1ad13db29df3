//! What the job itself costs, as shares of its steps: data loading, garbage collection, uneven experts, sequences and
//! stages, transfers.
//!
//! A share is how much shorter the step would have been without that item, along the critical path. The preceding items
//! are taken out first, so that no second is counted twice. Ranks already found slow are set to their peers' speed
//! before that, because these findings name no rank, and a rank's fault is not charged to the job.

mod cpu_contention;
mod imbalance;
mod remaining;
mod share_window;

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use self::cpu_contention::CpuContention;
use self::imbalance::{Experts, Stages, Unexplained};
use self::remaining::{Remaining, floored};
use self::share_window::{Bars, Meaning, ShareWindow};
use super::job_step::JobStep;
use crate::detect::claim::{Claim, Outcome, piece};
use crate::detect::step::matrix::RankStep;
use crate::event::StepKind;
use crate::policy::Thresholds;
use crate::time::Time;
use crate::verdict::{Cause, Finding, Severity, Subject};

/// Number of steps over which the usual transfer is averaged, and the ratio to it that counts as a rise.
const USUAL_STEPS: f64 = 64.0;
const RISEN: f64 = 1.2;

/// One window per kind of share.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Shares {
    data: ShareWindow,
    gc: ShareWindow,
    cpu: ShareWindow,
    contention: CpuContention,
    expert: ShareWindow,
    sequence: ShareWindow,
    stage: ShareWindow,
    transfer: ShareWindow,
    usual_transfer_s: Option<f64>,
    experts: Experts,
    stages: Stages,
    unexplained: Unexplained,
    /// The latest unexplained spread, or `None` if work is declared.
    spread: Option<f64>,
}

impl Shares {
    /// Takes a step. Returns the factors by which the ranks' self-times would change if their experts' work were even.
    pub fn row(
        &mut self,
        job_step: &JobStep<'_>,
        rotates: impl Fn(Cause) -> bool,
        out: &mut VecDeque<Claim>,
    ) -> Option<Vec<f64>> {
        if !job_step.steady || job_step.matrix.kind != StepKind::Train || job_step.matrix.is_empty() {
            return None;
        }
        // Causes that a rotating-straggler finding reports are not reported again here.
        for (cause, window) in [
            (Cause::DataLoading, &mut self.data),
            (Cause::GcPause, &mut self.gc),
            (Cause::CpuContention, &mut self.cpu),
        ] {
            if rotates(cause) {
                window.reset_window();
            }
        }
        let mut left = Remaining::new(job_step);
        out.extend(self.data(job_step, &mut left));
        out.extend(self.gc(job_step, &mut left));
        out.extend(self.cpu(job_step, &mut left));
        let before = left.own.clone();
        out.extend(self.expert(job_step, &mut left));
        let ratios = left.own.iter().zip(&before);
        let even = ratios.map(|(even, own)| even / own).collect();
        let is_even = left.own == before;
        out.extend(self.sequence(job_step, &mut left));
        out.extend(self.stage(job_step, &mut left));
        out.extend(self.transfer(job_step));
        (!is_even).then_some(even)
    }

    /// Ends all open findings, and starts over.
    pub fn end(&mut self, at: Time, job: &Subject, out: &mut VecDeque<Claim>) {
        for window in self.windows_mut() {
            out.extend(window.end(at, job));
        }
        self.on_layout_change();
    }

    /// Learns the shares again, because the reporting ranks have changed. Open findings continue.
    pub fn reset_window(&mut self) {
        for window in self.windows_mut() {
            window.reset_window();
        }
    }

    /// Drops what was learned about roles, because ranks changed their place.
    pub fn on_layout_change(&mut self) {
        (self.experts, self.stages) = (Experts::default(), Stages::default());
        self.unexplained = Unexplained::default();
        self.contention.reset();
    }

    /// Returns the outcome of an open finding so far.
    pub fn outcome_now(&self, finding: Finding) -> Option<Outcome> {
        self.windows().find_map(|window| window.outcome_now(finding))
    }

    /// Returns the share of a step that would be gained now without these findings. Transfers are necessary: left out.
    pub fn open_share(&self) -> f64 {
        let avoidable = [
            &self.data,
            &self.gc,
            &self.cpu,
            &self.expert,
            &self.sequence,
            &self.stage,
        ];
        avoidable
            .into_iter()
            .map(ShareWindow::open_share)
            .sum::<f64>()
            .min(1.0)
    }

    /// Returns true if some loss comes from the work of all ranks instead of from ranks that are slower than others.
    pub fn is_work_uneven(&self) -> bool {
        let of_all = [&self.data, &self.gc, &self.expert, &self.sequence, &self.stage];
        of_all.into_iter().any(ShareWindow::is_open)
    }

    fn windows(&self) -> impl Iterator<Item = &ShareWindow> {
        [
            &self.data,
            &self.gc,
            &self.cpu,
            &self.expert,
            &self.sequence,
            &self.stage,
            &self.transfer,
        ]
        .into_iter()
    }

    fn windows_mut(&mut self) -> impl Iterator<Item = &mut ShareWindow> {
        [
            &mut self.data,
            &mut self.gc,
            &mut self.cpu,
            &mut self.expert,
            &mut self.sequence,
            &mut self.stage,
            &mut self.transfer,
        ]
        .into_iter()
    }

    /// Books the data wait that most ranks of a role share. The extra wait of a single rank is its own problem.
    fn data(&mut self, job_step: &JobStep<'_>, left: &mut Remaining) -> Option<Claim> {
        let matrix = job_step.matrix;
        let shared = |index: usize| {
            let rank_step = &matrix.rank_steps[index];
            rank_step
                .sample
                .data_s
                .min(matrix.roles[rank_step.place.role as usize].data_s)
        };
        let less = floored(&left.own, shared);
        let gain = left.take_out(job_step, less);
        let table = &job_step.view.limits.shares;
        let bars = Bars {
            warning: table.data_warning_ratio,
            critical: table.data_critical_ratio,
        };
        let meaning = Meaning {
            finding: Finding::DataLoading,
            cause: Cause::DataLoading,
            lost: true,
        };
        let evidence = || {
            let longest = matrix.roles.iter().map(|role| role.data_s).fold(0.0, f64::max);
            vec![
                piece("data_s", longest, None),
                piece("step_s", matrix.dur_s, None),
            ]
        };
        self.data
            .take(job_step, meaning, gain, bars, Severity::Critical, evidence)
    }

    fn gc(&mut self, job_step: &JobStep<'_>, left: &mut Remaining) -> Option<Claim> {
        let matrix = job_step.matrix;
        let less = floored(&left.own, |index| matrix.rank_steps[index].sample.gc_s);
        let gain = left.take_out(job_step, less);
        let meaning = Meaning {
            finding: Finding::GcPause,
            cause: Cause::GcPause,
            lost: true,
        };
        let evidence = |share: f64| {
            let paused = |rank: &&RankStep| rank.sample.gc_s > 0.0;
            let pausing = matrix.rank_steps.iter().filter(paused).count();
            let mut evidence = vec![piece("gc_ratio", share, None)];
            // In a step in which no rank pauses, the number means nothing.
            if pausing > 0 {
                evidence.push(piece("ranks_pausing", pausing as f64, None));
            }
            evidence
        };
        let share = self.gc.share();
        self.gc.take(
            job_step,
            meaning,
            gain,
            Bars::of_impact(job_step),
            Severity::Critical,
            || evidence(share),
        )
    }

    /// Books the excess of ranks over their roles, as far as they waited for a CPU meanwhile.
    fn cpu(&mut self, job_step: &JobStep<'_>, left: &mut Remaining) -> Option<Claim> {
        self.contention.observe(job_step, &left.own);
        let ranks = job_step.matrix.rank_steps.iter().map(|step| step.rank);
        let shares: Vec<f64> = ranks.map(|rank| self.contention.explained(rank)).collect();
        let count = shares.iter().filter(|share| **share > 0.0).count();
        if count == 0 && !self.cpu.is_open() {
            self.cpu.reset_window();
            return None;
        }
        let less = job_step.matrix.rank_steps.iter().zip(&left.own).zip(&shares);
        let less = less.map(|((rank_step, own), share)| {
            let level = job_step.common[rank_step.place.role as usize];
            let slower = (own * rank_step.fair_s / rank_step.self_s / level).max(1.0);
            own - share * (own - own / slower)
        });
        let less: Vec<f64> = less.collect();
        let gain = left.take_out(job_step, less);
        let meaning = Meaning {
            finding: Finding::CpuContention,
            cause: Cause::CpuContention,
            lost: true,
        };
        let evidence = || {
            let mean = shares.iter().sum::<f64>() / count.max(1) as f64;
            vec![
                piece("ranks_wanting_cpu", count as f64, None),
                piece("explained_by_cpu_contention_ratio", mean, None),
            ]
        };
        self.cpu.take(
            job_step,
            meaning,
            gain,
            Bars::of_impact(job_step),
            Severity::Critical,
            evidence,
        )
    }

    fn expert(&mut self, job_step: &JobStep<'_>, left: &mut Remaining) -> Option<Claim> {
        let even = self.experts.even(job_step, &left.own)?;
        let gain = left.take_out(job_step, even.own);
        let meaning = Meaning {
            finding: Finding::ExpertImbalance,
            cause: Cause::Imbalance,
            lost: true,
        };
        let evidence = || {
            vec![
                piece("busiest_expert_tokens", even.most, Some(even.mean)),
                piece("explained_ratio", even.explained, None),
            ]
        };
        self.expert.take(
            job_step,
            meaning,
            gain,
            Bars::of_impact(job_step),
            Severity::Critical,
            evidence,
        )
    }

    /// Books uneven declared work. A spread that belongs to no rank and has no known cause is only noted.
    fn sequence(&mut self, job_step: &JobStep<'_>, left: &mut Remaining) -> Option<Claim> {
        let spread = self.unexplained.observe(job_step, &left.own);
        let explained = job_step.matrix.roles.iter().any(|role| role.works);
        self.spread = (!explained).then_some(spread);
        if !explained && !self.sequence.is_open() {
            self.sequence.reset_window();
            return None;
        }
        let less = self.unexplained.at_usual_work(job_step, &left.own);
        let gain = left.take_out(job_step, less);
        let meaning = Meaning {
            finding: Finding::SequenceImbalance,
            cause: Cause::Imbalance,
            lost: true,
        };
        let evidence = || vec![piece("self_time_spread_ratio", spread, None)];
        self.sequence.take(
            job_step,
            meaning,
            gain,
            Bars::of_impact(job_step),
            Severity::Critical,
            evidence,
        )
    }

    /// Returns the spread of self-times within a step that belongs to no rank and that no work explains, if it is
    /// large.
    pub fn unexplained_spread(&self, limits: &Thresholds) -> Option<f64> {
        self.spread.filter(|spread| *spread >= limits.shares.spread_ratio)
    }

    fn stage(&mut self, job_step: &JobStep<'_>, left: &mut Remaining) -> Option<Claim> {
        let even = self.stages.even(job_step, &left.own)?;
        if job_step.shifted && !self.stage.is_open() {
            // If the job has slowed down, a slow stage is not treated as an uneven partition.
            self.stage.reset_window();
            return None;
        }
        let gain = left.take_out(job_step, even.own);
        let meaning = Meaning {
            finding: Finding::StageImbalance,
            cause: Cause::Imbalance,
            lost: true,
        };
        // If a stage is a single rank, uneven work of the stage looks the same as a problem of the rank.
        let worst = if even.alone {
            Severity::Warning
        } else {
            Severity::Critical
        };
        let evidence = || {
            let mut evidence: Vec<_> = even
                .extremes
                .iter()
                .map(|(group, level)| {
                    let name = &job_step.view.plan.groups[*group];
                    piece(&format!("{name} self_time_s"), *level, Some(even.mean))
                })
                .collect();
            evidence.extend(even.alone.then(|| piece("low_coverage", 1.0, None)));
            evidence
        };
        self.stage.take(
            job_step,
            meaning,
            gain,
            Bars::of_impact(job_step),
            worst,
            evidence,
        )
    }

    /// Books time in collectives beyond the wait for the slowest rank.
    fn transfer(&mut self, job_step: &JobStep<'_>) -> Option<Claim> {
        // A rise does not count at first, because it may be a slow link, which is detected a little later.
        let usual_s = self.usual_transfer_s.get_or_insert(job_step.exposed_s);
        *usual_s += (job_step.exposed_s - *usual_s) / USUAL_STEPS;
        let has_risen = job_step.exposed_s > RISEN * *usual_s;
        if job_step.link_is_slow || has_risen && !self.transfer.is_open() {
            // Long transfers have a known cause, or may have one.
            self.transfer.reset_window();
            return None;
        }
        let table = &job_step.view.limits.shares;
        let bars = Bars {
            warning: table.transfer_warning_ratio,
            critical: table.transfer_critical_ratio,
        };
        let meaning = Meaning {
            finding: Finding::CommunicationBound,
            cause: Cause::Unknown,
            lost: false,
        };
        let matrix = job_step.matrix;
        // Severity is limited if a pipeline may be undeclared, because its stages wait for each other, which looks the
        // same.
        let sure = job_step.view.plan.is_declared || matrix.micro_batches <= 1;
        let worst = if sure { Severity::Critical } else { Severity::Info };
        let evidence = || {
            vec![
                piece("exposed_transfer_s", job_step.exposed_s, None),
                piece("step_s", matrix.dur_s, None),
            ]
        };
        self.transfer
            .take(job_step, meaning, job_step.exposed_s, bars, worst, evidence)
    }
}
