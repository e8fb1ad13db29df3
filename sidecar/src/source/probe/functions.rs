//! Sums of a communicator's collectives by function, in the order of the collectives.
//!
//! Collectives that were launched together have the same times, so each of them appears as long as the whole batch. A
//! communicator's collectives run one after the other. The time that several of them cover is therefore counted once,
//! for the first one.

use std::collections::BTreeMap;

use paceline_health::event::FunctionSum;

use super::beside::Interval;

/// One collective or message with its time on the GPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Met {
    pub(super) ticket: u32,
    pub(super) at: Interval,
}

/// Returns, by communicator, the time spent in it in nanoseconds, and the same by function. `first` is the step's first
/// ticket. It is needed for sorting because tickets wrap at 2³².
pub(super) fn sums(met: &mut [Met], first: u32) -> BTreeMap<u64, (u64, Vec<FunctionSum>)> {
    met.sort_unstable_by_key(|met| (met.at.comm, met.ticket.wrapping_sub(first)));
    let mut all = BTreeMap::new();
    for of_comm in met.chunk_by(|one, next| one.at.comm == next.at.comm) {
        let begin_ns = of_comm.iter().map(|met| met.at.start_ns).min().unwrap_or(0);
        let mut covered_ns = begin_ns;
        let mut each: BTreeMap<u8, Vec<(u64, u64)>> = BTreeMap::new();
        let mut sum_ns = 0;
        for Met { at: met, .. } in of_comm {
            let alone_ns = met.end_ns.saturating_sub(met.start_ns.max(covered_ns));
            covered_ns = covered_ns.max(met.end_ns);
            sum_ns += alone_ns;
            let of_function = each.entry(met.function as u8).or_default();
            of_function.push((met.start_ns - begin_ns, alone_ns));
        }
        let functions = each
            .iter()
            .map(|(function, each)| FunctionSum::of(*function, each));
        all.insert(of_comm[0].at.comm, (sum_ns, functions.collect()));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_health::event::{ALL_GATHER, OrderPart, REDUCE_SCATTER};
    use paceline_ring::Function;

    fn met(ticket: u32, function: u8, start_us: u64, end_us: u64) -> Met {
        let at = Interval {
            comm: 7,
            function: Function::of(function),
            start_ns: start_us * 1000,
            end_ns: end_us * 1000,
        };
        Met { ticket, at }
    }

    #[test]
    fn functions_of_one_communicator_are_told_apart() {
        let mut all = vec![
            met(1, REDUCE_SCATTER, 300, 340),
            met(u32::MAX, ALL_GATHER, 100, 110),
            met(0, ALL_GATHER, 200, 250),
        ];
        let sums = sums(&mut all, u32::MAX);
        let (dur_ns, functions) = &sums[&7];
        assert_eq!(*dur_ns, 100_000);
        let part = |begin_us, dur_us| OrderPart { begin_us, dur_us };
        let told: Vec<_> = functions
            .iter()
            .map(|sum| (sum.function, sum.collectives, sum.parts.clone()))
            .collect();
        assert_eq!(
            told,
            [
                (REDUCE_SCATTER, 1, vec![part(200, 40)]),
                (ALL_GATHER, 2, vec![part(0, 10), part(100, 50)]),
            ]
        );
    }

    /// Four collectives between `ncclGroupStart` and `ncclGroupEnd`. Each appears as long as all four together.
    #[test]
    fn a_batch_is_counted_once() {
        let mut all: Vec<Met> = (1..=4)
            .map(|n| met(n, ALL_GATHER, 100 + u64::from(n), 200 + u64::from(n)))
            .collect();
        let sums = sums(&mut all, 1);
        let (dur_ns, functions) = &sums[&7];
        assert_eq!(*dur_ns, 103_000);
        let parts: u64 = functions[0].parts.iter().map(|part| part.dur_us).sum();
        assert_eq!((functions[0].collectives, parts), (4, 103));
    }
}
