use super::*;
use crate::event::REDUCE_SCATTER;

const LAYERS: usize = 32;
const MS: f64 = 1e6;

/// What two ranks report for a step of sharded weights. The first works `work_ms` in it, and the second works `slower`
/// times as long. Both gather a layer while they compute the one before it.
fn sharded(work_ms: f64, slower: f64) -> [Vec<FunctionSum>; 2] {
    let own = [work_ms, work_ms * slower];
    let (mut asked, mut end, mut free) = ([0.0; 2], [0.0; 2], 0.0);
    let mut each: [[Vec<(u64, u64)>; 2]; 2] = Default::default();
    let meet = |of: usize, asked: [f64; 2], free: f64, each: &mut [[Vec<(u64, u64)>; 2]; 2]| {
        let done = free.max(asked[0]).max(asked[1]) + 0.1;
        for rank in 0..2 {
            let begin = asked[rank].max(free);
            each[rank][of].push(((begin * MS) as u64, ((done - begin) * MS) as u64));
        }
        done
    };
    for slot in 0..2 * LAYERS {
        free = meet(1, asked, free, &mut each);
        let gathered = free;
        if slot > LAYERS {
            free = meet(0, end, free, &mut each);
        }
        let share = if slot < LAYERS { 1.0 } else { 2.0 } / (3 * LAYERS) as f64;
        for rank in 0..2 {
            asked[rank] = f64::max(end[rank], gathered);
            end[rank] = asked[rank] + own[rank] * share;
        }
    }
    meet(0, end, free, &mut each);
    each.map(|[scattered, gathered]| {
        vec![
            FunctionSum::of(REDUCE_SCATTER, &scattered),
            FunctionSum::of(ALL_GATHER, &gathered),
        ]
    })
}

fn stood_of(told: &[Vec<FunctionSum>], step_ms: f64) -> Vec<f64> {
    let told: Vec<&[FunctionSum]> = told.iter().map(Vec::as_slice).collect();
    let stood = stood_s(&told, step_ms / 1e3).expect("the same collectives");
    stood.into_iter().map(|seconds| seconds * 1e3).collect()
}

/// Durations beyond the shortest add up to half of the step or more, but the step lost only a tenth of that.
#[test]
fn what_a_step_of_sharded_weights_lost() {
    for (slower, least_ms, most_ms) in [
        (1.01, 0.9, 1.2),
        (1.1, 8.0, 12.0),
        (1.25, 17.0, 27.0),
        (1.5, 30.0, 55.0),
    ] {
        let told = sharded(100.0, slower);
        let [fast, slow] = stood_of(&told, 100.0 * slower)[..] else {
            unreachable!()
        };
        assert!((least_ms..most_ms).contains(&fast), "{slower}: {fast}");
        assert!(
            slow < 0.1,
            "{slower}: nobody is waited for by the slow rank: {slow}"
        );
        let sum = |told: &[FunctionSum]| -> u64 {
            let parts = told.iter().flat_map(|sum| &sum.parts);
            parts.map(|part| part.dur_us).sum()
        };
        let apart_ms = (sum(&told[0]) - sum(&told[1])) as f64 / 1e3;
        assert!(
            slower < 1.05 || apart_ms > 3.0 * fast,
            "{slower}: {apart_ms} for {fast}"
        );
    }
}

/// What two ranks report for gradients in `buckets`: one works 90 ms, and the other works `slower` times as long.
fn reduced(buckets: usize, slower: f64) -> [Vec<FunctionSum>; 2] {
    let mut each: [Vec<(u64, u64)>; 2] = Default::default();
    let mut free = 0.0;
    for bucket in 1..=buckets {
        let share = (1.0 + 2.0 * bucket as f64 / buckets as f64) / 3.0;
        let ready = [90.0 * share, 90.0 * slower * share];
        let done = f64::max(ready[1], free) + 0.1;
        for rank in 0..2 {
            let begin = ready[rank].max(free);
            each[rank].push(((begin * MS) as u64, ((done - begin) * MS) as u64));
        }
        free = done;
    }
    each.map(|each| {
        let first = each[0].0;
        let each: Vec<(u64, u64)> = each.iter().map(|(begin, dur)| (begin - first, *dur)).collect();
        vec![FunctionSum::of(ALL_REDUCE, &each)]
    })
}

/// With few buckets, the last one shows the whole lag. With many, each shows no more than one bucket's work.
#[test]
fn what_a_step_of_buckets_lost() {
    for buckets in [1, 4, 8, 50, 300] {
        for slower in [1.03, 1.1, 1.25] {
            let lost_ms = 90.0 * (slower - 1.0);
            let stood = stood_of(&reduced(buckets, slower), 90.0 * slower);
            assert!(
                (stood[0] / lost_ms - 1.0).abs() < 0.15,
                "{buckets} {slower}: {} of {lost_ms}",
                stood[0]
            );
            assert_eq!(stood[1], 0.0);
        }
    }
}

#[test]
fn other_collectives_are_not_compared() {
    let mut told = sharded(100.0, 1.1);
    told[1].pop();
    let told: Vec<&[FunctionSum]> = told.iter().map(Vec::as_slice).collect();
    assert_eq!(stood_s(&told, 0.1), None);
    assert_eq!(stood_s(&[&[], &[]], 0.1), None, "an older sidecar");
}

#[test]
fn sums_that_no_step_has_stop_nothing() {
    let none = vec![FunctionSum {
        function: ALL_GATHER,
        collectives: 0,
        parts: Vec::new(),
    }];
    assert_eq!(stood_s(&[&none, &none], 0.1), None);
    for function in [ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER] {
        let huge = |dur_us| {
            let part = OrderPart {
                begin_us: u64::MAX,
                dur_us,
            };
            vec![FunctionSum {
                function,
                collectives: 3,
                parts: vec![part; part_sizes(3).count()],
            }]
        };
        let stood = stood_s(&[&huge(u64::MAX), &huge(0)], 0.1).unwrap();
        assert!(stood.iter().all(|stood_s| stood_s.is_finite()), "{stood:?}");
    }
}
