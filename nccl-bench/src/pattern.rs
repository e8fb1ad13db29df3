//! Fills buffers so that every element of a result can be verified without a second computation.
//!
//! Rank r's element i is `table[(i + step × r) mod period]`. The values are small integers, so that a sum is exact in
//! every type and order. The period is prime, so that misplaced, duplicated and missing blocks are detected.

use half::{bf16, f16};

use crate::collective::{Collective, Plan};
use crate::dtype::Dtype;

/// Period of the pattern. It is prime, and none of its multiples is close to a power of two at which buffers are split.
const PERIOD: usize = 1021;
/// Offset between the patterns of consecutive ranks. It is coprime to the period.
const STEP: usize = 389;
/// Upper limit of the values. Larger values would not detect more errors.
const LARGEST: u32 = 97;

/// Returns the bytes of `rank`'s input.
pub fn input(plan: &Plan, rank: usize) -> Vec<u8> {
    let table = table(plan);
    let value = |i| table[place(i, rank)];
    bytes(plan.dtype, plan.send_elements(), value)
}

/// Returns the number of wrong elements in `rank`'s `output`. Missing and additional bytes count too.
pub fn wrong(plan: &Plan, rank: usize, output: &[u8]) -> u64 {
    let right = expected(plan, rank);
    let size = plan.dtype.size();
    let differ = right
        .chunks(size)
        .zip(output.chunks(size))
        .filter(|(a, b)| a != b)
        .count();
    let off = right.len().abs_diff(output.len()).div_ceil(size);
    (differ + off) as u64
}

/// Returns the expected bytes of `rank`'s output.
pub fn expected(plan: &Plan, rank: usize) -> Vec<u8> {
    let (table, count) = (table(plan), plan.count);
    let sums: Vec<u32> = if plan.collective.reduces() {
        sums(&table, plan.ranks)
    } else {
        Vec::new()
    };
    let value = |i: usize| match plan.collective {
        Collective::AllReduce => sums[i % PERIOD],
        Collective::ReduceScatter => sums[(rank * count + i) % PERIOD],
        Collective::AllGather => table[place(i % count, i / count)],
        Collective::Broadcast => table[place(i, plan.root)],
        Collective::AllToAll => table[place(rank * count + i % count, i / count)],
    };
    bytes(plan.dtype, plan.receive_elements(), value)
}

fn place(i: usize, rank: usize) -> usize {
    (i + STEP * (rank % PERIOD)) % PERIOD
}

/// Returns the values of the pattern. They start from 0 and are small enough for an exact sum over all ranks. If the
/// type cannot count the ranks exactly, only some values are not 0.
fn table(plan: &Plan) -> Vec<u32> {
    let exact = plan.dtype.exact();
    let ranks = plan.ranks.max(1) as u32;
    let largest = if plan.collective.reduces() {
        (exact / ranks).min(LARGEST)
    } else {
        LARGEST
    };
    let value = |i: usize| {
        let random = scramble(i as u32 + 1);
        match largest {
            0 => u32::from(random.is_multiple_of(2 * ranks.div_ceil(exact))),
            _ => random % (largest + 1),
        }
    };
    (0..PERIOD).map(value).collect()
}

/// Returns a pseudorandom number (the finalizer of MurmurHash3, public domain).
fn scramble(mut x: u32) -> u32 {
    x = (x ^ (x >> 16)).wrapping_mul(0x85eb_ca6b);
    x = (x ^ (x >> 13)).wrapping_mul(0xc2b2_ae35);
    x ^ (x >> 16)
}

fn sums(table: &[u32], ranks: usize) -> Vec<u32> {
    (0..PERIOD)
        .map(|i| (0..ranks).map(|rank| table[place(i, rank)]).sum())
        .collect()
}

fn bytes(dtype: Dtype, elements: usize, value: impl Fn(usize) -> u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(elements * dtype.size());
    for i in 0..elements {
        let value = value(i);
        match dtype {
            Dtype::F32 => bytes.extend_from_slice(&(value as f32).to_ne_bytes()),
            Dtype::F16 => bytes.extend_from_slice(&f16::from_f32(value as f32).to_ne_bytes()),
            Dtype::Bf16 => bytes.extend_from_slice(&bf16::from_f32(value as f32).to_ne_bytes()),
            Dtype::I32 => bytes.extend_from_slice(&value.to_ne_bytes()),
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(collective: Collective, dtype: Dtype, ranks: usize) -> Plan {
        Plan::new(collective, dtype, 8192, ranks).unwrap()
    }

    #[test]
    fn one_wrong_element_is_counted_as_one() {
        for collective in Collective::ALL {
            for dtype in Dtype::ALL {
                let plan = plan(collective, dtype, 3);
                let mut output = expected(&plan, 1);
                assert_eq!(wrong(&plan, 1, &output), 0);
                let middle = output.len() / 2;
                output[middle] ^= 1;
                assert_eq!(wrong(&plan, 1, &output), 1, "{collective} {dtype}");
            }
        }
    }

    #[test]
    fn a_rank_left_out_or_counted_twice_is_seen() {
        for dtype in Dtype::ALL {
            let plan = plan(Collective::AllReduce, dtype, 5);
            let (table, right) = (table(&plan), expected(&plan, 0));
            let without = |i: usize| (1..5).map(|rank| table[place(i, rank)]).sum();
            let twice = |i: usize| (0..5).map(|rank| table[place(i, rank.max(1))]).sum();
            for sum in [bytes(dtype, plan.count, without), bytes(dtype, plan.count, twice)] {
                let wrong = wrong(&plan, 0, &sum) as usize;
                assert!(
                    wrong * 2 > plan.count,
                    "{dtype}: {wrong} of {}, {}",
                    plan.count,
                    right.len()
                );
            }
        }
    }

    #[test]
    fn no_sum_is_larger_than_what_the_type_counts_exactly() {
        for dtype in Dtype::ALL {
            for ranks in [1, 2, 8, 64, 512, 5000] {
                let plan = plan(Collective::AllReduce, dtype, ranks);
                let largest = sums(&table(&plan), ranks).into_iter().max().unwrap();
                assert!(
                    largest > 0 && largest <= dtype.exact(),
                    "{dtype} {ranks}: {largest}"
                );
            }
        }
    }

    #[test]
    fn missing_bytes_are_wrong() {
        let plan = plan(Collective::Broadcast, Dtype::F32, 2);
        let right = expected(&plan, 1);
        assert_eq!(wrong(&plan, 1, &right[..right.len() - 8]), 2);
    }
}
