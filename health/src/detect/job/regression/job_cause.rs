//! Finds why the whole job became slower, according to its GPUs: most of them are now throttled by heat or held at a
//! power limit, and were not before.
//!
//! A comparison with peers cannot show this, because all GPUs are affected alike. GPU readings are therefore compared
//! with those from before the change.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::detect::cause::causes::{Explained, explains};
use crate::detect::cause::facts::{Fact, Facts};
use crate::detect::job::job_step::JobStep;
use crate::event::Signal;
use crate::policy::Thresholds;
use crate::time::Time;
use crate::verdict::Cause;

/// Number of steps between two samples of the usual readings, and number of samples kept. Several are kept because a
/// change is dated back by some steps.
const LOOK_STEPS: u64 = 16;
const LOOKS: usize = 8;

/// Usual readings of the job's GPUs, as medians, oldest first.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct UsualCounters {
    looks: VecDeque<(Time, Facts)>,
    /// Start of the first sample.
    from: Option<Time>,
    steps: u64,
}

impl UsualCounters {
    /// Drops the samples, because other ranks report from now on, on other GPUs.
    pub fn reset(&mut self) {
        *self = UsualCounters::default();
    }

    /// Samples the readings at a steady step in which the job has its usual speed.
    pub fn observe(&mut self, job_step: &JobStep<'_>) {
        let from = *self.from.get_or_insert(job_step.view.at);
        self.steps += 1;
        if !self.steps.is_multiple_of(LOOK_STEPS) {
            return;
        }
        let since = self.looks.back().map_or(from, |(at, _)| *at);
        let facts = job_step.view.causes.of_job(since, &job_step.view.scope());
        self.looks.push_back((job_step.view.at, facts));
        if self.looks.len() > LOOKS {
            self.looks.pop_front();
        }
    }

    /// Returns the typical readings before `since`.
    fn before(&self, since: Time) -> Option<&Facts> {
        let mut earlier = self.looks.iter().rev().filter(|(at, _)| *at <= since);
        earlier.next().map(|(_, facts)| facts)
    }

    /// Returns the cause that most GPUs show since `since` and did not show before. `slower_ratio` is how much longer
    /// steps take.
    pub fn explain(&self, job_step: &JobStep<'_>, since: Time, slower_ratio: f64) -> Option<Explained> {
        let limits = job_step.view.limits;
        let before = self.before(since)?;
        let now = job_step.view.causes.of_job(since, &job_step.view.scope());
        if now.gpu_readings? < limits.causes.min_readings as usize {
            return None;
        }
        let (cause, evidence) = cause(&now, before, limits)?;
        let (now_mhz, before_mhz) = (now.of(Fact::SmClock)?, before.of(Fact::SmClock)?);
        let share = ((before_mhz / now_mhz - 1.0) / slower_ratio).clamp(0.0, 1.0);
        if now_mhz >= limits.causes.power_clock_ratio * before_mhz || share < limits.causes.explained_share {
            return None;
        }
        let mut all = vec![explains(cause, share, now.entries.unwrap_or_default())];
        all.extend(now.evidence(evidence, before));
        Some(Explained {
            cause,
            evidence: all,
            signals: vec![Signal::S3],
            provenance: now.provenance.max(before.provenance),
        })
    }
}

/// Returns the reason for low clocks that the GPUs themselves report, if it applies for the larger part of the time. A
/// cap that was always active is left out, because it is normal at full load.
fn cause(now: &Facts, before: &Facts, limits: &Thresholds) -> Option<(Cause, &'static [Fact])> {
    let risen = |fact| {
        now.of(fact)
            .map_or(0.0, |share| share - before.of(fact).unwrap_or(0.0))
    };
    let heat = risen(Fact::Thermal);
    let held = risen(Fact::PowerCap).max(risen(Fact::PowerBrake));
    let limit = now.of(Fact::PowerLimit).zip(before.of(Fact::PowerLimit));
    let is_lower = limit.is_some_and(|(now, before)| now < limits.causes.power_limit_ratio * before);
    let is_held = held >= limits.causes.power_points || is_lower;
    if heat >= limits.thermal.throttled_ratio && (heat >= held || !is_held) {
        return Some((
            Cause::Thermal,
            &[Fact::SmClock, Fact::Thermal, Fact::Temperature, Fact::Margin],
        ));
    }
    is_held.then_some((
        Cause::Power,
        &[
            Fact::SmClock,
            Fact::PowerCap,
            Fact::PowerBrake,
            Fact::Power,
            Fact::PowerLimit,
        ],
    ))
}
