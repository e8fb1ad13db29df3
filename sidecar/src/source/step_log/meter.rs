//! Turns lines into steps with durations, and detects that a log has stopped.

use std::time::Duration;

use super::format::Line;

/// If lines contain no duration, it is measured over at least this time, because the times of reading are only exact to
/// a tenth of a second.
const WINDOW: Duration = Duration::from_secs(2);
/// A log counts as silent after this multiple of its longest pause, but not before `SILENT`, because evaluations and
/// checkpoints print nothing.
const SILENT_PAUSES: u64 = 5;
const SILENT: Duration = Duration::from_secs(30);

/// One step of the job. If its duration had to be measured, it is the mean of the steps since the previous result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Number of the step, which never decreases.
    pub step: u64,
    /// Duration of the step, nanoseconds.
    pub dur_ns: u64,
}

/// The meter; see the module. Times are CLOCK_MONOTONIC in nanoseconds.
#[derive(Debug, Default)]
pub struct Meter {
    /// Offset added to the lines' step numbers, so that a count that starts over is continued.
    base: u64,
    last: Option<(u64, u64)>,
    /// Step and time at which the current measurement started.
    since: Option<(u64, u64)>,
    longest_ns: u64,
}

impl Meter {
    /// Adds a line that was read at `at_ns`. Returns a step if its duration is known.
    pub fn take(&mut self, line: Line, at_ns: u64) -> Option<Measured> {
        let mut step = self.base.saturating_add(line.step);
        if let Some((last, last_ns)) = self.last {
            if step == last {
                return None;
            }
            if step < last {
                // The count went back, because of a new epoch or restarted training.
                self.base += last + 1 - step;
                step = last + 1;
                self.since = None;
            }
            self.longest_ns = self.longest_ns.max(at_ns.saturating_sub(last_ns));
        }
        self.last = Some((step, at_ns));
        if let Some(seconds) = line.seconds {
            let dur_ns = (seconds * 1e9) as u64;
            return Some(Measured { step, dur_ns });
        }
        let (from, from_ns) = *self.since.get_or_insert((step, at_ns));
        let passed_ns = at_ns.saturating_sub(from_ns);
        if step == from || passed_ns < WINDOW.as_nanos() as u64 {
            return None;
        }
        self.since = Some((step, at_ns));
        let dur_ns = passed_ns / (step - from);
        Some(Measured { step, dur_ns })
    }

    /// Returns the job's current step, and how long the log has been silent, in nanoseconds. Usual pauses do not count
    /// as silence. Returns `None` before the first line.
    pub fn place(&self, now_ns: u64) -> Option<(u64, u64)> {
        let (step, at_ns) = self.last?;
        let idle_ns = now_ns.saturating_sub(at_ns);
        let usual_ns = self
            .longest_ns
            .saturating_mul(SILENT_PAUSES)
            .max(SILENT.as_nanos() as u64);
        Some((step + 1, if idle_ns > usual_ns { idle_ns } else { 0 }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn line(step: u64, seconds: Option<f64>) -> Line {
        Line {
            step,
            seconds,
            total: 0,
        }
    }

    #[test]
    fn what_lines_say_is_taken() {
        let mut meter = Meter::default();
        let mut said = Vec::new();
        for (step, seconds) in [(10, 0.5), (20, 0.6), (20, 0.6), (5, 0.7), (6, 0.8)] {
            said.extend(meter.take(line(step, Some(seconds)), SECOND));
        }
        let said: Vec<(u64, u64)> = said
            .iter()
            .map(|step| (step.step, step.dur_ns / 1_000_000))
            .collect();
        // A count that went back is continued from the last step.
        assert_eq!(said, [(10, 500), (20, 600), (21, 700), (22, 800)]);
    }

    #[test]
    fn what_they_do_not_say_is_measured() {
        let mut meter = Meter::default();
        let mut said = Vec::new();
        // Each step takes 50 ms, and lines are read every tenth of a second.
        for step in 1..=200_u64 {
            let at_ns = (step * 50).div_ceil(100) * 100 * 1_000_000;
            said.extend(meter.take(line(step, None), at_ns));
        }
        assert!((4..=5).contains(&said.len()), "{said:?}");
        for step in &said {
            assert!(step.dur_ns.abs_diff(50_000_000) <= 3_000_000, "{step:?}");
        }
    }

    #[test]
    fn silence_is_longer_than_the_log_is_silent_anyway() {
        let mut meter = Meter::default();
        assert_eq!(meter.place(SECOND), None);
        meter.take(line(1, None), SECOND);
        meter.take(line(2, None), 11 * SECOND);
        assert_eq!(meter.place(50 * SECOND), Some((3, 0)));
        assert_eq!(meter.place(62 * SECOND), Some((3, 51 * SECOND)));
    }
}
