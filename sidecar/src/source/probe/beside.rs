//! Computes a rank's exposed time in the collectives of a step from their times on its GPU.
//!
//! All times are from one clock, that of the rank's own GPU, so collectives of different communicators can be compared.
//! Time covered by several of them is counted only once. Time in a collective is exposed only if the GPU ran no other
//! work during it. A collective counts as overlapping with work in two cases: if one of another communicator starts
//! while it runs, or if the next one of its own communicator starts just as it ends, like buckets that were queued
//! while the GPU worked on the next. Communicators with such collectives get no result.
//!
//! Messages count differently, because a pipeline stage needs the data that it receives before it can continue, while
//! its sends overlap with its compute. So receives are exposed and sends are not, and neither affects concurrent
//! collectives.

use std::collections::BTreeMap;

use paceline_ring::Function;

/// The time of one collective or message on the GPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interval {
    pub(super) comm: u64,
    pub(super) start_ns: u64,
    pub(super) end_ns: u64,
    pub(super) function: Function,
}

/// Maximum number of intervals per step. Beyond it, the step has no result.
pub(super) const MOST: usize = 4096;
/// If less than this lies between two collectives, the second was already queued, so no work ran between them.
const QUEUED_NS: u64 = 20_000;

/// Returns the rank's exposed time by communicator, or `None` if the GPU may have worked during its collectives.
pub(super) fn exposed(intervals: &mut [Interval]) -> BTreeMap<u64, Option<u64>> {
    intervals.sort_unstable_by_key(|met| (met.start_ns, met.end_ns, met.comm));
    let mut all: BTreeMap<u64, Option<u64>> = BTreeMap::new();
    let mut latest: BTreeMap<u64, u64> = BTreeMap::new();
    // `on` holds the running collectives and their ends; `covered` is the end of the time counted so far.
    let mut on: Vec<(u64, u64)> = Vec::new();
    let mut covered = 0;
    for met in intervals.iter() {
        let (comm, start, end) = (met.comm, met.start_ns, met.end_ns);
        if !met.function.is_message() {
            on.retain(|(_, until)| *until > start.saturating_add(QUEUED_NS));
            for (other, _) in on.iter().filter(|(other, _)| *other != comm) {
                all.insert(*other, None);
            }
            let before = latest.insert(comm, end);
            if before.is_some_and(|before| start <= before.saturating_add(QUEUED_NS)) {
                all.insert(comm, None);
            }
            on.push((comm, end));
        }
        let sum = all.entry(comm).or_insert(Some(0));
        if met.function != Function::Send {
            let more = end.saturating_sub(start.max(covered));
            *sum = sum.map(|sum| sum + more);
            covered = covered.max(end);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn met(function: Function, (comm, start, end): (u64, u64, u64)) -> Interval {
        Interval {
            comm,
            start_ns: start * MS,
            end_ns: end * MS,
            function,
        }
    }

    fn check(name: &str, intervals: &[(u64, u64, u64)], wanted: &[(u64, Option<u64>)]) {
        let collective = |interval: &(u64, u64, u64)| met(Function::AllReduce, *interval);
        check_all(name, intervals.iter().map(collective).collect(), wanted);
    }

    fn check_all(name: &str, mut scaled: Vec<Interval>, wanted: &[(u64, Option<u64>)]) {
        scaled.reverse();
        let wanted: BTreeMap<u64, Option<u64>> = wanted
            .iter()
            .map(|(comm, ms)| (*comm, ms.map(|ms| ms * MS)))
            .collect();
        assert_eq!(exposed(&mut scaled), wanted, "{name}");
    }

    #[test]
    fn standing_still_or_beside_the_work() {
        check("none", &[], &[]);
        check(
            "tensor parallel: work between any two",
            &[(1, 10, 12), (1, 15, 16), (2, 18, 25)],
            &[(1, Some(3)), (2, Some(7))],
        );
        check(
            "buckets: the next one was queued",
            &[(1, 10, 20), (1, 20, 31), (1, 31, 33)],
            &[(1, None)],
        );
        check(
            "gradients beside a tensor-parallel backward pass",
            &[(1, 10, 30), (2, 12, 14), (2, 16, 18), (2, 40, 42)],
            // Time that both cover is counted only once.
            &[(1, None), (2, Some(2))],
        );
        check(
            "covered in part: both may have gone on",
            &[(1, 10, 20), (2, 15, 25)],
            &[(1, None), (2, Some(5))],
        );
    }

    #[test]
    fn stages_stand_still_for_what_they_receive() {
        let (sent, received) = (Function::Send, Function::Receive);
        check_all(
            "one forward, one backward; the last send goes on beside the work",
            vec![
                met(received, (1, 10, 15)),
                met(sent, (1, 20, 28)),
                met(received, (1, 20, 28)),
                met(sent, (1, 30, 60)),
            ],
            &[(1, Some(13))],
        );
        check_all(
            "neither tells of tensor parallel ones beside it",
            vec![
                met(sent, (1, 10, 30)),
                met(Function::AllReduce, (2, 12, 14)),
                met(Function::AllReduce, (2, 20, 40)),
                met(received, (1, 30, 50)),
            ],
            &[(1, Some(10)), (2, Some(22))],
        );
    }

    #[test]
    fn what_is_covered_is_no_more_than_what_passed() {
        for apart in 1..12 {
            let of = |n: u64| met(Function::AllReduce, (n % 5, n * apart, n * apart + n % 11));
            let mut intervals: Vec<Interval> = (0..500).map(of).collect();
            let told: u64 = exposed(&mut intervals).values().flatten().sum();
            assert!(told <= (500 * apart + 11) * MS, "{apart}");
            let all: u64 = intervals.iter().map(|met| met.end_ns - met.start_ns).sum();
            assert_eq!(told == all, apart >= 10, "{apart}: all of it where nothing meets");
        }
    }
}
