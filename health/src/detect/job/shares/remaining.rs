//! What is left of a step as one problem after another is taken out, so that no second is counted twice.

use crate::detect::job::job_step::JobStep;

/// A step with some problems taken out: self-time by rank, and the step time.
pub struct Remaining {
    pub own: Vec<f64>,
    step_s: f64,
}

impl Remaining {
    /// With nothing taken out but what was already found slow.
    pub fn new(job_step: &JobStep<'_>) -> Remaining {
        let own = job_step.own.clone();
        let step_s = job_step.step_s(|index| own[index]);
        Remaining { own, step_s }
    }

    /// How much shorter the step would be with `less` as the ranks' self-times. By chance it may be longer.
    pub fn gain(&self, job_step: &JobStep<'_>, less: &[f64]) -> f64 {
        self.step_s - job_step.step_s(|index| less[index])
    }

    /// Continues with `less`; returns the gain.
    pub fn take_out(&mut self, job_step: &JobStep<'_>, less: Vec<f64>) -> f64 {
        let gain = self.gain(job_step, &less);
        self.own = less;
        self.step_s -= gain;
        gain
    }
}

/// Each self-time minus a part of it; a small rest always remains.
pub fn floored(own: &[f64], part: impl Fn(usize) -> f64) -> Vec<f64> {
    (0..own.len())
        .map(|index| (own[index] - part(index)).max(own[index] * 1e-3))
        .collect()
}
