//! How long steps took of which the GPU timed none of the collectives. A host enqueues up to ten steps at once and then waits, so the
//! time between two enqueues says little of one step. A GPU does one step after the other: each ends about a usual step after the one
//! before, and not before it was enqueued.

use std::collections::VecDeque;

/// Steps whose median is a usual one.
const USUAL: usize = 8;
/// Timed steps after which the least delay is measured anew: clocks drift apart by up to 0.1 ms a second.
const MAX_DELAYS: u32 = 256;

/// When a rank's steps end on its GPU, known or estimated.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// The last step: when the host enqueued its end, and when the GPU came there, if its clock is known.
    last: Option<(u64, Option<i128>)>,
    was_timed: bool,
    /// Durations of the latest steps of which both ends were timed, ns.
    timed: VecDeque<u64>,
    /// Least time from enqueueing to the end on the GPU, which holds the difference of both clocks: of this period and of the one
    /// before, ns.
    delays: [Option<i128>; 2],
    measured: u32,
}

impl Pace {
    /// How long a step took, ns, that was enqueued at `at_ns` by the host's clock and ended at `gpu_end_ns` by the GPU's, if that was
    /// timed. To be asked of each step in turn; `None`: the one before is not known.
    pub(super) fn step(&mut self, at_ns: u64, gpu_end_ns: Option<u64>) -> Option<u64> {
        let was_timed = std::mem::replace(&mut self.was_timed, gpu_end_ns.is_some());
        let last = self.last.take();
        let usual = self.usual();
        let from = last.and_then(|(_, end)| end);
        let after_usual = from.zip(usual).map(|(from, usual)| from + i128::from(usual));
        let enqueued = self.delay().map(|delay| i128::from(at_ns) + delay);
        // Without a usual step only the host's clock is known.
        let estimate = after_usual.zip(enqueued).map(|(end, enqueued)| end.max(enqueued));
        let timed = gpu_end_ns.map(i128::from);
        if let Some(end) = timed {
            self.measure(end - i128::from(at_ns));
        }
        self.last = Some((at_ns, timed.or(estimate)));
        // An error of the estimates in between is not this step's.
        let end = if was_timed { timed.or(estimate) } else { estimate };
        let by_gpu = from
            .zip(end)
            .and_then(|(from, end)| u64::try_from(end - from).ok());
        let dur_ns = by_gpu.filter(|ns| *ns > 0);
        if was_timed && timed.is_some() {
            self.timed.extend(dur_ns);
            if self.timed.len() > USUAL {
                self.timed.pop_front();
            }
        }
        let (last_at_ns, _) = last?;
        Some(dur_ns.unwrap_or_else(|| at_ns.saturating_sub(last_at_ns)))
    }

    /// A step of which nothing is known was between.
    pub(super) fn gap(&mut self) {
        self.last = None;
        self.was_timed = false;
    }

    fn usual(&self) -> Option<u64> {
        let mut sorted: Vec<u64> = self.timed.iter().copied().collect();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied()
    }

    fn delay(&self) -> Option<i128> {
        self.delays.iter().flatten().copied().min()
    }

    fn measure(&mut self, delay: i128) {
        self.measured += 1;
        if self.measured > MAX_DELAYS {
            self.measured = 1;
            self.delays = [None, self.delays[0]];
        }
        self.delays[0] = Some(self.delays[0].map_or(delay, |least| least.min(delay)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const STEP: u64 = 100 * MS;
    /// The GPU's clock is behind the host's.
    const BEHIND: u64 = 7_000_000 * MS;

    /// Durations in ms of 100 steps that the GPU makes one after the other, of which the host enqueues ten at once; eight of
    /// 32 are timed. `extra`: how much longer a step takes.
    fn durations(extra: impl Fn(u64) -> u64) -> Vec<u64> {
        let (mut pace, mut out) = (Pace::default(), Vec::new());
        let (mut host, mut gpu) = (10_000_000 * MS, 10_000_000 * MS);
        for step in 0..100 {
            host = if step % 10 == 0 { gpu } else { host + MS };
            gpu = gpu.max(host) + STEP + extra(step) * MS;
            let is_timed = step % 32 < 8;
            out.extend(
                pace.step(host, is_timed.then_some(gpu - BEHIND))
                    .map(|ns| ns / MS),
            );
        }
        out
    }

    #[test]
    fn a_host_that_enqueues_ten_steps_at_once() {
        assert!(
            durations(|_| 0).iter().all(|ms| *ms == 100),
            "{:?}",
            durations(|_| 0)
        );
    }

    /// Timed ones to the millisecond; others when the host waits again.
    #[test]
    fn steps_that_take_longer() {
        let timed = durations(|step| 300 * u64::from(step == 35));
        assert_eq!(timed.iter().position(|ms| *ms == 400), Some(34), "{timed:?}");
        let untimed = durations(|step| 300 * u64::from(step == 45));
        assert_eq!(untimed.iter().filter(|ms| **ms != 100).count(), 1, "{untimed:?}");
        assert_eq!(untimed.iter().position(|ms| *ms == 400), Some(49), "{untimed:?}");
    }

    /// Where nothing is ever timed the host's clock is all there is.
    #[test]
    fn nothing_is_timed() {
        let mut pace = Pace::default();
        assert_eq!(pace.step(MS, None), None);
        assert_eq!(pace.step(3 * MS, None), Some(2 * MS));
        pace.gap();
        assert_eq!(pace.step(9 * MS, None), None);
    }

    /// Steps that become shorter between windows do not become negative, and estimates do not run away.
    #[test]
    fn steps_that_become_shorter() {
        let (mut pace, mut gpu, mut total) = (Pace::default(), 10_000_000 * MS, 0);
        for step in 0..96 {
            let is_timed = step % 32 < 8;
            let host = gpu;
            gpu += if step < 20 { STEP } else { STEP / 2 };
            let dur = pace.step(host, is_timed.then_some(gpu)).unwrap_or(0);
            assert!(dur <= STEP + MS, "{step}: {dur}");
            total += dur * u64::from(step >= 40);
        }
        assert!(total <= 56 * STEP, "{total}");
    }
}
