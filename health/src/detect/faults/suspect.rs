//! Results that may be wrong: which checkpoint was complete before the first sign of it.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::Scene;
use super::ledger::{Ledger, Part};
use crate::event::{Mark, Step, StepKind};
use crate::fault::{Remedy, When};
use crate::time::Time;
use crate::verdict::{Finding, Severity};

/// Checkpoints that are kept: an error is read within seconds.
const MAX_KEPT: usize = 64;
const PART: &str = "memory";

/// See the module.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Suspect {
    /// Steps that held a checkpoint, and when the last rank was done with it.
    checkpoints: VecDeque<(u64, Time)>,
    /// Results are suspect from after this step on; zero: from the start.
    tainted_after: Option<u64>,
    restarted: bool,
}

impl Suspect {
    /// Takes a step: it may hold a checkpoint, or show that the job has gone back behind what is suspect.
    pub fn step(&mut self, scene: &Scene<'_>, step: &Step, ledger: &mut Ledger) {
        if step.kind == StepKind::Checkpoint {
            self.checkpoint(step.step, scene.at);
        }
        let Some(after) = self.tainted_after else { return };
        if self.restarted && step.restart == scene.roster.restart {
            self.restarted = false;
            if step.step <= after + 1 {
                self.tainted_after = None;
                // What was written since is overwritten by what is computed anew.
                self.checkpoints.retain(|(kept, _)| *kept <= after);
                ledger.over(scene.at, Finding::ResultsSuspect, &scene.job_subject());
            }
        }
    }

    /// Takes a mark of the trainer's.
    pub fn mark(&mut self, scene: &Scene<'_>, mark: &Mark) {
        if &*mark.kind == "checkpoint" {
            self.checkpoint(mark.step, scene.at);
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

    /// The application was started again; from where its first step tells.
    pub fn restarted(&mut self) {
        self.restarted = true;
    }

    /// Results may be wrong since some time after `clean`, at which they still were right.
    pub fn taint(&mut self, scene: &Scene<'_>, ledger: &mut Ledger, clean: Time, why: &str) {
        let last = self
            .checkpoints
            .iter()
            .filter(|(_, done)| *done <= clean)
            .map(|(step, _)| *step)
            .max();
        let after = last.unwrap_or(0);
        // What is suspect already stays so from where it was.
        let after = self.tainted_after.map_or(after, |known| known.min(after));
        self.tainted_after = Some(after);
        let mut part = Part::new(scene, Severity::Critical, why).asks(Remedy::RestartApp, When::Now);
        part.since = clean;
        part.since_step = Some(after + 1);
        part.more = if after == 0 {
            "No checkpoint of this run is known to be older: everything it computed is suspect.".to_owned()
        } else {
            format!(
                "Go back to the checkpoint of step {after}: steps from {} on may be wrong.",
                after + 1
            )
        };
        if after > 0 {
            part = part.shows("last_clean_checkpoint_step", after as f64);
        }
        ledger.hold(scene, Finding::ResultsSuspect, &scene.job_subject(), PART, part);
    }
}
