//! The distinct collective operations of a job, with hashes that are the same in every process.

use std::collections::BTreeMap;

use super::Did;

/// Collectives are distinguished by size until there are this many kinds. After that, new ones are distinguished only
/// by communicator and function.
const MOST_KINDS: usize = 4096;

/// A kind of collective: communicator, function and size.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    pub comm: u64,
    pub ranks: u32,
    pub function: u8,
    pub bytes: u64,
    pub is_heavy: bool,
    /// Hash of the kind, the same in every process.
    pub hash: u64,
    /// Hash of communicator and function alone.
    pub class: u64,
}

/// All kinds seen so far, by number.
#[derive(Debug, Default)]
pub struct Operations {
    all: Vec<Operation>,
    numbers: BTreeMap<(u64, u8, u64), u16>,
}

impl Operations {
    /// Returns the number of a collective's kind.
    pub fn number(&mut self, did: &Did) -> u16 {
        let known = |bytes| self.numbers.get(&(did.comm, did.function, bytes)).copied();
        let bytes = match self.all.len() < MOST_KINDS {
            true => did.bytes,
            false => u64::MAX,
        };
        if let Some(number) = known(did.bytes).or_else(|| known(bytes)) {
            return number;
        }
        let class = mix(mix(0, did.comm), u64::from(did.function));
        let number = self.all.len() as u16;
        if number == u16::MAX {
            // There are too many communicators. The remaining ones all get the last number.
            return number - 1;
        }
        self.numbers.insert((did.comm, did.function, bytes), number);
        self.all.push(Operation {
            comm: did.comm,
            ranks: did.ranks,
            function: did.function,
            bytes,
            is_heavy: did.is_heavy,
            hash: mix(class, bytes),
            class,
        });
        number
    }

    /// Returns the kind for a number from [`Operations::number`].
    pub fn of(&self, number: u16) -> Operation {
        self.all[usize::from(number)]
    }
}

/// Mixes one more number into a hash that is the same in every process.
pub fn mix(hash: u64, number: u64) -> u64 {
    // splitmix64 (Steele, Lea, Flood 2014, <https://doi.org/10.1145/2714064.2660195>).
    let mut z = (hash ^ number).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

pub fn hash<'a>(numbers: impl Iterator<Item = &'a u64>) -> u64 {
    numbers.fold(0, |hash, number| mix(hash, *number))
}
