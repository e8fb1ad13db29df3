//! Reproducible pseudorandom numbers.

/// A generator of the type SplitMix64 (<https://prng.di.unimi.it/splitmix64.c>). The same words give the same numbers.
pub(crate) struct Dice(u64);

impl Dice {
    /// Returns a generator that is seeded with these words.
    pub(crate) fn of(words: &[u64]) -> Dice {
        let mut dice = Dice(0);
        for word in words {
            dice.0 ^= *word;
            dice.0 = dice.next();
        }
        dice
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a standard normal number, computed as the sum of twelve uniform ones.
    pub(crate) fn normal(&mut self) -> f64 {
        let uniform = |dice: &mut Dice| (dice.next() >> 11) as f64 / (1_u64 << 53) as f64;
        (0..12).map(|_| uniform(self)).sum::<f64>() - 6.0
    }
}
