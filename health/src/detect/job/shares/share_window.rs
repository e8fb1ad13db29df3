//! The share of step time that one kind of loss takes, over a window of steady steps. A finding is raised when the
//! share reaches a bar, and cleared when it falls below half of the bar.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::detect::claim::{Claim, Detail, Outcome, over};
use crate::detect::job::job_step::JobStep;
use crate::event::Signal;
use crate::time::Time;
use crate::verdict::{Cause, Evidence, Finding, Severity, Subject};

/// The shares from which a finding is a warning, and from which it is critical.
#[derive(Clone, Copy, Debug)]
pub struct Bars {
    pub warning: f64,
    pub critical: f64,
}

impl Bars {
    /// Returns the bars of `impact`, for shares that have no bars of their own.
    pub fn of_impact(job_step: &JobStep<'_>) -> Bars {
        let limits = &job_step.view.limits.impact;
        Bars {
            warning: limits.warning_ratio,
            critical: limits.critical_ratio,
        }
    }
}

/// The finding of a window.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Meaning {
    pub finding: Finding,
    pub cause: Cause,
    /// True if the time is lost. False if it is necessary, or if it is not known whether it is.
    pub lost: bool,
}

/// One step: its number and time, and its loss and duration in seconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Part {
    step: u64,
    at: Time,
    lost_s: f64,
    dur_s: f64,
}

/// The latest steady steps, and the open finding.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct ShareWindow {
    window: VecDeque<Part>,
    open: Option<Open>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Open {
    severity: Severity,
    since: Time,
    since_step: u64,
    raised_step: u64,
    lost_s: f64,
    dur_s: f64,
    /// Duration of the latest steps with a share below the bar. They are counted separately because the finding may
    /// already be over.
    fading_s: f64,
    /// Number of ranks that lose the time.
    ranks: f64,
    meaning: Meaning,
}

impl Open {
    fn add(&mut self, lost_s: f64, dur_s: f64, fading: bool) {
        self.lost_s += lost_s;
        self.fading_s += dur_s;
        if !fading {
            self.dur_s += self.fading_s;
            self.fading_s = 0.0;
        }
    }

    fn impact(&self) -> f64 {
        (self.lost_s / self.dur_s.max(1e-9)).max(0.0)
    }

    fn lost_rank_s(&self) -> f64 {
        self.lost_s.max(0.0) * self.ranks
    }
}

impl ShareWindow {
    /// Takes the loss of a step, which may be negative by chance. Returns the change of the finding. `evidence` is
    /// called only if there is something to report, and `worst` is the highest possible severity.
    pub fn take(
        &mut self,
        job_step: &JobStep<'_>,
        meaning: Meaning,
        lost_s: f64,
        bars: Bars,
        worst: Severity,
        evidence: impl FnOnce() -> Vec<Evidence>,
    ) -> Option<Claim> {
        let matrix = job_step.matrix;
        let length = job_step.view.limits.shares.window_steps.max(1) as usize;
        self.window.push_back(Part {
            step: matrix.step,
            at: matrix.at,
            lost_s,
            dur_s: matrix.dur_s,
        });
        let surplus = self.window.len().saturating_sub(length);
        self.window.drain(..surplus);
        let share = self.share();
        if let Some(open) = &mut self.open {
            open.add(lost_s, matrix.dur_s, share < bars.warning);
        }
        if self.window.len() < length {
            return None;
        }
        let severity = if share >= bars.critical {
            Severity::Critical
        } else {
            Severity::Warning
        }
        .min(worst);
        match &mut self.open {
            Some(_) if share < bars.warning / 2.0 => self.close(job_step.view.at, &job_step.job()),
            Some(open) if severity <= open.severity || share < bars.warning => None,
            Some(open) => {
                open.severity = severity;
                self.claim(job_step, evidence())
            }
            None if share >= bars.warning => {
                self.open(job_step, meaning, severity);
                self.claim(job_step, evidence())
            }
            None => None,
        }
    }

    /// Returns the share of the window's time that was lost.
    pub fn share(&self) -> f64 {
        let lost: f64 = self.window.iter().map(|part| part.lost_s).sum();
        let dur: f64 = self.window.iter().map(|part| part.dur_s).sum();
        lost / dur.max(1e-9)
    }

    /// Returns the share of a step that an open finding loses now.
    pub fn open_share(&self) -> f64 {
        let open = self.open.as_ref().filter(|open| open.meaning.lost);
        open.map_or(0.0, |_| self.share().clamp(0.0, 1.0))
    }

    /// Returns true if the finding is open.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Clears the window. An open finding continues.
    pub fn reset_window(&mut self) {
        self.window.clear();
    }

    /// Ends the open finding and clears the window.
    pub fn end(&mut self, at: Time, job: &Subject) -> Option<Claim> {
        self.window.clear();
        self.close(at, job)
    }

    /// Returns the outcome of the open finding so far.
    pub fn outcome_now(&self, finding: Finding) -> Option<Outcome> {
        let open = self
            .open
            .as_ref()
            .filter(|open| open.meaning.finding == finding)?;
        Some(outcome(open))
    }

    fn open(&mut self, job_step: &JobStep<'_>, meaning: Meaning, severity: Severity) {
        let Some(first) = self.window.front() else {
            return;
        };
        self.open = Some(Open {
            severity,
            since: first.at,
            since_step: first.step,
            raised_step: job_step.matrix.step,
            lost_s: self.window.iter().map(|part| part.lost_s).sum(),
            dur_s: self.window.iter().map(|part| part.dur_s).sum(),
            fading_s: 0.0,
            ranks: if meaning.lost {
                f64::from(job_step.view.roster.world_size)
            } else {
                0.0
            },
            meaning,
        });
    }

    fn close(&mut self, at: Time, job: &Subject) -> Option<Claim> {
        let open = self.open.take()?;
        Some(over(at, open.meaning.finding, job.clone(), outcome(&open)))
    }

    fn claim(&self, job_step: &JobStep<'_>, evidence: Vec<Evidence>) -> Option<Claim> {
        let open = self.open.as_ref()?;
        let mut signals = vec![Signal::S2];
        if open.meaning.cause == Cause::CpuContention {
            signals.push(Signal::S4);
        }
        let detail = Detail {
            signals,
            since: open.since,
            since_step: Some(open.since_step),
            step: Some(open.raised_step),
            cause: open.meaning.cause,
            impact_ratio: Some(open.impact()),
            lost_rank_s: open.lost_rank_s(),
            evidence,
            ..job_step.detail(open.severity)
        };
        Some(job_step.holds(open.meaning.finding, job_step.job(), detail))
    }
}

fn outcome(open: &Open) -> Outcome {
    Outcome {
        lost_rank_s: open.lost_rank_s(),
        impact_ratio: Some(open.impact()),
        ..Outcome::default()
    }
}
