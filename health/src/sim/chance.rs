//! Pseudorandom numbers from a seed. They are computed with SplitMix64, so that the same seed gives the same frames on
//! every machine.
//!
//! Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014; constants of
//! <https://prng.di.unimi.it/splitmix64.c>.

use std::f64::consts::TAU;

/// A stream of pseudorandom numbers that depends on the seed alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chance {
    state: u64,
}

impl Chance {
    /// Creates the stream of `seed`.
    pub fn new(seed: u64) -> Chance {
        Chance { state: seed }
    }

    /// Creates the stream of `seed` that `key` selects. Streams are independent: drawing from one never changes
    /// another.
    pub fn of(seed: u64, key: &[u64]) -> Chance {
        Chance {
            state: key.iter().fold(mix(seed), |state, part| mix(state ^ mix(*part))),
        }
    }

    /// Returns the next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix_out(self.state)
    }

    /// Returns a number that is uniform in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns a number that is uniform in `[-1, 1)`.
    pub fn around(&mut self) -> f64 {
        self.unit().mul_add(2.0, -1.0)
    }

    /// Draws whether an event with this probability occurs.
    pub fn hits(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Returns a number from the standard normal distribution, by the Box-Muller method.
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (TAU * self.unit()).cos()
    }
}

/// A pseudorandom function of a number.
fn mix(value: u64) -> u64 {
    mix_out(value.wrapping_add(0x9e37_79b9_7f4a_7c15))
}

fn mix_out(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_splitmix64() {
        // These are the first outputs of the reference program for seed 1234567.
        let mut chance = Chance::new(1_234_567);
        assert_eq!(
            [chance.bits(), chance.bits(), chance.bits()],
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }

    #[test]
    fn normal_has_mean_zero_and_variance_one() {
        let mut chance = Chance::new(7);
        let draws: Vec<f64> = (0..100_000).map(|_| chance.normal()).collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / draws.len() as f64;
        assert!(mean.abs() < 0.01, "mean {mean}");
        assert!((variance - 1.0).abs() < 0.02, "variance {variance}");
    }
}
