//! Learns pipeline stages from shared communicators if no layout was declared.
//!
//! The pipelines of a job are alike: members at the same position run the same part of the model. Several families of
//! communicators divide the ranks. The pipeline's family is the one whose members differ in self-time in a way that
//! repeats from communicator to communicator. Data and tensor groups hold ranks that do the same work, so their members
//! differ only by noise. A slow rank makes a difference in one communicator only.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::matrix::StepMatrix;
use crate::detect::comm::communicators::Comms;
use crate::id::Rank;
use crate::policy::StragglerThresholds;
use crate::stats;

/// Minimum number of communicators in a family. With fewer of them, a difference cannot repeat.
const MIN_COMMS: usize = 3;
/// Number of standard errors by which the positions of a family must differ.
const SURE: f64 = 8.0;
/// Minimum correlation between the two halves of the steps.
const ALIKE: f64 = 0.9;
/// A smaller family is preferred if it differs by this share of the largest difference, because the larger family
/// contains it.
const AS_WELL: f64 = 0.8;
/// In one step, a rank's distance from the others counts as at most this much (ln).
const FAR: f64 = 0.7;
/// Number of steps before the first attempt. Each further attempt comes after twice as many, and uses only the steps
/// since the last one.
const FIRST_TRY: u32 = 4;

/// Stage and pipeline of each rank.
pub type Stages = BTreeMap<Rank, (u32, u32)>;

/// By rank number: number of steps, and the sum of ln(self-time) minus that of the step's median rank.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Levels(Vec<(u32, f64)>);

/// The self-times since the last attempt, from which the stages are learned.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Inference {
    /// Self-times of odd and of even steps. A difference in one half must repeat in the other.
    halves: [Levels; 2],
    rows: u32,
    is_done: bool,
}

impl Inference {
    /// Drops everything, because a new group of ranks starts.
    pub fn clear(&mut self) {
        *self = Inference::default();
    }

    /// Takes a step. Returns the stages once they are learned.
    pub fn step(
        &mut self,
        matrix: &StepMatrix<'_>,
        comms: &Comms,
        table: &StragglerThresholds,
    ) -> Option<Stages> {
        let may_pipe = matrix.micro_batches > 1 || comms.has_messages();
        let is_pipeline = may_pipe && matrix.plan.stages == 1;
        if self.is_done || !is_pipeline || comms.is_empty() || matrix.rank_steps.len() < 2 * MIN_COMMS {
            return None;
        }
        self.take(matrix);
        if self.rows < FIRST_TRY || !self.rows.is_power_of_two() {
            return None;
        }
        let stages = self.learn(comms, table.tolerated_ratio.ln());
        self.is_done = stages.is_some();
        // Drop the steps of this attempt, because steps during warm-up are noisier than later ones.
        for half in &mut self.halves {
            half.0.fill((0, 0.0));
        }
        stages
    }

    fn take(&mut self, matrix: &StepMatrix<'_>) {
        let mut all: Vec<f64> = matrix
            .rank_steps
            .iter()
            .map(|rank_step| rank_step.self_s.ln())
            .collect();
        let Some(middle) = stats::median(&mut all) else {
            return;
        };
        let ranks = matrix
            .rank_steps
            .last()
            .map_or(0, |rank_step| rank_step.rank.0 as usize + 1);
        let levels = &mut self.halves[self.rows as usize % 2].0;
        levels.resize(levels.len().max(ranks), (0, 0.0));
        for rank_step in &matrix.rank_steps {
            let level = &mut levels[rank_step.rank.0 as usize];
            level.0 += 1;
            level.1 += (rank_step.self_s.ln() - middle).clamp(-FAR, FAR);
        }
        self.rows += 1;
    }

    /// Returns the stages of the smallest family whose positions differ about as much as those of any other.
    fn learn(&self, comms: &Comms, tolerated: f64) -> Option<Stages> {
        let found: Vec<(Vec<&[Rank]>, f64)> = families(comms)
            .into_values()
            .filter_map(|family| {
                let spread = self.spread(&family, tolerated)?;
                Some((family, spread))
            })
            .collect();
        let most = found.iter().map(|(_, spread)| *spread).fold(0.0, f64::max);
        let (family, _) = found
            .iter()
            .filter(|(_, spread)| *spread >= AS_WELL * most)
            .min_by_key(|(family, _)| family[0].len())?;
        let mut stages = Stages::new();
        for (pipeline, members) in (0..).zip(family) {
            for (stage, rank) in (0..).zip(*members) {
                stages.insert(*rank, (stage, pipeline));
            }
        }
        Some(stages)
    }

    /// Returns how much the positions of a family differ (ln), if they differ in the same way everywhere and in both
    /// halves.
    fn spread(&self, family: &[&[Rank]], tolerated: f64) -> Option<f64> {
        let [odd, even] = &self.halves;
        let (odd, even) = (odd.places(family, tolerated)?, even.places(family, tolerated)?);
        let product: f64 = odd.iter().zip(&even).map(|(a, b)| a * b).sum();
        let power = |places: &[f64]| places.iter().map(|place| place * place).sum::<f64>();
        let alike = product / (power(&odd) * power(&even)).sqrt();
        let both: Vec<f64> = odd.iter().zip(&even).map(|(a, b)| (a + b) / 2.0).collect();
        (alike >= ALIKE).then(|| range(&both))
    }
}

impl Levels {
    fn of(&self, rank: Rank) -> Option<f64> {
        let (steps, sum) = self.0.get(rank.0 as usize)?;
        (*steps > 0).then(|| sum / f64::from(*steps))
    }

    /// Returns true if each rank is in exactly one communicator of the family.
    fn are_divided_by(&self, family: &[&[Rank]]) -> bool {
        let mut ranks: Vec<Rank> = family
            .iter()
            .flat_map(|members| members.iter().copied())
            .collect();
        let listed = ranks.len();
        ranks.sort_unstable();
        ranks.dedup();
        let known = self.0.iter().filter(|(steps, _)| *steps > 0).count();
        family.len() >= MIN_COMMS && ranks.len() == listed && listed == known
    }

    /// Returns the usual level of each position of a family relative to the mean (ln), if the positions differ.
    fn places(&self, family: &[&[Rank]], tolerated: f64) -> Option<Vec<f64>> {
        if !self.are_divided_by(family) {
            return None;
        }
        let own: Option<Vec<Vec<f64>>> = family.iter().map(|members| self.profile(members)).collect();
        let own = own?;
        let of_place = |place: usize| {
            let mut levels: Vec<f64> = own.iter().map(|profile| profile[place]).collect();
            stats::median(&mut levels)
        };
        let usual: Option<Vec<f64>> = (0..own[0].len()).map(of_place).collect();
        let usual = usual?;
        let apart = |profile: &Vec<f64>| -> Vec<f64> {
            let pairs = profile.iter().zip(&usual);
            pairs.map(|(own, usual)| (own - usual).abs()).collect()
        };
        let mut apart: Vec<f64> = own.iter().flat_map(apart).collect();
        // Correct for the median, which was computed from few values.
        let n = family.len() as f64;
        let sigma = stats::MAD_TO_SIGMA * stats::median(&mut apart)? * n / (n - 1.0);
        (range(&usual) >= tolerated.max(SURE * sigma / n.sqrt())).then_some(usual)
    }

    /// Returns the self-times of a communicator's members relative to their own mean (ln).
    fn profile(&self, members: &[Rank]) -> Option<Vec<f64>> {
        let levels: Option<Vec<f64>> = members.iter().map(|rank| self.of(*rank)).collect();
        let levels = levels?;
        let mean = stats::mean(&levels);
        Some(levels.into_iter().map(|level| level - mean).collect())
    }
}

/// Returns the difference between the highest and the lowest value.
fn range(values: &[f64]) -> f64 {
    let highest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let lowest = values.iter().copied().fold(f64::INFINITY, f64::min);
    highest - lowest
}

/// Groups complete communicators by the differences between their members' numbers, which are equal along one axis.
fn families(comms: &Comms) -> BTreeMap<Vec<u32>, Vec<&[Rank]>> {
    let mut families: BTreeMap<Vec<u32>, Vec<&[Rank]>> = BTreeMap::new();
    for (_, comm) in comms.iter() {
        let members = comm.members.as_slice();
        let Some(first) = members.first().filter(|_| members.len() == comm.size as usize) else {
            continue;
        };
        let offsets = members.iter().map(|rank| rank.0 - first.0).collect();
        families.entry(offsets).or_default().push(members);
    }
    for family in families.values_mut() {
        family.sort_unstable();
        family.dedup();
    }
    families
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Group;

    /// Returns the communicators of `layout` (dp, tp, pp) in Megatron's order, for all axes, with arbitrary numbers.
    fn comms((dp, tp, pp): (u32, u32, u32)) -> Comms {
        let mut comms = Comms::default();
        for rank in 0..dp * tp * pp {
            let (t, d, p) = (rank % tp, rank / tp % dp, rank / (tp * dp));
            for (axis, number, size) in [(1, p * dp + d, tp), (2, p * tp + t, dp), (3, d * tp + t, pp)] {
                comms.join(&Group {
                    rank: Rank(rank),
                    restart: 0,
                    comm: (axis * 7919 + u64::from(number)) * 0x9e37_79b9,
                    size,
                    name: "".into(),
                });
            }
        }
        comms
    }

    /// Returns an inference that has seen a level for each rank.
    fn seen(ranks: u32, mut level: impl FnMut(u32) -> f64) -> Inference {
        let mut half = || Levels((0..ranks).map(|rank| (1, level(rank))).collect());
        Inference {
            halves: [half(), half()],
            rows: 2,
            is_done: false,
        }
    }

    /// Returns repeatable noise: sums of uniform numbers from the seed, which are roughly normal.
    fn noise(seed: u64) -> impl FnMut() -> f64 {
        let mut state = seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1;
        move || {
            let sum: f64 = (0..6)
                .map(|_| {
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    (state >> 40) as f64 / (1 << 24) as f64
                })
                .sum();
            (sum - 3.0) / 0.5_f64.sqrt()
        }
    }

    #[test]
    fn a_heavier_stage_is_found_among_all_axes() {
        for (layout, heavy) in [
            ((4, 2, 4), 1.3),
            ((2, 4, 2), 1.1),
            ((8, 1, 4), 1.05),
            ((2, 2, 8), 1.5),
        ] {
            let (dp, tp, pp) = layout;
            let mut noise = noise(7);
            let level = |rank: u32| {
                if rank / (tp * dp) == pp - 1 {
                    f64::ln(heavy)
                } else {
                    0.0
                }
            };
            let inference = seen(dp * tp * pp, |rank| level(rank) + 0.003 * noise());
            let stages = inference.learn(&comms(layout), 1.02_f64.ln()).unwrap();
            for (rank, (stage, pipeline)) in stages {
                assert_eq!(stage, rank.0 / (tp * dp), "{layout:?} rank {rank}");
                assert_eq!(pipeline, rank.0 % (tp * dp), "{layout:?} rank {rank}");
            }
        }
    }

    #[test]
    fn noise_and_slow_ranks_make_no_stages() {
        for seed in 0..2000 {
            let layout = [(4, 4, 1), (8, 2, 1), (16, 2, 1), (4, 2, 4), (16, 4, 1)][seed as usize % 5];
            let mut noise = noise(seed);
            let sigma = [0.003, 0.02, 0.11][seed as usize % 3];
            let ranks = layout.0 * layout.1 * layout.2;
            let slow = seed as u32 * 31 % ranks;
            let level = |rank: u32| if rank == slow { 0.2 } else { 0.0 };
            let inference = seen(ranks, |rank| level(rank) + sigma * noise());
            assert!(
                inference.learn(&comms(layout), 1.02_f64.ln()).is_none(),
                "seed {seed}"
            );
        }
    }
}
