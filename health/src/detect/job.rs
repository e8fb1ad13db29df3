//! What is the job's own: the rules that look at all ranks together and name none for what they share.
//!
//! One [`Scene`] is made of each closed step, with what is already found slow set to its peers' speed, and each rule
//! takes it in turn.

use std::collections::VecDeque;

use super::board::Board;
use super::claim::{Claim, Outcome};
use super::kinds::{Kinds, Sort};
use super::noise::WarmUp;
use super::scene::Scene;
use super::shares::Shares;
use super::straggler::{StragglerRule, View};
use crate::event::StepKind;
use crate::frame::Provenance;
use crate::id::JobId;
use crate::policy::Thresholds;
use crate::time::Time;
use crate::verdict::{Finding, Subject};

/// The rules.
#[derive(Debug, Default)]
pub struct JobRules {
    kinds: Kinds,
    /// What the latest step was found to be.
    sort: Sort,
    warm_up: WarmUp,
    shares: Shares,
    provenance: Provenance,
    out: VecDeque<Claim>,
}

impl JobRules {
    /// A new group of ranks begins.
    pub fn begin_epoch(&mut self, at: Time, job: &JobId) {
        self.kinds = Kinds::default();
        self.warm_up = WarmUp::default();
        let subject = Subject::Job { job: job.clone() };
        self.shares.end(at, &subject, &mut self.out);
    }

    /// Ranks stand elsewhere than before.
    pub fn reseat(&mut self) {
        self.kinds = Kinds::default();
        self.shares.reseat();
    }

    /// Where the step times came from.
    pub fn trust(&mut self, provenance: Provenance) {
        self.provenance = self.provenance.max(provenance);
    }

    /// The next claim.
    pub fn poll(&mut self) -> Option<Claim> {
        self.out.pop_front()
    }

    /// Tells an undeclared checkpoint or evaluation from an ordinary step, before any rule looks at it.
    pub fn sort(&mut self, board: &mut Board<'_>, limits: &Thresholds) {
        let sort = self.kinds.sort(board, &limits.kinds);
        if sort != Sort::AsDeclared {
            board.kind = StepKind::Checkpoint;
        }
        self.sort = sort;
    }

    /// Takes a step that was sorted, after the straggler rule has.
    pub fn row(&mut self, view: &View<'_>, board: &Board<'_>, straggler: &StragglerRule) {
        let mut scene = Scene::new(view, board, straggler.raised(), self.provenance);
        if board.kind == StepKind::Train {
            let level = scene.common_step_s.ln();
            scene.steady = self.warm_up.is_over(level, || 0.0, &view.limits.straggler);
        }
        self.shares.row(&scene, &mut self.out);
    }

    /// What there is to say of an open finding up to now.
    pub fn outcome_now(&self, finding: Finding, subject: &Subject) -> Option<Outcome> {
        match subject {
            Subject::Job { .. } => self.shares.outcome_now(finding),
            _ => None,
        }
    }
}
