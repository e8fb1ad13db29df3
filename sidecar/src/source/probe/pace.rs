//! Durations of steps without GPU times of collectives. A host enqueues up to ten steps at once and then waits, so the
//! time between two enqueues says little about one step. A GPU runs one step after the other: each ends about a usual
//! step's duration after the previous one, and not before it was enqueued.

use std::collections::VecDeque;

/// Number of timed steps in the usual duration, and the multiple of their median that makes an exception.
const USUAL: usize = 32;
const EXCEPTION: u64 = 4;
/// The clocks of host and GPU may drift apart by one part in this many.
const DRIFT: i128 = 50_000;

/// When a rank's steps end on its GPU, measured or estimated.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// When the GPU ended the last step, by its own clock.
    last: Option<i128>,
    was_timed: bool,
    /// Durations of the latest steps with both ends timed, ns.
    timed: VecDeque<u64>,
    /// Minimum time from enqueue to the end on the GPU, including the clocks' offset, ns; and when it was measured.
    least_delay: Option<(i128, u64)>,
}

impl Pace {
    /// Duration, ns, of a step enqueued at `at_ns` by the host's clock that ended at `gpu_end_ns` by the GPU's, if
    /// timed. Call it for all steps in order. `None` if only the host's clock shows the previous step's end.
    pub(super) fn step(&mut self, at_ns: u64, gpu_end_ns: Option<u64>) -> Option<u64> {
        let was_timed = std::mem::replace(&mut self.was_timed, gpu_end_ns.is_some());
        let from = self.last.take();
        let estimate = self.estimate(from, at_ns);
        let timed = gpu_end_ns.map(i128::from);
        if let Some(end) = timed {
            self.measure(at_ns, end - i128::from(at_ns));
        }
        self.last = timed.or(estimate);
        // Errors of earlier estimates must not count as this step's.
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
        dur_ns
    }

    /// The step before the next one is unknown.
    pub(super) fn gap(&mut self) {
        self.last = None;
        self.was_timed = false;
    }

    /// Estimated end on the GPU of a step that follows one that ended at `from`; `None` before any step was timed.
    fn estimate(&self, from: Option<i128>, at_ns: u64) -> Option<i128> {
        let usual = i128::from(self.usual()?);
        let (delay, measured_ns) = self.least_delay?;
        // A lower bound: clock drift is not a delay.
        let drift = i128::from(at_ns.saturating_sub(measured_ns)) / DRIFT;
        let earliest = i128::from(at_ns) + delay - drift;
        Some(from.map_or(earliest, |from| earliest.max(from + usual)))
    }

    fn usual(&self) -> Option<u64> {
        let mut sorted: Vec<u64> = self.timed.iter().copied().collect();
        sorted.sort_unstable();
        let most = sorted.get(sorted.len() / 2)?.saturating_mul(EXCEPTION);
        let ordinary = sorted.partition_point(|ns| *ns <= most);
        let sum: u128 = sorted[..ordinary].iter().map(|ns| u128::from(*ns)).sum();
        u64::try_from(sum / ordinary.max(1) as u128).ok()
    }

    fn measure(&mut self, at_ns: u64, delay: i128) {
        let is_least = self.least_delay.is_none_or(|(least, measured_ns)| {
            delay <= least + i128::from(at_ns.saturating_sub(measured_ns)) / DRIFT
        });
        if is_least {
            self.least_delay = Some((delay, at_ns));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const STEP: u64 = 100 * MS;
    /// How far the GPU's clock is behind the host's.
    const BEHIND: u64 = 7_000_000 * MS;

    /// Durations in ms of 100 steps that the GPU runs one after the other, and that the host enqueues ten at a time;
    /// eight of 32 are timed. `extra`: additional ms of a step.
    fn durations(extra: impl Fn(u64) -> u64) -> Vec<u64> {
        let (mut pace, mut out) = (Pace::default(), Vec::new());
        let (mut host, mut gpu) = (10_000_000 * MS, 10_000_000 * MS);
        for step in 0..100 {
            host = if step % 10 == 0 { gpu } else { host + MS };
            gpu = gpu.max(host) + STEP + extra(step) * MS;
            let is_timed = step % 32 < 8;
            out.extend(
                pace.step(host, is_timed.then_some(gpu - BEHIND))
                    .map(|ns| (ns + MS / 2) / MS),
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

    /// Timed steps are exact to the millisecond; others show it when the host waits again.
    #[test]
    fn steps_that_take_longer() {
        let timed = durations(|step| 300 * u64::from(step == 35));
        assert_eq!(timed.iter().position(|ms| *ms == 400), Some(34), "{timed:?}");
        let untimed = durations(|step| 300 * u64::from(step == 45));
        assert_eq!(untimed.iter().filter(|ms| **ms != 100).count(), 1, "{untimed:?}");
        assert_eq!(untimed.iter().position(|ms| *ms == 400), Some(49), "{untimed:?}");
    }

    /// Alternating durations: the estimates add up to the real time, as exactly as seven steps of a window allow.
    #[test]
    fn steps_that_alternate() {
        let durations = durations(|step| 100 * (step % 2));
        let mean = durations.iter().sum::<u64>() as f64 / durations.len() as f64;
        assert!((mean - 150.0).abs() < 10.0, "{mean}: {durations:?}");
    }

    /// An unknown step, for example because of lost records: the estimates continue after it.
    #[test]
    fn estimates_go_on_after_a_gap() {
        let (mut pace, mut gpu) = (Pace::default(), 10_000_000 * MS);
        for step in 0..30 {
            let host = gpu / (10 * STEP) * (10 * STEP);
            gpu += STEP;
            if step == 20 {
                pace.gap();
                continue;
            }
            let dur = pace.step(host + step, (step < 8).then_some(gpu));
            assert!(step < 22 || dur == Some(STEP), "{step}: {dur:?}");
        }
    }

    /// The GPU is ten steps behind for a thousand steps, then the host stalls: the queue hides it, and no step is long.
    #[test]
    fn a_stall_of_the_host_that_the_queue_hides() {
        let (mut pace, mut gpu) = (Pace::default(), 10_000_000 * MS);
        for step in 0..3000_u64 {
            let ahead = match step {
                0..=1 => 1,
                _ if step > 2000 && step % 100 == 50 => 1,
                _ => 10,
            };
            gpu += STEP;
            let dur = pace.step(gpu - ahead * STEP, (step % 32 < 8).then_some(gpu));
            assert!(step < 8 || dur == Some(STEP), "{step}: {dur:?}");
        }
    }

    /// If nothing is ever timed, only the host's clock is available.
    #[test]
    fn nothing_is_timed() {
        let mut pace = Pace::default();
        assert!((0..100).all(|step| pace.step(step * MS, None).is_none()));
    }

    /// Steps that become shorter between windows do not become negative, and estimates do not diverge.
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
