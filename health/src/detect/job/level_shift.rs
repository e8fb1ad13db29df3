//! A level shift: a step time or self-time that is above its reference level, from the first such step to its recovery,
//! with its cost.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::job_step::JobStep;
use crate::detect::cause::causes::Explained;
use crate::detect::claim::{Claim, Detail, Outcome, over, piece};
use crate::policy::ShiftThresholds;
use crate::stats;
use crate::time::Time;
use crate::verdict::{Cause, Evidence, Finding, Severity, Subject};

/// Interval between two searches for a cause.
const ASKED_EVERY: Duration = Duration::from_secs(1);

/// A level: mean and noise of ln seconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Level {
    pub mean: f64,
    pub sigma: f64,
}

impl Level {
    /// Computes the level of some values. Returns `None` if there are too few.
    pub fn of(values: &[f64]) -> Option<Level> {
        let mean = stats::median(&mut values.to_vec())?;
        let sigma = stats::lasting_sigma(values)?;
        Some(Level { mean, sigma })
    }

    /// Returns the level with the mean of `values` and the noise of this one. A few values are enough for a mean but
    /// not for the noise.
    pub fn moved_to(self, values: &[f64]) -> Level {
        let now = Level::of(values).unwrap_or(self);
        Level {
            mean: now.mean,
            sigma: now.sigma.max(self.sigma),
        }
    }

    /// Returns by how much a mean must exceed this level to count as a change.
    pub fn bar(&self, table: &ShiftThresholds) -> f64 {
        table.change_ratio.ln().max(table.change_sigmas * self.sigma)
    }

    /// Returns true if all of `values` exceed this level, and their mean exceeds it by as much as a change requires.
    pub fn is_left(&self, values: &[f64], table: &ShiftThresholds) -> bool {
        let bar = self.bar(table);
        let mean = stats::mean(values);
        !values.is_empty()
            && mean - self.mean >= bar
            && values.iter().all(|value| value - self.mean >= bar / 2.0)
    }
}

/// An open level shift.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LevelShift {
    pub finding: Finding,
    pub subject: Subject,
    /// The reference level.
    pub base: Level,
    pub since: Time,
    pub since_step: u64,
    raised_step: u64,
    /// Additional evidence from when the shift was raised.
    evidence: Vec<Evidence>,
    /// The cause that counters show, how many times in a row they no longer showed it, and when they were last checked.
    explained: Option<Explained>,
    unsupported: u32,
    asked: Time,
    severity: Severity,
    lost_s: f64,
    dur_s: f64,
    /// Duration of the steps since the level was last above the bar. They are counted separately because the shift may
    /// already be over.
    fading_s: f64,
    level_s: f64,
    rows: f64,
}

impl LevelShift {
    /// Creates a shift that began at `since_step`. `values` are ln seconds of its steps up to now.
    pub fn new(
        job_step: &JobStep<'_>,
        finding: Finding,
        subject: Subject,
        base: Level,
        (since_step, since): (u64, Time),
        values: &[f64],
        evidence: Vec<Evidence>,
    ) -> LevelShift {
        let mut slower = LevelShift {
            finding,
            subject,
            base,
            since,
            since_step,
            raised_step: job_step.matrix.step,
            evidence,
            explained: None,
            unsupported: 0,
            asked: Time::ZERO,
            severity: Severity::Info,
            lost_s: 0.0,
            dur_s: 0.0,
            fading_s: 0.0,
            level_s: 0.0,
            rows: 0.0,
        };
        for value in values {
            slower.add(*value);
        }
        slower.severity = job_step.severity(slower.impact());
        slower
    }

    fn add(&mut self, value: f64) {
        let (base, now) = (self.base.mean.exp(), value.exp());
        self.lost_s += now - base;
        self.fading_s += now;
        if value - self.base.mean > self.base.sigma {
            self.dur_s += self.fading_s;
            self.fading_s = 0.0;
        }
        self.level_s += now;
        self.rows += 1.0;
    }

    /// Takes a step. Returns true if the severity has increased.
    pub fn take(&mut self, job_step: &JobStep<'_>, value: f64) -> bool {
        self.add(value);
        let severity = job_step.severity(self.impact());
        let worse = severity > self.severity;
        self.severity = self.severity.max(severity);
        worse
    }

    /// Returns true if it is time to search for the cause again.
    pub fn asks_again(&self, now: Time) -> bool {
        now.since(self.asked) >= ASKED_EVERY
    }

    /// Takes the cause that counters show. Returns true if it changed. A cause that the counters no longer show is
    /// dropped after `patience` times in a row.
    pub fn explain(&mut self, now: Time, found: Option<Explained>, patience: u32) -> bool {
        self.asked = now;
        let before = self.cause();
        if found.as_ref().is_some_and(|found| found.cause == before) || self.explained.is_none() {
            (self.explained, self.unsupported) = (found, 0);
        } else {
            self.unsupported += 1;
            if self.unsupported >= patience {
                (self.explained, self.unsupported) = (found, 0);
            }
        }
        self.cause() != before
    }

    fn cause(&self) -> Cause {
        self.explained
            .as_ref()
            .map_or(Cause::Unknown, |explained| explained.cause)
    }

    /// Returns the actual time divided by the reference time.
    pub fn slowdown(&self) -> f64 {
        1.0 / (1.0 - self.impact()).max(1e-3)
    }

    /// Returns true if the latest steps are all back at the reference level. This is the mirrored test of
    /// `Level::is_left`.
    pub fn is_over(&self, latest: &[f64], table: &ShiftThresholds) -> bool {
        let half = self.base.bar(table) / 2.0;
        latest.len() >= table.held_steps as usize && latest.iter().all(|value| value - self.base.mean < half)
    }

    fn impact(&self) -> f64 {
        (self.lost_s / self.dur_s.max(1e-9)).clamp(0.0, 1.0)
    }

    /// Returns the share of a step that is lost while the shift holds.
    pub fn share(&self) -> f64 {
        self.impact()
    }

    /// Returns true if the shift concerns the whole job.
    pub fn is_of_job(&self) -> bool {
        matches!(self.subject, Subject::Job { .. })
    }

    /// Returns the outcome so far, or at the end. The cost of a single node is reported against its peers. `ranks` is
    /// the number of ranks that lose the time.
    pub fn outcome(&self, ranks: u32) -> Outcome {
        Outcome {
            lost_rank_s: if self.is_of_job() {
                self.lost_s.max(0.0) * f64::from(ranks)
            } else {
                0.0
            },
            slowdown_ratio: Some(self.slowdown()),
            impact_ratio: Some(self.impact()),
            evidence: Vec::new(),
        }
    }

    /// Creates the claim that the shift holds.
    pub fn claim(&self, job_step: &JobStep<'_>) -> Claim {
        let outcome = self.outcome(job_step.view.roster.world_size);
        let measured = if self.is_of_job() { "step_s" } else { "self_time_s" };
        let mut evidence = vec![piece(
            measured,
            self.level_s / self.rows.max(1.0),
            Some(self.base.mean.exp()),
        )];
        evidence.extend(self.evidence.iter().cloned());
        let base = job_step.detail(self.severity);
        let (mut signals, mut provenance) = (base.signals.clone(), base.provenance);
        if let Some(explained) = &self.explained {
            evidence.extend(explained.evidence.iter().cloned());
            let new = |signal: &&_| !base.signals.contains(signal);
            signals.extend(explained.signals.iter().filter(new));
            provenance = provenance.max(explained.provenance);
        }
        let detail = Detail {
            signals,
            provenance,
            since: self.since,
            since_step: Some(self.since_step),
            step: Some(self.raised_step),
            cause: self.cause(),
            slowdown_ratio: outcome.slowdown_ratio,
            impact_ratio: outcome.impact_ratio,
            lost_rank_s: outcome.lost_rank_s,
            evidence,
            ..base
        };
        job_step.holds(self.finding, self.subject.clone(), detail)
    }

    /// Creates the claim that the shift is over.
    pub fn end(&self, at: Time, ranks: u32) -> Claim {
        over(at, self.finding, self.subject.clone(), self.outcome(ranks))
    }
}
