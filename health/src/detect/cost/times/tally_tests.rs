use hdrhistogram::Histogram;
use proptest::prelude::*;

use super::*;

fn step_of(micros: u64) -> [Option<u64>; PARTS] {
    let mut parts = [None; PARTS];
    (parts[0], parts[1]) = (Some(micros), Some(micros / 3));
    parts
}

#[test]
fn buckets_are_those_of_hdrhistogram() {
    let theirs =
        Histogram::<u64>::new_with_bounds(1, crate::detect::cost::times::MOST, 2).expect("constants");
    let powers = (0..32).flat_map(|bits| [(1_u64 << bits) - 1, 1 << bits, (1 << bits) + 1, 3 << bits >> 1]);
    for value in (0..2000)
        .chain(powers)
        .chain([999_983, 3_599_999_999, 3_600_000_000])
    {
        let bucket = u64::from(bucket_of(value));
        assert_eq!(lowest(bucket), theirs.lowest_equivalent(value), "{value}");
        assert_eq!(lowest(bucket + 1), theirs.next_non_equivalent(value), "{value}");
    }
}

#[test]
fn times_all_over_stay_within_the_bound_and_near_the_truth() {
    let mut desk = Buckets::default();
    let mut tally = Tally::of(Rank(3));
    let steps = 20_000_u64;
    // The times cover every bucket from 1 ms to 16 s, in all parts.
    let time_of = |step: u64| 1000 + (step * 7919 % steps).pow(2) / 25;
    for step in 0..steps {
        tally.take([Some(time_of(step)); PARTS], &mut desk);
        assert!(tally.packed.len() <= MOST_BYTES);
    }
    for part in 0..PARTS {
        let (samples, [p50, p99]) = tally.quantiles(part, [0.5, 0.99], &mut desk).expect("taken");
        assert_eq!(samples, steps);
        for (told, share) in [(p50, 0.5), (p99, 0.99)] {
            let truth = (1000.0 + (steps as f64 * share).powi(2) / 25.0) / 1e6;
            assert!((told / truth - 1.0).abs() < 0.07, "{part}: {told} for {truth}");
        }
    }
}

#[test]
fn a_damaged_snapshot_is_read_as_something() {
    let mut desk = Buckets::default();
    for byte in 0..=u8::MAX {
        let mut tally = Tally::of(Rank(0));
        tally.packed = Box::from(vec![byte; 300]);
        for part in 0..PARTS {
            tally.quantiles(part, [0.5], &mut desk);
        }
        (0..20).for_each(|_| tally.take(step_of(5), &mut desk));
    }
}

proptest! {
    /// For any input, quantiles equal those of hdrhistogram at two digits, and a snapshot changes nothing.
    #[test]
    fn a_rank_is_told_as_a_histogram_tells_it(
        rank in 0_u32..40,
        times in prop::collection::vec(prop_oneof![0_u64..300, 900_000_u64..1_100_000, 0_u64..3_600_000_000], 1..90),
    ) {
        let mut desk = Buckets::default();
        let mut tally = Tally::of(Rank(rank));
        let mut theirs = Histogram::<u64>::new_with_bounds(1, crate::detect::cost::times::MOST, 2).expect("constants");
        for time in &times {
            tally.take(step_of(*time), &mut desk);
            theirs.record(*time).expect("within bounds");
            let text = serde_json::to_string(&tally).expect("plain");
            tally = serde_json::from_str(&text).expect("what was written");
        }
        let wanted = [0.01, 0.5, 0.9, 0.99, 1.0];
        let told = tally.quantiles(0, wanted, &mut desk);
        let (samples, told) = told.expect("taken");
        prop_assert_eq!(samples, times.len() as u64);
        for (quantile, told) in wanted.iter().zip(told) {
            let value = theirs.value_at_quantile(*quantile);
            let middle = (theirs.lowest_equivalent(value) + theirs.highest_equivalent(value)) / 2;
            prop_assert_eq!(told, middle as f64 / 1e6);
        }
        prop_assert!(tally.quantiles(7, [0.5], &mut desk).is_none());
    }
}
