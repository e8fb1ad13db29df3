//! The times of one rank in a few hundred bytes. They use hdrhistogram's buckets at two digits. Only nonempty buckets
//! are kept, as differences of a few bytes. The latest steps are buffered and merged together. Full histograms would be
//! too large: one takes 13 KB, and each of 16,384 ranks would need eight.

use serde::{Deserialize, Serialize};

use crate::id::Rank;
use crate::report::Part;

const PARTS: usize = Part::ALL.len();
/// Number of steps buffered before they are merged.
const FRESH: usize = 32;
/// Maximum bytes of a rank's buckets. If there are more, the part with the most buckets loses half its precision.
const MOST_BYTES: usize = 2048;
/// Stands for a value that is not known for a step. No bucket has this number.
const NONE: u16 = u16::MAX;
/// Number of the last bucket.
const LAST: u64 = 27 * HALF;
/// Maximum number of steps. No job has more, but a snapshot may contain any number.
const MOST_STEPS: u64 = 1 << 48;

/// Sub-buckets of a power of two at two digits. There are 2 * 10^2 values; their lower half belongs to the power
/// before.
const HALF_BITS: u32 = 7;
const HALF: u64 = 1 << HALF_BITS;

/// Returns the bucket of a value, as hdrhistogram numbers it at two digits.
fn bucket_of(value: u64) -> u16 {
    let beyond = (u64::BITS - (value | (2 * HALF - 1)).leading_zeros()) - (HALF_BITS + 1);
    (u64::from(beyond) * HALF + (value >> beyond)) as u16
}

/// Returns the lowest value of a bucket.
fn lowest(bucket: u64) -> u64 {
    let beyond = (bucket / HALF).saturating_sub(1);
    (bucket - beyond * HALF) << beyond
}

/// Working memory for one part: sorted buckets with their counts.
#[derive(Debug, Default)]
pub struct Buckets {
    counts: Vec<(u16, u64)>,
    merged: Vec<(u16, u64)>,
    fresh: Vec<u16>,
    bytes: Vec<u8>,
    /// The end of each part in `bytes`, and its number of buckets.
    ends: [(usize, usize); PARTS],
}

/// The times of one rank.
#[derive(Debug, Serialize, Deserialize)]
pub struct Tally {
    fresh: [[u16; PARTS]; FRESH],
    waiting: u8,
    /// The buckets of each part, in this order: by how many bits they are coarser, their number, and for each the
    /// difference to the one before and its count. In each byte, the highest bit means that another byte of the number
    /// follows.
    packed: Box<[u8]>,
}

impl Tally {
    /// Creates an empty tally. Ranks start with different buffer levels, so that they do not all merge in the same
    /// step.
    pub fn of(rank: Rank) -> Tally {
        Tally {
            fresh: [[NONE; PARTS]; FRESH],
            waiting: (rank.0 as usize % FRESH) as u8,
            packed: Box::from([]),
        }
    }

    /// Takes a step, with the microseconds of each part.
    pub fn take(&mut self, micros: [Option<u64>; PARTS], desk: &mut Buckets) {
        let at = usize::from(self.waiting) % FRESH;
        self.fresh[at] = micros.map(|micros| micros.map_or(NONE, bucket_of));
        self.waiting += 1;
        if usize::from(self.waiting) >= FRESH {
            self.merge(desk);
        }
    }

    /// Returns the number of steps with this part and its quantiles in seconds (the middles of buckets), or `None` if
    /// no step had it.
    pub fn quantiles<const N: usize>(
        &self,
        part: usize,
        quantiles: [f64; N],
        desk: &mut Buckets,
    ) -> Option<(u64, [f64; N])> {
        let mut bytes = &self.packed[..];
        for _ in 0..part {
            skip(&mut bytes);
        }
        let coarser = desk.join(&mut bytes, &self.fresh, part);
        let total: u64 = desk.merged.iter().map(|(_, count)| count).sum();
        let at = |quantile: f64| {
            let wanted = ((quantile * total as f64).ceil() as u64).max(1);
            let mut seen = 0;
            let bucket = desk.merged.iter().find(|(_, count)| {
                seen += count;
                seen >= wanted
            });
            let (bucket, _) = bucket.copied().unwrap_or_default();
            let (from, to) = (lowest(bucket.into()), lowest(u64::from(bucket) + (1 << coarser)));
            ((from + to - 1) / 2) as f64 / 1e6
        };
        (total > 0).then(|| (total, quantiles.map(at)))
    }

    fn merge(&mut self, desk: &mut Buckets) {
        let mut bytes = &self.packed[..];
        desk.bytes.clear();
        for part in 0..PARTS {
            let coarser = desk.join(&mut bytes, &self.fresh, part);
            desk.pack(coarser, part);
        }
        while desk.bytes.len() > MOST_BYTES && desk.coarsen() {}
        if desk.bytes.len() == self.packed.len() {
            self.packed.copy_from_slice(&desk.bytes);
        } else {
            self.packed = Box::from(&desk.bytes[..]);
        }
        self.fresh = [[NONE; PARTS]; FRESH];
        self.waiting = 0;
    }
}

impl Buckets {
    /// Reads the next part and merges the buffered steps into it (`merged`). Returns by how many bits its buckets are
    /// coarser.
    fn join(&mut self, bytes: &mut &[u8], fresh: &[[u16; PARTS]; FRESH], part: usize) -> u32 {
        let coarser = self.unpack(bytes);
        self.fresh.clear();
        let waiting = fresh
            .iter()
            .map(|step| step[part])
            .filter(|bucket| *bucket != NONE);
        self.fresh
            .extend(waiting.map(|bucket| bucket >> coarser << coarser));
        self.fresh.sort_unstable();
        self.merged.clear();
        let mut fresh = self.fresh.iter().copied().peekable();
        let mut known = self.counts.iter().copied().peekable();
        loop {
            let next = match (fresh.peek(), known.peek()) {
                (Some(new), Some((old, _))) if new < old => (*new, 0),
                (_, Some(old)) => *old,
                (Some(new), None) => (*new, 0),
                (None, None) => return coarser,
            };
            let (bucket, mut count) = next;
            known.next_if(|(old, _)| *old == bucket);
            while fresh.next_if_eq(&bucket).is_some() {
                count += 1;
            }
            self.merged.push((bucket, count));
        }
    }

    /// Reads a part into `counts`.
    fn unpack(&mut self, bytes: &mut &[u8]) -> u32 {
        self.counts.clear();
        let (coarser, buckets) = (number(bytes) as u32 % HALF_BITS, number(bytes));
        let mut bucket = 0_u64;
        // The number of buckets is limited to the number of bytes, because a snapshot may contain any number.
        for _ in 0..buckets.min(bytes.len() as u64) {
            bucket = (number(bytes) << coarser).saturating_add(bucket).min(LAST);
            self.counts.push((bucket as u16, number(bytes).min(MOST_STEPS)));
        }
        coarser
    }

    /// Writes `merged` as a part.
    fn pack(&mut self, coarser: u32, part: usize) {
        put(&mut self.bytes, coarser.into());
        put(&mut self.bytes, self.merged.len() as u64);
        let mut before = 0;
        for (bucket, count) in &self.merged {
            put(&mut self.bytes, u64::from((bucket - before) >> coarser));
            put(&mut self.bytes, *count);
            before = *bucket;
        }
        self.ends[part] = (self.bytes.len(), self.merged.len());
    }

    /// Halves the precision of the part with the most buckets. Returns true if that was possible.
    fn coarsen(&mut self) -> bool {
        let packed = std::mem::take(&mut self.bytes);
        let largest = (0..PARTS).max_by_key(|part| self.ends[*part].1).unwrap_or(0);
        let mut bytes = &packed[..];
        let mut done = false;
        for part in 0..PARTS {
            let mut coarser = self.unpack(&mut bytes);
            if part == largest && coarser + 1 < HALF_BITS {
                coarser += 1;
                done = true;
            }
            self.merged.clear();
            for (bucket, count) in &self.counts {
                let bucket = bucket >> coarser << coarser;
                match self.merged.last_mut() {
                    Some((last, sum)) if *last == bucket => *sum += count,
                    _ => self.merged.push((bucket, *count)),
                }
            }
            self.pack(coarser, part);
        }
        done
    }
}

/// Skips a part.
fn skip(bytes: &mut &[u8]) {
    number(bytes);
    for _ in 0..number(bytes).min(bytes.len() as u64) {
        number(bytes);
        number(bytes);
    }
}

/// Reads the next number. Returns zero at the end.
fn number(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    let mut shift = 0;
    while let Some((byte, rest)) = bytes.split_first() {
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        shift = (shift + 7).min(63);
        if byte & 0x80 == 0 {
            break;
        }
    }
    value
}

fn put(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

#[cfg(test)]
#[path = "tally_tests.rs"]
mod tests;
