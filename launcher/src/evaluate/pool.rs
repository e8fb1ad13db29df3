//! Runs independent jobs on all cores. The results are in the order of the jobs.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

/// Returns the default number of threads.
pub(super) fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Runs `work` on every job, using `threads` threads. The largest jobs start first, so that no large one is left for
/// the end. Calls `done` as each job ends. The results are in the order of the jobs.
pub(super) fn map<J: Sync, R: Send>(
    jobs: &[J],
    threads: usize,
    size: impl Fn(&J) -> u64,
    work: impl Fn(&J) -> R + Sync,
    mut done: impl FnMut(&J),
) -> Vec<R> {
    let mut order: Vec<usize> = (0..jobs.len()).collect();
    order.sort_by_key(|index| std::cmp::Reverse(size(&jobs[*index])));
    let next = AtomicUsize::new(0);
    let mut results: Vec<Option<R>> = jobs.iter().map(|_| None).collect();
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        for _ in 0..threads.clamp(1, jobs.len().max(1)) {
            let (sender, order, next, work) = (sender.clone(), &order, &next, &work);
            scope.spawn(move || {
                while let Some(index) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                    // Stop this thread if the receiver is closed, because then the caller has exited.
                    if sender.send((*index, work(&jobs[*index]))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        for (index, result) in receiver {
            results[index] = Some(result);
            done(&jobs[index]);
        }
    });
    results.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_stand_in_the_order_of_the_jobs() {
        let jobs: Vec<u64> = (0..97).collect();
        for threads in [1, 2, 7] {
            let mut seen = 0;
            let squares = map(&jobs, threads, |job| *job, |job| job * job, |_| seen += 1);
            assert_eq!(squares, jobs.iter().map(|job| job * job).collect::<Vec<_>>());
            assert_eq!(seen, 97);
        }
        assert!(map(&[] as &[u64], 2, |_| 0, |job| *job, |_| {}).is_empty());
    }
}
