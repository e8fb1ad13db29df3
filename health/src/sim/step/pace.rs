//! Durations of work and transfers without faults. They contain the noise of a step, which is independent of faults.

use super::timeline::{Own, Roads, SHARDS};
use super::work::Loads;
use crate::sim::chance::Chance;
use crate::sim::fault::drag::{Pull, Without};
use crate::sim::spec::layout::Layout;
use crate::sim::spec::{Framework, SpecError, StepModel, WorldSpec};

/// Share of a rank's self-time in its optimizer, after the collective.
pub(super) const OPTIMIZER_SHARE: f64 = 0.08;
/// Steps of the warm-up take between once and three times as long.
const WARM_UP_EXCESS: f64 = 2.0;
/// Variation of a reduction between steps (log standard deviation).
const TRANSFER_SIGMA: f64 = 0.05;
/// Uniform variation of exchanges and hops.
const HOP_JITTER: f64 = 0.1;
/// Uniform variation of the interval and duration of garbage collection.
const GC_JITTER: f64 = 0.2;

/// The noise of one rank.
#[derive(Clone, Debug)]
struct Noise {
    chance: Chance,
    offset: f64,
    drift: f64,
    /// Number of steps until the next garbage collection.
    gc_in: f64,
}

/// The random values of a rank for one step.
#[derive(Clone, Copy, Debug, Default)]
struct Base {
    /// Self-time in seconds if the stage weight and the work were 1.
    self_s: f64,
    gc_s: f64,
}

/// A rank's replica and stage weight.
#[derive(Clone, Copy, Debug)]
struct Place {
    dp: u32,
    weight: f64,
}

/// A step without faults.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    model: StepModel,
    sharded: bool,
    piped: bool,
    /// True if there are replicas that reduce gradients.
    reduces: bool,
    /// Number of axes on which ranks exchange data inside the layers.
    exchanges: f64,
    noises: Vec<Noise>,
    bases: Vec<Base>,
    places: Vec<Place>,
    mean_weight: f64,
    chance: Chance,
    /// The work of the step.
    pub loads: Loads,
    even_shares: Vec<f64>,
    /// The durations of the step's transfers.
    pub roads: Roads,
    evaluates: bool,
}

impl Noise {
    fn new(seed: u64, rank: u32, model: &StepModel) -> Noise {
        let mut chance = Chance::of(seed, &[0x006e_6f69, u64::from(rank)]);
        let offset = model.offset * chance.normal();
        let drift = model.sigma * chance.normal();
        let mut gc = Chance::of(seed, &[0x6763, u64::from(rank)]);
        Noise {
            chance,
            offset,
            drift,
            gc_in: model.gc.every as f64 * gc.unit(),
        }
    }

    /// Returns the rank's self-time in its next step, in seconds.
    fn next(&mut self, model: &StepModel, warming: bool) -> f64 {
        let phi = model.autocorrelation;
        self.drift = phi * self.drift + (1.0 - phi * phi).sqrt() * model.sigma * self.chance.normal();
        let mut log = self.offset + self.drift;
        // These numbers are drawn even if they are not used, so that each setting changes only its own effect.
        let (tail, warm_up) = (self.chance.unit(), self.chance.unit());
        if tail < model.tail_share {
            // The draw is reused. Given that it is below the threshold, it is uniform below it.
            log -= model.tail_scale * (1.0 - tail / model.tail_share).ln();
        }
        let warming = if warming {
            1.0 + WARM_UP_EXCESS * warm_up
        } else {
            1.0
        };
        model.self_s * warming * log.exp()
    }

    /// Returns the duration of garbage collection in this step, in seconds.
    fn gc(&mut self, model: &StepModel) -> f64 {
        if model.gc.every == 0 {
            return 0.0;
        }
        self.gc_in -= 1.0;
        if self.gc_in > 0.0 {
            return 0.0;
        }
        self.gc_in += model.gc.every as f64 * (1.0 + GC_JITTER * self.chance.around());
        model.gc.pause_s * (1.0 + GC_JITTER * self.chance.around())
    }
}

impl Pace {
    pub fn new(spec: &WorldSpec, layout: Layout) -> Result<Pace, SpecError> {
        let weight = |stage: u32| spec.stages.get(stage as usize).copied().unwrap_or(1.0);
        let place = |rank| {
            let coordinates = layout.coordinates(rank);
            Place {
                dp: coordinates.dp,
                weight: weight(coordinates.pp),
            }
        };
        let loads = Loads::new(spec, layout)?;
        let cells = (layout.pp * layout.pipelines()) as usize;
        let sharded = spec.framework == Framework::Fsdp;
        let axes = [layout.tp, layout.cp, layout.ep];
        Ok(Pace {
            model: spec.step,
            sharded,
            piped: layout.pp > 1,
            reduces: layout.dp * layout.cp > 1,
            exchanges: axes.iter().filter(|size| **size > 1).count() as f64,
            noises: (0..spec.ranks())
                .map(|rank| Noise::new(spec.seed, rank, &spec.step))
                .collect(),
            bases: vec![Base::default(); spec.ranks() as usize],
            places: (0..spec.ranks()).map(place).collect(),
            mean_weight: (0..layout.pp).map(weight).sum::<f64>() / f64::from(layout.pp),
            chance: Chance::of(spec.seed, &[0x776f_726c]),
            even_shares: loads.even_shares(),
            loads,
            roads: Roads {
                reduce: vec![0.0; (layout.pp * layout.tp) as usize],
                exchange: vec![0.0; cells],
                hop: vec![0.0; cells],
                uneven: if sharded {
                    vec![0.0; cells * SHARDS]
                } else {
                    Vec::new()
                },
            },
            evaluates: false,
        })
    }

    /// Draws the next step. `warming` is true if the step is one of the first. `evaluates` is true if it contains an
    /// evaluation.
    pub fn draw(&mut self, warming: bool, evaluates: bool) {
        self.evaluates = evaluates;
        for (noise, base) in self.noises.iter_mut().zip(&mut self.bases) {
            base.self_s = noise.next(&self.model, warming);
            base.gc_s = noise.gc(&self.model);
        }
        self.loads.draw();
        if self.reduces {
            for reduce in &mut self.roads.reduce {
                *reduce = self.model.transfer_s * (TRANSFER_SIGMA * self.chance.normal()).exp();
            }
        }
        if self.exchanges > 0.0 {
            for exchange in &mut self.roads.exchange {
                *exchange =
                    self.model.exchange_s * self.exchanges * (1.0 + HOP_JITTER * self.chance.around());
            }
        }
        if self.piped {
            for hop in &mut self.roads.hop {
                *hop = self.model.hop_s * (1.0 + HOP_JITTER * self.chance.around());
            }
        }
        if self.sharded {
            self.roughen();
        }
    }

    /// Draws the variation of the layers of a step. It is uniform, with the same variance as that of steps, and zero on
    /// average.
    fn roughen(&mut self) {
        let width = self.model.sigma * (3.0 * SHARDS as f64).sqrt();
        for layers in self.roads.uneven.chunks_mut(SHARDS) {
            for layer in layers.iter_mut() {
                *layer = width.min(0.9) * self.chance.around();
            }
            let mean = layers.iter().sum::<f64>() / SHARDS as f64;
            for layer in layers {
                *layer -= mean;
            }
        }
    }

    /// Returns the shares of the micro-batches, for one replica after another.
    pub fn shares(&self, without: Without) -> &[f64] {
        if without == Without::Sequences {
            &self.even_shares
        } else {
            self.loads.shares()
        }
    }

    /// Returns a rank's work in the step, with the faults of `pull` and without one effect.
    pub fn own(&self, rank: u32, pull: &Pull, lag: f64, without: Without) -> Own {
        let (base, place) = (self.bases[rank as usize], self.places[rank as usize]);
        let replica = self.loads.replica(place.dp);
        let weight = match without {
            Without::Stages => self.mean_weight,
            _ => place.weight,
        };
        let sequences = match without {
            Without::Sequences => 1.0,
            _ => replica.sequences,
        };
        let experts = match without {
            Without::Experts => 1.0,
            _ => replica.experts,
        };
        let mut gc = match without {
            Without::Gc => 0.0,
            _ => base.gc_s,
        };
        let share = 1.0 - self.model.data_share - OPTIMIZER_SHARE;
        let data = base.self_s * self.model.data_share;
        let mut compute = base.self_s * share * weight * sequences * experts;
        if self.evaluates {
            compute += base.self_s * (self.model.evaluation.factor - 1.0);
        }
        let optimizer = base.self_s * OPTIMIZER_SHARE;
        let whole = data + compute + optimizer;
        gc += whole * pull.gc;
        Own {
            lag,
            write: pull.write_s,
            data: data + whole * pull.data,
            // A slow rank is slow in everything. The data loader prefetches, so its delay appears in compute.
            compute: compute * pull.factor + data * (pull.factor - 1.0),
            extra: gc + pull.stall_s + (compute + data) * pull.held,
            extra_at: pull.held_at,
            gc,
            optimizer: optimizer * pull.factor,
        }
    }
}
