//! Rules for the job as a whole. They look at all ranks together, and name no rank for a problem that the ranks share.
//!
//! Each closed step becomes one [`JobStep`], in which ranks already found slow are set to their peers' speed. Each rule
//! takes that step in turn.

mod baseline;
mod checkpoints;
mod job_step;
mod level_shift;
mod regression;
mod rotating_straggler;
mod shares;
mod single_rank_pause;
mod warm_ups;

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use self::baseline::BaselineRule;
use self::checkpoints::Checkpoints;
use self::job_step::JobStep;
use self::regression::Regression;
use self::rotating_straggler::RotatingStraggler;
use self::shares::Shares;
use self::single_rank_pause::SingleRankPauses;
use self::warm_ups::WarmUps;
use super::claim::{Claim, Outcome};
use super::cost::ledger::{Ledger, Stood, Teller, Took};
use super::links::LinkRule;
use super::members::roster::Roster;
use super::members::versions::VersionRule;
use super::step::classifier::{StepClass, StepClassifier};
use super::step::matrix::StepMatrix;
use super::straggler::StragglerRule;
use super::straggler::noise::WarmUp;
use super::straggler::open_straggler::FAR;
use super::view::View;
use crate::event::{Event, StepKind};
use crate::frame::{Frame, Provenance};
use crate::id::JobId;
use crate::policy::Thresholds;
use crate::time::Time;
use crate::verdict::{Cause, Finding, Subject};

/// All rules for the job as a whole.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct JobRules {
    classifier: StepClassifier,
    pauses: SingleRankPauses,
    /// The class of the latest step.
    sort: StepClass,
    warm_up: WarmUp,
    steady: bool,
    absent: Absent,
    /// True if uneven work of experts was evened out in the latest step.
    evened: bool,
    shares: Shares,
    regression: Regression,
    baseline: BaselineRule,
    checkpoints: Checkpoints,
    warm_ups: WarmUps,
    rotating: RotatingStraggler,
    versions: VersionRule,
    ledger: Ledger,
    /// Durations of the latest step whose parts are known.
    #[serde(default)]
    took: Took,
    provenance: Provenance,
    out: VecDeque<Claim>,
}

impl JobRules {
    /// Starts a new group of ranks. `ranks` is the size of the old group.
    pub fn begin_epoch(&mut self, at: Time, job: &JobId, ranks: u32, resized: bool) {
        self.classifier = StepClassifier::default();
        self.pauses.end(at, ranks, &mut self.out);
        self.warm_up = WarmUp::default();
        (self.steady, self.absent) = (false, Absent::default());
        let subject = Subject::Job { job: job.clone() };
        self.shares.end(at, &subject, &mut self.out);
        self.rotating.end(at, &subject, ranks, &mut self.out);
        if self.evened {
            // Learn the usual level again, because the compared quantity may differ in the new group.
            self.regression.reset_window();
        }
        self.regression.begin_epoch(at, ranks, resized, &mut self.out);
        self.baseline.begin_epoch(at, ranks, &mut self.out);
        self.checkpoints.begin_epoch(at, ranks, resized, &mut self.out);
        self.warm_ups = WarmUps::default();
        self.ledger.begin_epoch();
        self.evened = false;
    }

    /// Updates the rules after ranks changed their place in the layout.
    pub fn on_layout_change(&mut self) {
        self.classifier = StepClassifier::default();
        self.pauses.on_layout_change();
        self.shares.on_layout_change();
        self.regression.reset_window();
    }

    /// Returns the rule on installed versions, by node.
    pub fn versions(&self) -> &VersionRule {
        &self.versions
    }

    /// Takes an event of a node. Call it after `roster` has taken the event.
    pub fn on_event(&mut self, at: Time, frame: &Frame, roster: &Roster) {
        match &frame.event {
            Event::Step(step) if step.restart == roster.restart => {
                self.provenance = self.provenance.max(frame.provenance);
            }
            Event::Baseline(baseline) => self.baseline.set_baseline(baseline),
            Event::Agent(agent) => self.versions.agent(&frame.node, frame.provenance, agent),
            Event::Attach(attach) if roster.member(attach.rank).is_some() => {
                self.versions.attach(&frame.node, frame.provenance, attach);
                self.ledger.attach(at, roster.world_size);
            }
            _ => {}
        }
    }

    /// Returns the first step of the epoch.
    pub fn first_step(&self) -> Option<u64> {
        self.baseline.first_step()
    }

    /// Returns the ledger of how the job's GPUs spent their time.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Returns the step time without the current problems, divided by the actual step time.
    pub fn remaining_ratio(&self, straggler: &StragglerRule) -> f64 {
        self.open_shares(straggler).into_iter().map(left).product()
    }

    /// Returns the duration of an ordinary step without the current problems, in seconds.
    pub fn what_if_s(&self, straggler: &StragglerRule) -> Option<f64> {
        let usual_s = self.ledger.usual_s()?;
        let [of_ranks, of_groups, of_all] = self.open_shares(straggler);
        // Two lower limits apply. Occasional losses of ranks may cost more than their share of an ordinary step, but
        // that step still waits for their peers. And no step is shorter than the work in it.
        let even_s = self.ledger.even_s()?.min(usual_s);
        let of_own_s = (usual_s * left(of_ranks)).max(even_s);
        let work_s = self.ledger.work_s()?.min(of_own_s);
        let least_s = if self.shares.is_work_uneven() {
            work_s
        } else {
            work_s.max(even_s)
        };
        Some((of_own_s * left(of_groups)).max(least_s) * left(of_all))
    }

    /// Returns the shares of a step that are lost according to open findings: by slow ranks, by shares of the work, and
    /// by the whole job.
    fn open_shares(&self, straggler: &StragglerRule) -> [f64; 3] {
        let raised = straggler.raised().iter();
        [
            raised.map(|slow| slow.account.impact_now()).sum(),
            self.shares.open_share(),
            self.regression.open_share().max(self.baseline.open_share()),
        ]
    }

    /// Returns the causes of slowness that currently rotates between ranks.
    pub fn rotating(&self) -> [Option<Cause>; 3] {
        let mut causes = self.rotating.open_causes();
        // If many ranks have host problems in turn, this is also reported for the job.
        if self.shares.outcome_now(Finding::CpuContention).is_some() {
            causes[0] = Some(Cause::CpuContention);
        }
        causes
    }

    /// Returns the spread of self-times that no cause explains.
    pub fn unexplained_spread(&self, limits: &Thresholds) -> Option<f64> {
        self.shares.unexplained_spread(limits)
    }

    /// Returns the next claim.
    pub fn poll(&mut self) -> Option<Claim> {
        self.out.pop_front().or_else(|| self.versions.poll())
    }

    /// Separates a long undeclared step from ordinary ones. Call it before any rule takes the step.
    pub fn sort(&mut self, matrix: &mut StepMatrix<'_>, limits: &Thresholds, is_between: bool) {
        let is_habit = self.pauses.observe(matrix, &self.classifier, limits);
        // If few ranks reported, the step is not classified.
        let is_whole = matrix.rank_steps.len() * 2 > matrix.plan.ranks || matrix.is_empty();
        self.sort = if is_whole {
            self.classifier.sort(matrix, &limits.kinds, is_between)
        } else {
            StepClass::AsDeclared
        };
        if is_habit && matrix.kind == StepKind::Train {
            self.sort = StepClass::Periodic;
        }
        match self.sort {
            StepClass::AsDeclared => {}
            StepClass::Outlier => matrix.kind = StepKind::Outlier,
            StepClass::Periodic => matrix.kind = StepKind::PeriodicPause,
        }
    }

    /// Finds a rank that occasionally delays its peers alone, and books what this step lost to that rank.
    pub fn pauses(&mut self, view: &View<'_>, matrix: &StepMatrix<'_>, stood: Stood) {
        let (ledger, out) = (&mut self.ledger, &mut self.out);
        self.pauses
            .row(view, matrix, (stood, self.provenance), ledger, out);
    }

    /// Returns true if the step is an isolated stall. Such a step is not used to judge the steps before and after it.
    pub fn stalled(&self, matrix: &StepMatrix<'_>, stood: Stood) -> bool {
        self.ledger.is_stall(matrix, self.steady, stood)
    }

    /// Takes a step in which the job stood still, or one that stalled.
    pub fn stood(&mut self, matrix: &StepMatrix<'_>, stood: Stood, is_stall: bool) {
        let teller = if is_stall { Teller::Stall } else { Teller::Nobody };
        let took = Took {
            all_s: matrix.dur_s,
            even_s: matrix.dur_s,
            work_s: matrix.mean_work_s(),
        };
        self.ledger.row(matrix, self.steady, stood, teller, took);
    }

    /// Takes a classified step, after the straggler rule has taken it.
    pub fn row(
        &mut self,
        view: &View<'_>,
        matrix: &StepMatrix<'_>,
        straggler: &StragglerRule,
        links: &LinkRule,
        stood: Stood,
    ) {
        self.versions.judge(view.at, view.job);
        if straggler.is_between_samples() {
            let took = self.took.in_step(matrix.dur_s);
            let teller = self.teller(matrix, straggler);
            return self.ledger.row(matrix, self.steady, stood, teller, took);
        }
        let mut job_step = JobStep::new(view, matrix, straggler.raised(), self.provenance);
        job_step.link_is_slow = links.is_any_slow();
        job_step.shifted = self.regression.open_share() > 0.0;
        job_step.apart = self.sort == StepClass::Outlier;
        if self.absent.has_changed(matrix) {
            // Learn the usual levels again, because an absent rank may be the one for which all others wait.
            self.regression.reset_window();
            self.shares.reset_window();
        }
        if matrix.kind == StepKind::Train {
            let level = job_step.common_step_s.ln();
            // As long as a role is as noisy as during compilation, the job does not count as steady.
            let noise = || {
                if straggler.has_warmed_up() {
                    0.0
                } else {
                    f64::INFINITY
                }
            };
            self.steady = self.warm_up.is_over(level, noise, &view.limits.straggler);
        }
        job_step.steady = self.steady;
        let teller = self.teller(matrix, straggler);
        for slow in straggler.raised().iter().filter(|slow| slow.step == matrix.step) {
            let late_s = slow.account.before_s() - slow.told_s;
            self.ledger.tell_late(slow.start, matrix.step, late_s);
        }
        // With several stages the even duration is set to 0, because it is not known how pipeline stages wait for each
        // other.
        let even_s = if matrix.plan.stages > 1 {
            0.0
        } else {
            job_step.common_step_s
        };
        let took = Took {
            all_s: matrix.dur_s,
            even_s,
            work_s: matrix.mean_work_s(),
        };
        self.took = took;
        self.ledger.row(matrix, self.steady, stood, teller, took);
        let rotates = |cause| self.rotating.is_open(cause);
        let even = self.shares.row(&job_step, rotates, &mut self.out);
        if self.steady && matrix.kind == StepKind::Train && even.is_some() != self.evened {
            // Learn the usual level again, because a different quantity is compared from now on.
            self.regression.reset_window();
            self.evened = even.is_some();
        }
        if let Some(even) = even {
            job_step.even_out(&even);
        }
        self.regression.row(&job_step, &mut self.out);
        self.baseline.row(&job_step, &self.regression, &mut self.out);
        let raised = straggler.raised();
        self.warm_ups.row(&job_step, raised, &mut self.out);
        let shares = &self.shares;
        let is_reported = |finding| shares.outcome_now(finding).is_some();
        self.rotating
            .row(&job_step, straggler, is_reported, &mut self.out);
        self.checkpoints.row(&job_step, raised, &mut self.out);
    }

    /// Returns what accounts for the excess of a step that took too long.
    fn teller(&self, matrix: &StepMatrix<'_>, straggler: &StragglerRule) -> Teller {
        let left_ratio = self.remaining_ratio(straggler);
        if left_ratio >= 1.0 {
            return Teller::Nobody;
        }
        let [_, of_groups, of_all] = self.open_shares(straggler);
        let is_of_all = of_groups > 0.0 || of_all > 0.0;
        let raised = straggler.raised();
        // Without self-times it is not known for which rank the step waited. It is then attributed to the incidents.
        let slowest = matrix.rank_steps.iter().max_by(|a, b| a.x.total_cmp(&b.x));
        let is_theirs = slowest.is_none_or(|rank_step| {
            let is_named = raised.iter().any(|slow| slow.members.contains(&rank_step.rank));
            is_named && rank_step.x > FAR
        });
        Teller::Incidents {
            left_ratio,
            is_theirs: is_of_all || is_theirs,
        }
    }

    /// Returns the outcome of an open finding so far.
    pub fn outcome_now(&self, finding: Finding, subject: &Subject, ranks: u32) -> Option<Outcome> {
        if finding == Finding::SlowCheckpoint {
            return self.checkpoints.outcome_now(subject, ranks);
        }
        if finding == Finding::SingleRankPause {
            return self.pauses.outcome_now(subject, ranks);
        }
        if !matches!(subject, Subject::Job { .. }) {
            return self.baseline.outcome_now(finding, subject, ranks);
        }
        let said = self.shares.outcome_now(finding);
        said.or_else(|| self.rotating.outcome_now(finding, ranks))
            .or_else(|| self.regression.outcome_now(finding, ranks))
            .or_else(|| self.baseline.outcome_now(finding, subject, ranks))
    }
}

fn left(share: f64) -> f64 {
    1.0 - share.clamp(0.0, 1.0)
}

/// Number of consecutive steps without a sample after which a rank counts as absent. Fewer may be lost samples.
const ABSENT_STEPS: u8 = 8;

/// Keeps track of ranks that stopped reporting.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Absent {
    /// By rank number: number of latest steps in a row without a sample.
    missed: Vec<u8>,
    absent: usize,
}

impl Absent {
    /// Takes a step. Returns true if ranks have disappeared or come back.
    fn has_changed(&mut self, matrix: &StepMatrix<'_>) -> bool {
        let ranks = matrix
            .rank_steps
            .last()
            .map_or(0, |rank_step| rank_step.rank.0 as usize + 1);
        self.missed.resize(self.missed.len().max(ranks), ABSENT_STEPS);
        for missed in &mut self.missed {
            *missed = missed.saturating_add(1).min(ABSENT_STEPS);
        }
        for rank_step in &matrix.rank_steps {
            self.missed[rank_step.rank.0 as usize] = 0;
        }
        let absent = self
            .missed
            .iter()
            .filter(|missed| **missed == ABSENT_STEPS)
            .count();
        let changed = absent != self.absent;
        self.absent = absent;
        changed
    }
}
