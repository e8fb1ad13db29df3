//! The effect of faults on a step. It has no side effects, so that a world without one of the faults can be simulated
//! next to the real one.

use super::Fault;
use crate::sim::chance::Chance;
use crate::sim::spec::WorldSpec;
use crate::sim::spec::shape::{House, Target};
use crate::sim::telemetry::gpu::GpuScript;
use crate::verdict::Cause;

/// Time that a GPU's clock needs to recover from heat, in seconds. The fault's effect lasts that much longer than the
/// fault.
const COOLING_S: f64 = 60.0;

/// The effect that a counterfactual world omits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Without {
    /// Omits nothing. The world is complete.
    Nothing,
    /// One fault, by its index in the spec.
    Fault(usize),
    /// All faults.
    Faults,
    /// Differences between pipeline stages.
    Stages,
    /// Differences between sequences.
    Sequences,
    /// Differences between experts.
    Experts,
    /// Garbage collection.
    Gc,
}

impl Without {
    /// Returns true if this fault is omitted.
    pub fn skips(self, index: usize) -> bool {
        self == Without::Faults || self == Without::Fault(index)
    }
}

/// The effect of faults on one rank in one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pull {
    /// The factor by which the rank's self-time is multiplied.
    pub factor: f64,
    /// The share of self-time that is added to the data phase.
    pub data: f64,
    /// The share of self-time that is added in garbage collection.
    pub gc: f64,
    /// The share of self-time that is added in one micro-batch.
    pub held: f64,
    pub held_at: u32,
    /// Time for which the rank stalls, in seconds.
    pub stall_s: f64,
    /// Time for which the rank writes a checkpoint, in seconds.
    pub write_s: f64,
}

/// Properties of a step.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Occasion {
    pub step: u64,
    /// When the step begins, in seconds.
    pub at_s: f64,
    pub warming: bool,
    /// Duration of a checkpoint in this step, seconds.
    pub write_s: f64,
    pub first_rank_only: bool,
}

/// An active fault, and its current target.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blow {
    pub index: usize,
    pub fault: Fault,
    pub on: Target,
}

/// The faults of a world in the current step.
#[derive(Clone, Debug)]
pub(crate) struct Drag {
    seed: u64,
    house: House,
    faults: Vec<Fault>,
    hot: GpuScript,
    cool: GpuScript,
    occasion: Occasion,
    blows: Vec<Blow>,
    /// Speed of each GPU without faults.
    speeds: Vec<f64>,
}

impl Drag {
    pub fn new(spec: &WorldSpec, hot: GpuScript) -> Drag {
        Drag {
            seed: spec.seed,
            house: spec.house(),
            faults: spec.faults.clone(),
            hot,
            cool: GpuScript::healthy(spec.ranks(), spec.seed),
            occasion: Occasion::default(),
            blows: Vec::new(),
            speeds: vec![1.0; spec.ranks() as usize],
        }
    }

    /// Returns the GPUs' state including faults.
    pub fn gpus(&self) -> &GpuScript {
        &self.hot
    }

    /// Returns the placement of ranks.
    pub fn house(&self) -> &House {
        &self.house
    }

    /// Returns the faults of this step.
    pub fn blows(&self) -> &[Blow] {
        &self.blows
    }

    /// Begins a step and selects the targets of its faults.
    pub fn aim(&mut self, occasion: Occasion) {
        self.occasion = occasion;
        self.blows.clear();
        for (index, fault) in self.faults.iter().enumerate() {
            if let Some(on) = self.on(index, fault) {
                self.blows.push(Blow {
                    index,
                    fault: *fault,
                    on,
                });
            }
        }
        for (rank, speed) in (0..).zip(&mut self.speeds) {
            *speed = self.cool.speed(rank, occasion.at_s);
        }
    }

    /// Returns the target of a fault in this step, if the fault is active.
    fn on(&self, index: usize, fault: &Fault) -> Option<Target> {
        let Occasion { step, at_s, .. } = self.occasion;
        let whom = |rank: Option<u32>| rank.map_or(Target::All, Target::Rank);
        let (there, on) = match *fault {
            Fault::Slow { on, when, .. } => {
                let key = [self.seed, index as u64];
                (when.holds(step), when.target(on, step, &self.house, &key))
            }
            Fault::Link { node, when, .. } => (when.holds(step), Target::Node(node)),
            Fault::Spikes { rank, share, .. } => (share > 0.0, whom(rank)),
            Fault::Silent { rank, from, .. } => (step == from, whom(rank)),
            Fault::Heat { gpu, from_s, until_s } => {
                let over = until_s.is_some_and(|until| at_s > until + COOLING_S);
                (at_s >= from_s && !over, Target::Rank(gpu))
            }
            Fault::CheckpointSlow { rank, when, .. } => (
                self.occasion.write_s > 0.0 && when.holds(step),
                Target::Rank(rank),
            ),
            Fault::WarmUpSlow { rank, .. } => (self.occasion.warming, whom(rank)),
            Fault::Regress { from, .. } => (step >= from, Target::All),
            Fault::Birth { .. } => (true, Target::All),
            _ => (false, Target::All),
        };
        there.then_some(on)
    }

    /// Returns the effect of the faults on a rank in this step.
    pub fn pull(&self, rank: u32, without: Without) -> Pull {
        let Occasion { step, write_s, .. } = self.occasion;
        let writes = rank == 0 || !self.occasion.first_rank_only;
        let mut pull = Pull {
            factor: 1.0,
            data: 0.0,
            gc: 0.0,
            held: 0.0,
            held_at: 0,
            stall_s: 0.0,
            write_s: if writes { write_s } else { 0.0 },
        };
        let mut speed = self.speeds[rank as usize];
        for blow in &self.blows {
            if without.skips(blow.index) || !blow.on.strikes(rank, &self.house) {
                continue;
            }
            match blow.fault {
                Fault::Slow {
                    factor, cause, micro, ..
                } => pull.slow(factor, cause, micro),
                Fault::Regress { factor, .. }
                | Fault::Birth { factor }
                | Fault::WarmUpSlow { factor, .. } => pull.factor *= factor,
                Fault::Spikes { share, factor, .. } => {
                    let key = [0x7370_696b, blow.index as u64, u64::from(rank), step];
                    if Chance::of(self.seed, &key).hits(share) {
                        pull.factor *= factor;
                    }
                }
                Fault::Silent {
                    rank: Some(_), for_s, ..
                } => pull.stall_s += for_s.unwrap_or(f64::INFINITY),
                Fault::Heat { .. } => speed = self.hot.speed(rank, self.occasion.at_s),
                Fault::CheckpointSlow { factor, .. } => pull.write_s *= factor,
                _ => {}
            }
        }
        pull.factor /= speed;
        pull
    }

    /// Returns the duration for which this step's collective stalls with all ranks in it, seconds.
    pub fn collective_stall(&self, without: Without) -> f64 {
        let blows = self.blows.iter().filter(|blow| !without.skips(blow.index));
        blows
            .map(|blow| match blow.fault {
                Fault::Silent {
                    rank: None, for_s, ..
                } => for_s.unwrap_or(f64::INFINITY),
                _ => 0.0,
            })
            .sum()
    }
}

impl Pull {
    /// Slows the rank by `factor`, in the parts that the cause affects.
    fn slow(&mut self, factor: f64, cause: Cause, micro: Option<u32>) {
        let excess = factor - 1.0;
        match cause {
            Cause::DataLoading => self.data += excess,
            Cause::GcPause => self.gc += excess,
            // Half of the excess is in the data phase, because both batches and kernels are transferred over the bus.
            Cause::Pcie => {
                self.data += excess / 2.0;
                self.factor *= 1.0 + excess / 2.0;
            }
            Cause::Nvlink | Cause::Network => {}
            _ => match micro {
                Some(at) => (self.held, self.held_at) = (self.held + excess, at),
                None => self.factor *= factor,
            },
        }
    }
}
