//! Legitimate differences in work. They come from packed sequences, whose attention costs time in proportion to their
//! squared lengths, and from tokens that are routed to experts.
//!
//! A micro-batch is a pack of sequences that fills a token budget. Its time is a·tokens + b·(sum of squared lengths).
//! The factor b is chosen so that the log self-time of whole steps has the spread in the spec.

use super::pace::OPTIMIZER_SHARE;
use crate::sim::chance::Chance;
use crate::sim::spec::layout::Layout;
use crate::sim::spec::{SpecError, WorldSpec};

/// Number of tokens of a micro-batch, which is also the length of the longest sequence.
const BUDGET: u64 = 32_768;
/// Sequence lengths are log-normal, as they are in text corpora.
const LENGTH_MEDIAN: f64 = 600.0;
const LENGTH_SIGMA: f64 = 1.6;
/// Number of packs to draw from, and of steps for measuring their spread.
const PACKS: u64 = 1024;
const TRIALS: usize = 2000;
/// Share of compute that is spent in experts.
const EXPERT_SHARE: f64 = 0.5;
/// Correlation of an expert's popularity between steps. It decays in about 500 steps.
const DRIFT: f64 = 0.998;
/// Uniform variation of routing between batches.
const ROUTING_JITTER: f64 = 0.02;

/// The work of a step, relative to ordinary work.
#[derive(Clone, Debug)]
pub(crate) struct Loads {
    layout: Layout,
    packs: Option<Packs>,
    experts: f64,
    declared: bool,
    chance: Chance,
    popularity: Vec<f64>,
    /// Share of each micro-batch in its replica's compute, for one replica after another.
    shares: Vec<f64>,
    replicas: Vec<Replica>,
}

/// The work of one data-parallel replica.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Replica {
    /// Compute time for its sequences, relative to the mean.
    pub sequences: f64,
    /// Compute time for the tokens routed to its experts, relative to the mean.
    pub experts: f64,
    pub tokens: u64,
    pub sum_sq: u64,
    pub expert_tokens: u64,
}

impl Loads {
    /// # Errors
    /// [`SpecError`] if the number of micro-batches averages out the requested spread.
    pub fn new(spec: &WorldSpec, layout: Layout) -> Result<Loads, SpecError> {
        let packs = if spec.work.packed > 0.0 {
            Some(Packs::new(spec)?)
        } else {
            None
        };
        let mut chance = Chance::of(spec.seed, &[0x776f_726b]);
        let popularity = (0..layout.ep).map(|_| chance.normal()).collect();
        let micro = f64::from(layout.micro);
        let plain = Replica {
            sequences: 1.0,
            experts: 1.0,
            ..Replica::default()
        };
        Ok(Loads {
            layout,
            packs,
            experts: spec.work.experts,
            declared: spec.work.declared,
            chance,
            popularity,
            shares: vec![1.0 / micro; (layout.dp * layout.micro) as usize],
            replicas: vec![plain; layout.dp as usize],
        })
    }

    /// Draws the work of the next step.
    pub fn draw(&mut self) {
        if let Some(packs) = &self.packs {
            let micro = self.layout.micro as usize;
            for (replica, shares) in self.replicas.iter_mut().zip(self.shares.chunks_mut(micro)) {
                packs.draw(&mut self.chance, replica, shares);
            }
        }
        if self.experts > 0.0 {
            self.route();
        }
    }

    fn route(&mut self) {
        let kick = (1.0 - DRIFT * DRIFT).sqrt();
        for popularity in &mut self.popularity {
            *popularity = DRIFT * *popularity + kick * self.chance.normal();
        }
        let tokens = (BUDGET * u64::from(self.layout.micro)) as f64;
        let ep = self.layout.ep as usize;
        for block in self.replicas.chunks_mut(ep) {
            let mut total = 0.0;
            for (replica, popularity) in block.iter_mut().zip(&self.popularity) {
                let jitter = 1.0 + ROUTING_JITTER * self.chance.around();
                replica.experts = (self.experts * popularity).exp() * jitter;
                total += replica.experts;
            }
            for replica in block {
                let load = replica.experts * ep as f64 / total;
                replica.experts = 1.0 - EXPERT_SHARE + EXPERT_SHARE * load;
                replica.expert_tokens = (tokens * load).round() as u64;
            }
        }
    }

    /// Returns the work of a replica.
    pub fn replica(&self, dp: u32) -> &Replica {
        &self.replicas[dp as usize]
    }

    /// Returns the share of each micro-batch in its replica's compute, for one replica after another.
    pub fn shares(&self) -> &[f64] {
        &self.shares
    }

    /// Returns the shares that equal micro-batches would have.
    pub fn even_shares(&self) -> Vec<f64> {
        vec![1.0 / f64::from(self.layout.micro); self.shares.len()]
    }

    /// Returns the tokens, the sum of squared lengths and the expert tokens that a rank declares. Values that it does
    /// not declare are zero.
    pub fn declared(&self, dp: u32) -> (u64, u64, u64) {
        if !self.declared {
            return (0, 0, 0);
        }
        let replica = self.replica(dp);
        // The tokens of a context-parallel group are divided evenly among its ranks.
        let cp = u64::from(self.layout.cp);
        let tokens = match (self.packs.is_some(), self.experts > 0.0) {
            (false, true) => BUDGET * u64::from(self.layout.micro),
            _ => replica.tokens,
        };
        (tokens / cp, replica.sum_sq / cp, replica.expert_tokens / cp)
    }
}

/// Packs of sequences to draw from.
#[derive(Clone, Debug)]
struct Packs {
    /// For each pack, its tokens, the sum of its squared lengths, and its compute relative to the mean.
    table: Vec<(u64, u64, f64)>,
}

impl Packs {
    fn new(spec: &WorldSpec) -> Result<Packs, SpecError> {
        // The packs are the same in every world. The world's seed only changes which of them are drawn.
        let mut chance = Chance::new(0x7061_636b);
        let found: Vec<(u64, u64)> = (0..PACKS).map(|_| pack(&mut chance)).collect();
        let mean = |of: fn(&(u64, u64)) -> u64| found.iter().map(of).sum::<u64>() as f64 / PACKS as f64;
        let (tokens, squares) = (mean(|pack| pack.0), mean(|pack| pack.1));
        // Relative tokens and sums of squares of whole steps.
        let micro = spec.layout.micro;
        let mut step = || {
            let mut sum = (0.0, 0.0);
            for _ in 0..micro {
                let (a, b) = found[(chance.bits() % PACKS) as usize];
                sum = (sum.0 + a as f64 / tokens, sum.1 + b as f64 / squares);
            }
            (sum.0 / f64::from(micro), sum.1 / f64::from(micro))
        };
        let trials: Vec<(f64, f64)> = (0..TRIALS).map(|_| step()).collect();
        let fixed = spec.step.data_share + OPTIMIZER_SHARE;
        let spread = |share: f64| {
            let own = |(a, b): &(f64, f64)| (fixed + (1.0 - fixed) * ((1.0 - share) * a + share * b)).ln();
            mad(trials.iter().map(own).collect())
        };
        if spread(1.0) < spec.work.packed {
            return Err(SpecError::Conflict(
                "packed= is more than so many micro-batches leave; expected less, or a lower micro=",
            ));
        }
        let (mut low, mut high) = (0.0, 1.0);
        for _ in 0..30 {
            let middle = 0.5 * (low + high);
            if spread(middle) < spec.work.packed {
                low = middle;
            } else {
                high = middle;
            }
        }
        let weigh = |&(a, b): &(u64, u64)| {
            let weight = (1.0 - low) * a as f64 / tokens + low * b as f64 / squares;
            (a, b, weight)
        };
        Ok(Packs {
            table: found.iter().map(weigh).collect(),
        })
    }

    fn draw(&self, chance: &mut Chance, replica: &mut Replica, shares: &mut [f64]) {
        (replica.tokens, replica.sum_sq) = (0, 0);
        let mut total = 0.0;
        for share in shares.iter_mut() {
            let (tokens, sum_sq, weight) = self.table[(chance.bits() % PACKS) as usize];
            replica.tokens += tokens;
            replica.sum_sq += sum_sq;
            total += weight;
            *share = weight;
        }
        replica.sequences = total / shares.len() as f64;
        for share in shares {
            *share /= total;
        }
    }
}

/// Returns the tokens and the sum of squared lengths of one pack. Sequences are added until little room is left, and
/// the last one is truncated.
fn pack(chance: &mut Chance) -> (u64, u64) {
    let (mut tokens, mut squares) = (0, 0);
    while BUDGET - tokens > BUDGET / 32 {
        let length = (LENGTH_MEDIAN * (LENGTH_SIGMA * chance.normal()).exp()) as u64;
        let length = length.clamp(16, BUDGET - tokens);
        tokens += length;
        squares += length * length;
    }
    (tokens, squares)
}

/// Returns 1.4826 × the median absolute deviation, which for a normal distribution is the standard deviation.
fn mad(mut values: Vec<f64>) -> f64 {
    let middle = |values: &mut Vec<f64>| {
        let half = values.len() / 2;
        *values.select_nth_unstable_by(half, f64::total_cmp).1
    };
    let median = middle(&mut values);
    let mut away: Vec<f64> = values.iter().map(|value| (value - median).abs()).collect();
    1.4826 * middle(&mut away)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads(text: &str) -> Loads {
        let spec = WorldSpec::parse(text).expect(text);
        let layout = spec.layout.of(spec.ranks()).expect("a layout");
        Loads::new(&spec, layout).expect("loads")
    }

    #[test]
    fn steps_spread_as_the_spec_says_whatever_the_micro_batches() {
        for (text, packed) in [
            ("gpus=8 packed=0.11", 0.11),
            ("gpus=8 packed=0.11 micro=16", 0.11),
            ("gpus=8 packed=0.05 micro=4", 0.05),
        ] {
            let mut loads = loads(text);
            let mut logs = Vec::new();
            for _ in 0..2000 {
                loads.draw();
                logs.extend((0..8).map(|dp| (0.12 + 0.88 * loads.replica(dp).sequences).ln()));
            }
            let spread = mad(logs);
            assert!((spread / packed - 1.0).abs() < 0.08, "{text}: {spread}");
        }
    }

    #[test]
    fn compute_is_linear_in_what_is_declared() {
        let mut loads = loads("gpus=4 packed=0.11 micro=4");
        let mut told = Vec::new();
        for _ in 0..3 {
            loads.draw();
            let (tokens, sum_sq, _) = loads.declared(2);
            told.push((tokens as f64, sum_sq as f64, loads.replica(2).sequences));
        }
        // Two steps determine both rates; the third step must match.
        let [(t1, s1, c1), (t2, s2, c2), (t3, s3, c3)] = told[..] else {
            unreachable!()
        };
        let det = t1 * s2 - t2 * s1;
        let (a, b) = ((c1 * s2 - c2 * s1) / det, (t1 * c2 - t2 * c1) / det);
        assert!((a * t3 + b * s3 - c3).abs() < 1e-6, "{a} {b}");
        assert!(a > 0.0 && b > 0.0);
    }

    #[test]
    fn experts_differ_between_places_and_drift() {
        let mut loads = loads("gpus=8 ep=4 experts=0.3");
        loads.draw();
        let first: Vec<f64> = (0..8).map(|dp| loads.replica(dp).experts).collect();
        let mean = first.iter().sum::<f64>() / 8.0;
        assert!((mean - 1.0).abs() < 1e-9, "{mean}");
        let spread = first.iter().copied().fold(0.0, f64::max) - first.iter().copied().fold(9.0, f64::min);
        assert!(spread > 0.05, "{first:?}");
        assert!(
            (first[0] / first[4] - 1.0).abs() < 0.05,
            "replicas of a place differ little"
        );
        for _ in 0..2000 {
            loads.draw();
        }
        let moved = (0..4).any(|dp| (loads.replica(dp).experts - first[dp as usize]).abs() > 0.02);
        assert!(moved);
        let (tokens, _, routed) = loads.declared(1);
        assert_eq!(tokens, BUDGET);
        assert!(routed > 0);
    }

    #[test]
    fn what_cannot_be_reached_is_an_error() {
        let spec = WorldSpec::parse("gpus=8 packed=0.3 micro=256").expect("text");
        let error = Loads::new(&spec, spec.layout.of(8).expect("layout")).expect_err("too even");
        assert!(error.to_string().starts_with("packed= is more than"), "{error}");
    }
}
