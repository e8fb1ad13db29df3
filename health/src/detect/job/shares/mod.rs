//! What the job itself costs, as shares of its steps: data loading, garbage collection, uneven experts, sequences and
//! stages, transfers.
//!
//! Each is what the step would have been shorter without it, along the critical path, after what comes before it in
//! this list was taken out, so that no second is counted twice. Ranks that are found slow are set to their peers'
//! speed first: nobody is named here, and nobody's fault is the job's.

mod cpu_contention;
mod gauge;
mod imbalance;
mod remaining;

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use self::cpu_contention::CpuContention;
use super::scene::Scene;
use super::shares::gauge::{Bars, Gauge, Meaning};
use super::shares::imbalance::{Experts, Stages, Unexplained};
use super::shares::remaining::{Remaining, floored};
use crate::detect::claim::{Claim, Outcome, piece};
use crate::event::StepKind;
use crate::policy::Thresholds;
use crate::time::Time;
use crate::verdict::{Cause, Finding, Severity, Subject};

/// Steps over which the usual transfer is averaged, and how far above it one has risen.
const USUAL_STEPS: f64 = 64.0;
const RISEN: f64 = 1.2;

/// The gauges.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Shares {
    data: Gauge,
    gc: Gauge,
    cpu: Gauge,
    contention: CpuContention,
    expert: Gauge,
    sequence: Gauge,
    stage: Gauge,
    transfer: Gauge,
    usual_transfer_s: Option<f64>,
    experts: Experts,
    stages: Stages,
    unexplained: Unexplained,
    /// What it found of late; none when work is declared.
    spread: Option<f64>,
}

impl Shares {
    /// Takes a step. Returns the factor by which each rank's self-time changes if its experts' work were even.
    pub fn row(
        &mut self,
        scene: &Scene<'_>,
        wanders: impl Fn(Cause) -> bool,
        out: &mut VecDeque<Claim>,
    ) -> Option<Vec<f64>> {
        if !scene.steady || scene.matrix.kind != StepKind::Train || scene.matrix.is_empty() {
            return None;
        }
        // What is told as wandering between ranks is not told again.
        for (cause, gauge) in [
            (Cause::DataLoading, &mut self.data),
            (Cause::GcPause, &mut self.gc),
            (Cause::CpuContention, &mut self.cpu),
        ] {
            if wanders(cause) {
                gauge.unlearn();
            }
        }
        let mut left = Remaining::new(scene);
        out.extend(self.data(scene, &mut left));
        out.extend(self.gc(scene, &mut left));
        out.extend(self.cpu(scene, &mut left));
        let before = left.own.clone();
        out.extend(self.expert(scene, &mut left));
        let even = left
            .own
            .iter()
            .zip(&before)
            .map(|(even, own)| even / own)
            .collect();
        let is_even = left.own == before;
        out.extend(self.sequence(scene, &mut left));
        out.extend(self.stage(scene, &mut left));
        out.extend(self.transfer(scene));
        (!is_even).then_some(even)
    }

    /// Ends all that is open, and begins anew.
    pub fn end(&mut self, at: Time, job: &Subject, out: &mut VecDeque<Claim>) {
        for gauge in self.gauges_mut() {
            out.extend(gauge.end(at, job));
        }
        self.reseat();
    }

    /// Other ranks are seen than before: the shares begin anew, what holds goes on.
    pub fn unlearn(&mut self) {
        for gauge in self.gauges_mut() {
            gauge.unlearn();
        }
    }

    /// Ranks stand elsewhere: what was learned of roles is forgotten.
    pub fn reseat(&mut self) {
        (self.experts, self.stages) = (Experts::default(), Stages::default());
        self.unexplained = Unexplained::default();
        self.contention.reset();
    }

    /// What there is to say of an open finding up to now.
    pub fn outcome_now(&self, finding: Finding) -> Option<Outcome> {
        self.gauges().find_map(|gauge| gauge.outcome_now(finding))
    }

    /// Share of a step that would be won now if nothing of this held; transfers are needed.
    pub fn open_share(&self) -> f64 {
        let avoidable = [
            &self.data,
            &self.gc,
            &self.cpu,
            &self.expert,
            &self.sequence,
            &self.stage,
        ];
        avoidable.into_iter().map(Gauge::open_share).sum::<f64>().min(1.0)
    }

    /// Whether something is lost that lies in the work of all, and not in what some ranks are slower than others.
    pub fn is_work_uneven(&self) -> bool {
        let of_all = [&self.data, &self.gc, &self.expert, &self.sequence, &self.stage];
        of_all.into_iter().any(Gauge::is_open)
    }

    fn gauges(&self) -> impl Iterator<Item = &Gauge> {
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

    fn gauges_mut(&mut self) -> impl Iterator<Item = &mut Gauge> {
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

    /// What most ranks of a role wait for their data; what one waits longer is its own trouble.
    fn data(&mut self, scene: &Scene<'_>, left: &mut Remaining) -> Option<Claim> {
        let matrix = scene.matrix;
        let shared = |rank_step: usize| {
            let rank_step = &matrix.rank_steps[rank_step];
            rank_step
                .sample
                .data_s
                .min(matrix.roles[rank_step.place.role as usize].data_s)
        };
        let less = floored(&left.own, shared);
        let gain = left.take_out(scene, less);
        let table = &scene.view.limits.shares;
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
            .take(scene, meaning, gain, bars, Severity::Critical, evidence)
    }

    fn gc(&mut self, scene: &Scene<'_>, left: &mut Remaining) -> Option<Claim> {
        let matrix = scene.matrix;
        let less = floored(&left.own, |rank_step| matrix.rank_steps[rank_step].sample.gc_s);
        let gain = left.take_out(scene, less);
        let meaning = Meaning {
            finding: Finding::GcPause,
            cause: Cause::GcPause,
            lost: true,
        };
        let evidence = |share: f64| {
            let pausing = matrix
                .rank_steps
                .iter()
                .filter(|rank_step| rank_step.sample.gc_s > 0.0)
                .count();
            let mut evidence = vec![piece("gc_ratio", share, None)];
            // Of a step in which none did it says nothing.
            if pausing > 0 {
                evidence.push(piece("ranks_pausing", pausing as f64, None));
            }
            evidence
        };
        let share = self.gc.share();
        self.gc.take(
            scene,
            meaning,
            gain,
            impact_bars(scene),
            Severity::Critical,
            || evidence(share),
        )
    }

    /// What ranks are slower than their roles, as far as they waited for a CPU meanwhile.
    fn cpu(&mut self, scene: &Scene<'_>, left: &mut Remaining) -> Option<Claim> {
        self.contention.observe(scene, &left.own);
        let shares: Vec<f64> = scene
            .matrix
            .rank_steps
            .iter()
            .map(|rank_step| self.contention.explained(rank_step.rank))
            .collect();
        let count = shares.iter().filter(|share| **share > 0.0).count();
        if count == 0 && !self.cpu.is_open() {
            self.cpu.unlearn();
            return None;
        }
        let less = scene.matrix.rank_steps.iter().zip(&left.own).zip(&shares);
        let less = less.map(|((rank_step, own), share)| {
            let level = scene.common[rank_step.place.role as usize];
            let slower = (own * rank_step.fair_s / rank_step.self_s / level).max(1.0);
            own - share * (own - own / slower)
        });
        let less: Vec<f64> = less.collect();
        let gain = left.take_out(scene, less);
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
            scene,
            meaning,
            gain,
            impact_bars(scene),
            Severity::Critical,
            evidence,
        )
    }

    fn expert(&mut self, scene: &Scene<'_>, left: &mut Remaining) -> Option<Claim> {
        let even = self.experts.even(scene, &left.own)?;
        let gain = left.take_out(scene, even.own);
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
            scene,
            meaning,
            gain,
            impact_bars(scene),
            Severity::Critical,
            evidence,
        )
    }

    /// Declared work that differs. A spread that nobody owns and nothing explains is only noted.
    fn sequence(&mut self, scene: &Scene<'_>, left: &mut Remaining) -> Option<Claim> {
        let spread = self.unexplained.observe(scene, &left.own);
        let explained = scene.matrix.roles.iter().any(|role| role.works);
        self.spread = (!explained).then_some(spread);
        if !explained && !self.sequence.is_open() {
            self.sequence.unlearn();
            return None;
        }
        let less = self.unexplained.at_usual_work(scene, &left.own);
        let gain = left.take_out(scene, less);
        let meaning = Meaning {
            finding: Finding::SequenceImbalance,
            cause: Cause::Imbalance,
            lost: true,
        };
        let evidence = || vec![piece("self_time_spread_ratio", spread, None)];
        self.sequence.take(
            scene,
            meaning,
            gain,
            impact_bars(scene),
            Severity::Critical,
            evidence,
        )
    }

    /// Spread of self-times within a step that no rank owns and no declared work explains, if there is much of it.
    pub fn unexplained_spread(&self, limits: &Thresholds) -> Option<f64> {
        self.spread.filter(|spread| *spread >= limits.shares.spread_ratio)
    }

    fn stage(&mut self, scene: &Scene<'_>, left: &mut Remaining) -> Option<Claim> {
        let even = self.stages.even(scene, &left.own)?;
        if scene.shifted && !self.stage.is_open() {
            // A stage that became slow is no uneven partition.
            self.stage.unlearn();
            return None;
        }
        let gain = left.take_out(scene, even.own);
        let meaning = Meaning {
            finding: Finding::StageImbalance,
            cause: Cause::Imbalance,
            lost: true,
        };
        // Where a stage is one rank, the stage's work and the rank's own trouble look the same.
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
                    let name = &scene.view.plan.groups[*group];
                    piece(&format!("{name} self_time_s"), *level, Some(even.mean))
                })
                .collect();
            evidence.extend(even.alone.then(|| piece("low_coverage", 1.0, None)));
            evidence
        };
        self.stage
            .take(scene, meaning, gain, impact_bars(scene), worst, evidence)
    }

    /// Time in collectives beyond waiting for the slowest.
    fn transfer(&mut self, scene: &Scene<'_>) -> Option<Claim> {
        // A rise is not yet the job's nature: a slow link, for one, is known a little later.
        let usual_s = self.usual_transfer_s.get_or_insert(scene.exposed_s);
        *usual_s += (scene.exposed_s - *usual_s) / USUAL_STEPS;
        let has_risen = scene.exposed_s > RISEN * *usual_s;
        if scene.link_is_slow || has_risen && !self.transfer.is_open() {
            // Transfers are long for a reason that has a name, or may have.
            self.transfer.unlearn();
            return None;
        }
        let table = &scene.view.limits.shares;
        let bars = Bars {
            warning: table.transfer_warning_ratio,
            critical: table.transfer_critical_ratio,
        };
        let meaning = Meaning {
            finding: Finding::CommunicationBound,
            cause: Cause::Unknown,
            lost: false,
        };
        let matrix = scene.matrix;
        // A pipeline that nobody declared waits for its own stages: that looks the same.
        let sure = scene.view.plan.is_declared || matrix.micro_batches <= 1;
        let worst = if sure { Severity::Critical } else { Severity::Info };
        let evidence = || {
            vec![
                piece("exposed_transfer_s", scene.exposed_s, None),
                piece("step_s", matrix.dur_s, None),
            ]
        };
        self.transfer
            .take(scene, meaning, scene.exposed_s, bars, worst, evidence)
    }
}

fn impact_bars(scene: &Scene<'_>) -> Bars {
    let limits = &scene.view.limits.impact;
    Bars {
        warning: limits.warning_ratio,
        critical: limits.critical_ratio,
    }
}
