//! What a step takes, given what each rank does: the critical path.
//!
//! Ranks of one stage of one replica move together, so a stage takes what its slowest rank takes. A replica of `p`
//! stages with `m` micro-batches runs one forward and one backward at a time (1F1B): it fills and drains once through
//! all stages and is otherwise held by its slowest, `(sum of stages + (m - 1) × slowest stage) / m`, each stage's time
//! being that of all its micro-batches (Narayanan et al., SC 2021, <https://arxiv.org/abs/2104.04473>). Replicas meet
//! at the end of the step. Without a pipeline that is the slowest rank of all.

use super::plan::{Place, Plan};

/// The shape of a step, with scratch space of its own.
#[derive(Clone, Debug, Default)]
pub struct Path {
    stages: usize,
    micro_batches: f64,
    scratch: Vec<f64>,
}

impl Path {
    /// The shape of the steps of `plan`; `seen` backward passes stand in for what was not declared.
    pub fn new(plan: &Plan, seen: u16) -> Path {
        let micro = plan.micro_batches.map_or(u32::from(seen), |declared| declared);
        Path {
            stages: plan.stages.max(1) as usize,
            micro_batches: f64::from(micro.max(1)),
            scratch: vec![0.0; plan.stages.max(1) as usize * plan.replicas.max(1) as usize],
        }
    }

    /// What the step takes when each rank works as long as it is said to, seconds; without transfers.
    pub fn step_s(&mut self, ranks: impl Iterator<Item = (Place, f64)>) -> f64 {
        if self.stages == 1 {
            return ranks.map(|(_, own)| own).fold(0.0, f64::max);
        }
        self.scratch.fill(0.0);
        for (place, own) in ranks {
            let cell = place.replica as usize * self.stages + place.stage as usize;
            if let Some(slowest) = self.scratch.get_mut(cell) {
                *slowest = slowest.max(own);
            }
        }
        let replica = |stages: &[f64]| {
            let sum: f64 = stages.iter().sum();
            let slowest = stages.iter().copied().fold(0.0, f64::max);
            (sum + (self.micro_batches - 1.0) * slowest) / self.micro_batches
        };
        self.scratch.chunks(self.stages).map(replica).fold(0.0, f64::max)
    }
}
