//! The rest of a step as one problem after another is taken out, so that no second is counted twice.

use crate::detect::job::job_step::JobStep;

/// A step with some problems taken out, as self-time by rank and as step time.
pub struct Remaining {
    pub own: Vec<f64>,
    step_s: f64,
}

impl Remaining {
    /// Creates the step with only those problems taken out that were already found in slow ranks.
    pub fn new(job_step: &JobStep<'_>) -> Remaining {
        let own = job_step.own.clone();
        let step_s = job_step.step_s(|index| own[index]);
        Remaining { own, step_s }
    }

    /// Returns how much shorter the step would be if the ranks' self-times were `less`. By chance the result may be
    /// negative.
    pub fn gain(&self, job_step: &JobStep<'_>, less: &[f64]) -> f64 {
        self.step_s - job_step.step_s(|index| less[index])
    }

    /// Replaces the self-times with `less`. Returns how much shorter the step becomes.
    pub fn take_out(&mut self, job_step: &JobStep<'_>, less: Vec<f64>) -> f64 {
        let gain = self.gain(job_step, &less);
        self.own = less;
        self.step_s -= gain;
        gain
    }
}

/// Returns each self-time minus a part of it. A small rest always remains.
pub fn floored(own: &[f64], part: impl Fn(usize) -> f64) -> Vec<f64> {
    (0..own.len())
        .map(|index| (own[index] - part(index)).max(own[index] * 1e-3))
        .collect()
}
