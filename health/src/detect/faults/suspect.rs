//! Results that may be wrong: the last checkpoint completed before the first sign of it, and the work to repeat.
//!
//! The GPU's finding reports it while that holds. Once the GPU is healthy again and the job has not rolled back, the
//! job has a finding of its own.

use std::collections::{BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use super::FaultContext;
use super::ledger::{Ledger, Part};
use crate::event::{Mark, Step, StepKind};
use crate::fault::{Remedy, When};
use crate::time::Time;
use crate::verdict::{Finding, Severity, Subject};

/// Maximum checkpoints kept: an error is read within seconds.
const MAX_KEPT: usize = 64;
const PART: &str = "memory";
/// Maximum GPU findings that report it.
const MAX_CARDS: usize = 64;
/// Evidence: the checkpoint to resume from, or that there is none.
const CLEAN: &str = "last_clean_checkpoint_step";
const NO_CLEAN: &str = "no_clean_checkpoint";

/// See the module.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Suspect {
    /// Steps with a checkpoint, and when the last rank completed it.
    checkpoints: VecDeque<(u64, Time)>,
    /// Results after this step are suspect; zero: from the start.
    tainted_after: Option<u64>,
    /// When that step ended.
    tainted_since: Time,
    /// Findings that report it.
    cards: BTreeSet<(Finding, Subject)>,
    /// When the first step ended.
    began: Option<Time>,
    restarted: bool,
}

impl Suspect {
    /// Takes a step: it may contain a checkpoint, or show that the job resumed from before the suspect results.
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
                // Later checkpoints are overwritten by repeated work.
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

    /// Takes a mark from the trainer.
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

    /// The application was restarted; its first step shows from where.
    pub fn restarted(&mut self) {
        self.restarted = true;
    }

    /// Results may be wrong since some time after `clean`, when they were still right. `card`: the finding on the GPU.
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
        // Results that are already suspect remain so.
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

    /// Work to repeat so far because of a finding, rank-seconds.
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
