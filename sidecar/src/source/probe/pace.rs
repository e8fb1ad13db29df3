//! Durations of steps for which collectives have no GPU times. A host enqueues up to ten steps at once and then waits,
//! so the time between two enqueues says little about one step. A GPU runs one step after the other. So each step is
//! assumed to end about a usual step's duration after the previous one, and not before it was enqueued.

use std::collections::VecDeque;

/// Number of timed steps from which the usual duration is computed, and the multiple of their median beyond which a
/// step is an exception.
const USUAL: usize = 32;
const EXCEPTION: u64 = 4;
/// The clocks of host and GPU may drift apart by at most one part in this many.
const DRIFT: i128 = 50_000;

/// The time at which a rank's steps end on its GPU, measured or estimated.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// End of the last step on the GPU, by the GPU's clock.
    last: Option<i128>,
    was_timed: bool,
    /// Durations of the latest steps for which both ends were timed, in nanoseconds.
    timed: VecDeque<u64>,
    /// The shortest time from enqueue to the end on the GPU, including the offset between the clocks, in nanoseconds;
    /// and when it was measured.
    least_delay: Option<(i128, u64)>,
}

impl Pace {
    /// Returns the duration of a step in nanoseconds. The step was enqueued at `at_ns` by the host's clock and, if it
    /// was timed, ended at `gpu_end_ns` by the GPU's clock. Must be called for all steps in order. Returns `None` if
    /// the previous step's end on the GPU is unknown.
    pub(super) fn step(&mut self, at_ns: u64, gpu_end_ns: Option<u64>) -> Option<u64> {
        let was_timed = std::mem::replace(&mut self.was_timed, gpu_end_ns.is_some());
        let from = self.last.take();
        let estimate = self.estimate(from, at_ns);
        let timed = gpu_end_ns.map(i128::from);
        if let Some(end) = timed {
            self.measure(at_ns, end - i128::from(at_ns));
        }
        self.last = timed.or(estimate);
        // If the previous end was only estimated, use an estimate here as well, so that its error does not count as
        // this step's time.
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

    /// Records a gap, after which the next step's predecessor is unknown.
    pub(super) fn gap(&mut self) {
        self.last = None;
        self.was_timed = false;
    }

    /// Returns the estimated end on the GPU of a step whose predecessor ended at `from`. Returns `None` before any step
    /// was timed.
    fn estimate(&self, from: Option<i128>, at_ns: u64) -> Option<i128> {
        let usual = i128::from(self.usual()?);
        let (delay, measured_ns) = self.least_delay?;
        // Subtract the possible drift to get a lower bound, because drift of the clocks must not count as a delay.
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
    /// How far the GPU's clock is behind the host's clock.
    const BEHIND: u64 = 7_000_000 * MS;

    /// Returns the durations of 100 steps in milliseconds. The GPU runs them one after the other, the host enqueues ten
    /// at a time, and eight of each 32 are timed. `extra` returns the additional milliseconds of a step.
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

    /// A timed step shows an extra delay exactly. Of untimed steps, the delay appears when the host next waits.
    #[test]
    fn steps_that_take_longer() {
        let timed = durations(|step| 300 * u64::from(step == 35));
        assert_eq!(timed.iter().position(|ms| *ms == 400), Some(34), "{timed:?}");
        let untimed = durations(|step| 300 * u64::from(step == 45));
        assert_eq!(untimed.iter().filter(|ms| **ms != 100).count(), 1, "{untimed:?}");
        assert_eq!(untimed.iter().position(|ms| *ms == 400), Some(49), "{untimed:?}");
    }

    /// With alternating durations, the estimates must add up to the real time, as exactly as the seven durations
    /// measured per window allow.
    #[test]
    fn steps_that_alternate() {
        let durations = durations(|step| 100 * (step % 2));
        let mean = durations.iter().sum::<u64>() as f64 / durations.len() as f64;
        assert!((mean - 150.0).abs() < 10.0, "{mean}: {durations:?}");
    }

    /// After an unknown step, for example because of lost records, the estimates continue.
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

    /// The GPU is ten steps behind for a thousand steps, and then the host stalls. The queue hides the stall, so no
    /// step may look long.
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

    /// If nothing is ever timed, only the host's clock is available, so there are no durations.
    #[test]
    fn nothing_is_timed() {
        let mut pace = Pace::default();
        assert!((0..100).all(|step| pace.step(step * MS, None).is_none()));
    }

    /// Steps become shorter between windows. No duration may become negative, and the estimates must not diverge.
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
