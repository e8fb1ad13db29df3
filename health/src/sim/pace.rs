//! How long a rank computes: its noise, which no fault shifts, and what the faults make of it.

use super::chance::Chance;
use super::fault::Fault;
use super::gpu::GpuScript;
use super::shape::House;
use super::spec::{StepModel, WorldSpec};

/// Steps of the warm-up take between once and three times as long.
const WARM_UP_EXCESS: f64 = 2.0;

/// The noise of one rank.
#[derive(Clone, Debug)]
pub(super) struct Noise {
    chance: Chance,
    offset: f64,
    drift: f64,
}

impl Noise {
    pub fn new(seed: u64, rank: u32, model: &StepModel) -> Noise {
        let mut chance = Chance::of(seed, &[0x006e_6f69, u64::from(rank)]);
        let offset = model.offset * chance.normal();
        let drift = model.sigma * chance.normal();
        Noise {
            chance,
            offset,
            drift,
        }
    }

    /// The rank's self-time in its next step, seconds, as it would be if nothing were wrong.
    pub fn next(&mut self, model: &StepModel, step: u64) -> f64 {
        let phi = model.autocorrelation;
        self.drift = phi * self.drift + (1.0 - phi * phi).sqrt() * model.sigma * self.chance.normal();
        let mut log = self.offset + self.drift;
        // Drawn whether or not they are used, so that each switch changes one thing only.
        let (tail, warm_up) = (self.chance.unit(), self.chance.unit());
        if tail < model.tail_share {
            // The tail's own draw: what is left of a uniform below its threshold is uniform again.
            log -= model.tail_scale * (1.0 - tail / model.tail_share).ln();
        }
        let warming = if step <= model.warm_up_steps {
            1.0 + WARM_UP_EXCESS * warm_up
        } else {
            1.0
        };
        model.self_s * warming * log.exp()
    }
}

/// What the faults do to speed: pure, so that a world without one of them can be asked beside the world with it.
#[derive(Clone, Debug)]
pub(super) struct Drag {
    seed: u64,
    house: House,
    faults: Vec<Fault>,
    hot: GpuScript,
    cool: GpuScript,
}

impl Drag {
    pub fn new(spec: &WorldSpec, hot: GpuScript) -> Drag {
        let cool = GpuScript::healthy(spec.ranks(), spec.seed);
        Drag {
            seed: spec.seed,
            house: spec.house(),
            faults: spec.faults.clone(),
            hot,
            cool,
        }
    }

    /// The GPUs as they are.
    pub fn gpus(&self) -> &GpuScript {
        &self.hot
    }

    /// Self-time of a rank in a step that begins at `t` seconds over what it would be on a GPU at full clock; with
    /// `skip`, as if that fault were not there.
    pub fn factor(&self, rank: u32, step: u64, t: f64, skip: Option<usize>) -> f64 {
        let mut factor = 1.0;
        let mut gpus = &self.cool;
        for (index, fault) in self.faults.iter().enumerate() {
            if Some(index) == skip {
                continue;
            }
            match *fault {
                Fault::Slow {
                    on,
                    factor: slower,
                    when,
                    ..
                } if when.holds(step)
                    && when
                        .target(on, step, &self.house, &[self.seed, index as u64])
                        .strikes(rank, &self.house) =>
                {
                    factor *= slower;
                }
                Fault::Spikes {
                    rank: whom,
                    share,
                    factor: slower,
                } if whom.is_none_or(|whom| whom == rank) => {
                    let key = [0x7370_696b, index as u64, u64::from(rank), step];
                    if Chance::of(self.seed, &key).hits(share) {
                        factor *= slower;
                    }
                }
                Fault::Heat { gpu, .. } if gpu == rank => gpus = &self.hot,
                _ => {}
            }
        }
        factor / gpus.speed(rank, t)
    }

    /// For how long a rank stands still in this step, seconds; infinity: for ever.
    pub fn stall(&self, rank: u32, step: u64, skip: Option<usize>) -> f64 {
        let stalls = self
            .faults
            .iter()
            .enumerate()
            .filter(|(index, _)| Some(*index) != skip);
        stalls
            .map(|(_, fault)| match *fault {
                Fault::Silent {
                    rank: Some(whom),
                    from,
                    for_s,
                } if whom == rank && from == step => for_s.unwrap_or(f64::INFINITY),
                _ => 0.0,
            })
            .sum()
    }

    /// For how long the collective of this step stands still with every rank in it, seconds.
    pub fn collective_stall(&self, step: u64) -> f64 {
        let stalls = self.faults.iter().map(|fault| match *fault {
            Fault::Silent {
                rank: None,
                from,
                for_s,
            } if from == step => for_s.unwrap_or(f64::INFINITY),
            _ => 0.0,
        });
        stalls.sum()
    }
}
