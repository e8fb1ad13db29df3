//! What is left of a step when one trouble after the other is taken out, so that no second is counted twice.

use crate::detect::job::scene::Scene;

/// A step with part of its trouble taken out: self-time by rank, and what the step takes.
pub struct Remaining {
    pub own: Vec<f64>,
    step_s: f64,
}

impl Remaining {
    /// With nothing taken out but what is found slow.
    pub fn new(scene: &Scene<'_>) -> Remaining {
        let own = scene.own.clone();
        let step_s = scene.step_s(|rank_step| own[rank_step]);
        Remaining { own, step_s }
    }

    /// What the step would be shorter with `less` in the place of each rank's self-time. By chance it may be longer.
    pub fn gain(&self, scene: &Scene<'_>, less: &[f64]) -> f64 {
        self.step_s - scene.step_s(|rank_step| less[rank_step])
    }

    /// Goes on with `less`.
    pub fn take_out(&mut self, scene: &Scene<'_>, less: Vec<f64>) -> f64 {
        let gain = self.gain(scene, &less);
        self.own = less;
        self.step_s -= gain;
        gain
    }
}

/// Each self-time less a part of it; something always remains.
pub fn floored(own: &[f64], part: impl Fn(usize) -> f64) -> Vec<f64> {
    (0..own.len())
        .map(|rank_step| (own[rank_step] - part(rank_step)).max(own[rank_step] * 1e-3))
        .collect()
}
