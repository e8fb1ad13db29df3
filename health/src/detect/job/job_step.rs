//! One step as input for the job's rules. Ranks with an open finding are set to their peers' speed, and each role has
//! the level that its members share.

use std::cell::RefCell;

use crate::detect::claim::{Body, Claim, Detail};
use crate::detect::step::matrix::StepMatrix;
use crate::detect::step::path::Path;
use crate::detect::straggler::open_straggler::{Extent, OpenStraggler};
use crate::detect::view::View;
use crate::event::Signal;
use crate::frame::Provenance;
use crate::verdict::{Cause, Finding, Severity, Subject};

/// Input of the job's rules for one step. Times are in seconds.
#[derive(Debug)]
pub struct JobStep<'a> {
    pub view: &'a View<'a>,
    pub matrix: &'a StepMatrix<'a>,
    pub provenance: Provenance,
    /// True if the job has warmed up.
    pub steady: bool,
    /// True if the step stood out for no known reason. It is then treated as an outlier.
    pub apart: bool,
    /// Self-time by rank, corrected for open findings.
    pub own: Vec<f64>,
    /// By role of the plan: the common self-time of its members at their usual work. With an even number of members it
    /// is the lower of the two middle values, so that one slow rank of two does not change it.
    pub common: Vec<f64>,
    /// The step time if every rank were at its role's level, and the time of transfers, which no rank's work explains.
    pub common_step_s: f64,
    pub exposed_s: f64,
    /// True if many ranks were already found slow together, which is reported for the job.
    pub job_is_slow: bool,
    /// True if a slowdown of the job is already reported.
    pub shifted: bool,
    /// True if some rank, or some link, is known to be slow.
    pub rank_is_slow: bool,
    pub link_is_slow: bool,
    path: RefCell<Path>,
}

impl<'a> JobStep<'a> {
    /// Derives the step from the matrix and the open straggler findings.
    pub fn new(
        view: &'a View<'a>,
        matrix: &'a StepMatrix<'a>,
        raised: &[OpenStraggler],
        provenance: Provenance,
    ) -> JobStep<'a> {
        let mut own: Vec<f64> = matrix
            .rank_steps
            .iter()
            .map(|rank_step| rank_step.self_s)
            .collect();
        for slow in raised.iter().filter(|slow| slow.rotates_for.is_none()) {
            let factor = slow.account.x_lately().exp();
            for rank in &slow.members {
                if let Ok(place) = matrix
                    .rank_steps
                    .binary_search_by_key(rank, |rank_step| rank_step.rank)
                {
                    own[place] /= factor;
                }
            }
        }
        let mut job_step = JobStep {
            view,
            matrix,
            provenance,
            steady: false,
            apart: false,
            own,
            common: Vec::new(),
            common_step_s: matrix.dur_s,
            exposed_s: 0.0,
            job_is_slow: raised.iter().any(|slow| slow.extent == Extent::Job),
            shifted: false,
            rank_is_slow: raised.iter().any(|slow| slow.rotates_for.is_none()),
            link_is_slow: false,
            path: RefCell::new(matrix.path()),
        };
        if matrix.is_empty() {
            return job_step;
        }
        job_step.common = job_step.levels(|_| 1.0);
        let actual = job_step.step_s(|index| matrix.rank_steps[index].self_s);
        job_step.exposed_s = (matrix.dur_s - actual).max(0.0);
        job_step.common_step_s = job_step.step_of_levels();
        job_step
    }

    /// Removes the effect of uneven work from the common levels by multiplying each rank's self-time by its factor.
    pub fn even_out(&mut self, factors: &[f64]) {
        self.common = self.levels(|index| factors[index]);
        self.common_step_s = self.step_of_levels();
    }

    fn step_of_levels(&self) -> f64 {
        let role = |index: usize| self.matrix.rank_steps[index].place.role as usize;
        self.step_s(|index| self.common[role(index)]) + self.exposed_s
    }

    /// Returns the step time if each rank works as long as `own` says, without transfers.
    pub fn step_s(&self, own: impl Fn(usize) -> f64) -> f64 {
        let rank_steps = self.matrix.rank_steps.iter().enumerate();
        self.path
            .borrow_mut()
            .step_s(rank_steps.map(|(index, rank_step)| (rank_step.place, own(index))))
    }

    fn levels(&self, factor: impl Fn(usize) -> f64) -> Vec<f64> {
        let mut of_role: Vec<Vec<f64>> = vec![Vec::new(); self.matrix.roles.len()];
        for (index, (rank_step, own)) in self.matrix.rank_steps.iter().zip(&self.own).enumerate() {
            if let Some(members) = of_role.get_mut(rank_step.place.role as usize) {
                members.push(factor(index) * own * rank_step.fair_s / rank_step.self_s);
            }
        }
        let level = |mut members: Vec<f64>| {
            let middle = members.len().checked_sub(1)? / 2;
            Some(*members.select_nth_unstable_by(middle, f64::total_cmp).1)
        };
        of_role
            .into_iter()
            .map(|members| level(members).unwrap_or(0.0))
            .collect()
    }

    /// Returns the severity of losing a share of the steps' time.
    pub fn severity(&self, impact: f64) -> Severity {
        self.view.limits.impact.severity(impact)
    }

    /// Returns the whole job as a subject.
    pub fn job(&self) -> Subject {
        Subject::Job {
            job: self.view.job.clone(),
        }
    }

    /// Returns what the job lost, in rank-seconds, if each rank lost this many seconds.
    pub fn lost(&self, seconds: f64) -> f64 {
        seconds.max(0.0) * f64::from(self.view.roster.world_size)
    }

    /// Creates the detail of a claim, to be filled in by the caller.
    pub fn detail(&self, severity: Severity) -> Detail {
        let signal = if self.matrix.is_empty() {
            Signal::S0
        } else {
            self.matrix.signal
        };
        Detail {
            severity,
            since: self.view.at,
            since_step: None,
            step: Some(self.matrix.step),
            cause: Cause::Unknown,
            signals: vec![signal],
            provenance: self.provenance,
            slowdown_ratio: None,
            impact_ratio: None,
            lost_rank_s: 0.0,
            evidence: Vec::new(),
            says: None,
        }
    }

    /// Creates the claim that a finding holds.
    pub fn holds(&self, finding: Finding, subject: Subject, detail: Detail) -> Claim {
        Claim {
            finding,
            subject,
            at: self.view.at,
            body: Body::Holds(Box::new(detail)),
        }
    }
}
