//! Results that may be wrong: the last checkpoint completed before the first sign of an error, and the work that must
//! be repeated.
//!
//! As long as the GPU's own finding holds, that finding reports the suspect results. If the GPU is healthy again but
//! the job has not rolled back, the job gets a finding of its own.

use std::collections::{BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use super::FaultContext;
use super::ledger::{Ledger, Part};
use crate::event::{Mark, Step, StepKind};
use crate::fault::{Remedy, When};
use crate::time::Time;
use crate::verdict::{Finding, Severity, Subject};

/// Maximum number of checkpoints kept. This is enough because an error is read within seconds.
const MAX_KEPT: usize = 64;
const PART: &str = "memory";
/// Maximum number of GPU findings that report suspect results.
const MAX_CARDS: usize = 64;
/// Names of the evidence: the checkpoint to resume from, or that there is none.
const CLEAN: &str = "last_clean_checkpoint_step";
const NO_CLEAN: &str = "no_clean_checkpoint";

/// The state of this rule.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Suspect {
    /// Steps with a checkpoint, and when the last rank completed it.
    checkpoints: VecDeque<(u64, Time)>,
    /// The step after which results are suspect. Zero means that all results are.
    tainted_after: Option<u64>,
    /// Time when that step ended.
    tainted_since: Time,
    /// GPU findings that report the suspect results.
    cards: BTreeSet<(Finding, Subject)>,
    /// Time when the first step ended.
    began: Option<Time>,
    restarted: bool,
}

impl Suspect {
    /// Takes a step. The step may contain a checkpoint, or show that the job resumed from a step before the suspect
    /// results.
    pub fn step(&mut self, context: &FaultContext<'_>, step: &Step, ledger: &mut Ledger) {
        self.began.get_or_insert(context.at);
        if step.kind == StepKind::Checkpoint {
            self.checkpoint(step.step, context.at);
        }
        let Some(after) = self.tainted_after else { return };
        if self.restarted && step.restart == context.roster.restart {
            self.restarted = false;
            if step.step <= after.saturating_add(1) {
                self.tainted_after = None;
                // The job now repeats the steps after `after`, so the later checkpoints will be overwritten.
                self.checkpoints.retain(|(kept, _)| *kept <= after);
                ledger.over(context.at, Finding::ResultsSuspect, &context.job_subject());
                for (finding, subject) in std::mem::take(&mut self.cards) {
                    ledger.drop_part(context.at, finding, &subject, PART);
                }
                return;
            }
        }
        self.cards
            .retain(|(finding, subject)| ledger.is_open(*finding, subject));
        let job = context.job_subject();
        if self.cards.is_empty() && !ledger.is_open(Finding::ResultsSuspect, &job) {
            let does = format!("restart {}", self.checkpoint_words(after));
            let why = "A GPU had memory errors and is healthy again";
            let part = self
                .part(context, after, why, does)
                .asks(Remedy::RestartApp, When::Now);
            ledger.hold(context, Finding::ResultsSuspect, &job, PART, part);
        }
    }

    /// Takes a mark event of the trainer.
    pub fn mark(&mut self, context: &FaultContext<'_>, mark: &Mark) {
        if &*mark.kind == "checkpoint" {
            self.checkpoint(mark.step, context.at);
        }
    }

    fn checkpoint(&mut self, step: u64, at: Time) {
        match self.checkpoints.iter_mut().find(|(kept, _)| *kept == step) {
            Some((_, done)) => *done = at,
            None => {
                if self.checkpoints.len() == MAX_KEPT {
                    self.checkpoints.pop_front();
                }
                self.checkpoints.push_back((step, at));
            }
        }
    }

    /// Records that the application was restarted. Its first step will show from where it resumed.
    pub fn restarted(&mut self) {
        self.restarted = true;
    }

    /// Records that results may be wrong since some time after `clean`, the last time at which they were known to be
    /// right. `card` is the finding on the GPU.
    pub fn taint(
        &mut self,
        context: &FaultContext<'_>,
        ledger: &mut Ledger,
        clean: Time,
        why: &str,
        card: (Finding, Subject),
    ) {
        let last = self.checkpoints.iter().filter(|(_, done)| *done <= clean).max();
        let (after, since) = last.copied().unwrap_or((0, self.began.unwrap_or(context.at)));
        // Only move the start of the suspect results to an earlier step, because results that are already suspect
        // remain so.
        if self.tainted_after.is_none_or(|known| after < known) {
            (self.tainted_after, self.tainted_since) = (Some(after), since);
        }
        let after = self.tainted_after.unwrap_or(after);
        let does = format!(
            "drain {}, then restart {}",
            context.node,
            self.checkpoint_words(after)
        );
        let mut part = self
            .part(context, after, why, does)
            .asks(Remedy::DrainReset, When::Now);
        part.since = clean;
        ledger.hold(context, card.0, &card.1, PART, part);
        if self.cards.len() < MAX_CARDS {
            self.cards.insert(card);
        }
    }

    /// Returns the work that must be repeated so far because of a finding, in rank-seconds.
    pub fn retrain_s(&self, finding: Finding, subject: &Subject, now: Time, ranks: u32) -> Option<f64> {
        self.tainted_after?;
        let is_card = finding == Finding::ResultsSuspect || self.cards.contains(&(finding, subject.clone()));
        is_card.then(|| now.since(self.tainted_since).as_secs_f64() * f64::from(ranks))
    }

    fn part(&self, context: &FaultContext<'_>, after: u64, why: &str, does: String) -> Part {
        let ranks = context.roster.world_size;
        let mut part = Part::new(context, Severity::Critical, why);
        part.since_step = Some(after.saturating_add(1));
        part.lost_rank_s = context.at.since(self.tainted_since).as_secs_f64() * f64::from(ranks);
        part.does = does;
        if after > 0 {
            part.shows(CLEAN, after as f64)
        } else {
            part.shows(NO_CLEAN, 1.0)
        }
    }

    fn checkpoint_words(&self, after: u64) -> String {
        if after > 0 {
            let next = after.saturating_add(1);
            format!(
                "from the checkpoint of step {after}: steps from {next} on may be wrong and must be trained again."
            )
        } else {
            "from the beginning: no checkpoint of this run is older than the error, and all its results may be wrong."
                .to_owned()
        }
    }
}
