//! Computes how much a counter rose recently, from few samples.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::time::Time;

/// Number of samples in a window. The window is exact to a sixth of its length.
const SAMPLES: u32 = 6;
/// Maximum number of samples kept: one before the window, those inside it, and the latest.
const MOST: usize = SAMPLES as usize + 2;

/// The rise of a counter over a window of time.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Window {
    /// The samples, oldest first. Only the first `kept` are valid.
    samples: [(Time, f64); MOST],
    kept: usize,
}

impl Window {
    /// Takes the counter's value. Returns how much the counter rose over the window, and how much time this covers. If
    /// the value fell, the counter was reset, and the window starts over.
    pub fn push(&mut self, at: Time, value: f64, span: Duration) -> (f64, Duration) {
        let kept = self.samples.get(..self.kept).unwrap_or_default();
        if kept.last().is_some_and(|(_, last)| value < *last) {
            self.kept = 0;
        }
        while self.kept > 1 && at.since(self.samples[1].0) >= span {
            self.samples.rotate_left(1);
            self.kept -= 1;
        }
        let kept = self.samples.get(..self.kept).unwrap_or_default();
        let rise = kept.first().map_or((0.0, Duration::ZERO), |(first, from)| {
            (value - from, at.since(*first))
        });
        let due = kept
            .last()
            .is_none_or(|(last, _)| at.since(*last) >= span / SAMPLES);
        if due && self.kept < MOST {
            self.samples[self.kept] = (at, value);
            self.kept += 1;
        }
        rise
    }

    /// Like [`Window::push`], but returns the rise per `span`. If readings were missing for longer than that, the rise
    /// is spread over the whole gap.
    pub fn per_span(&mut self, at: Time, value: f64, span: Duration) -> f64 {
        let (rise, over) = self.push(at, value, span);
        rise * (span.as_secs_f64() / over.max(span).as_secs_f64())
    }
}

/// How long a condition has held without interruption.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Since(Option<Time>);

impl Since {
    /// Records whether the condition holds at `at`. Returns when it started to hold, or `None` if it does not.
    pub fn holds(&mut self, at: Time, holds: bool) -> Option<Time> {
        self.0 = holds.then(|| self.0.unwrap_or(at));
        self.0
    }
}

/// Number of consecutive readings that met a condition.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Streak(u32);

impl Streak {
    /// Takes one reading. Returns the number of consecutive readings that met the condition.
    pub fn push(&mut self, so: bool) -> u32 {
        self.0 = if so { self.0.saturating_add(1) } else { 0 };
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rise_over_a_window() {
        let mut window = Window::default();
        let minute = Duration::from_secs(60);
        let mut push = |second: u64, value: f64| {
            let (rise, over) = window.push(Time(second * 1_000_000_000), value, minute);
            (rise, over.as_secs())
        };
        assert_eq!(push(0, 5.0), (0.0, 0));
        assert_eq!(push(1, 6.0), (1.0, 1));
        for second in 2..=60 {
            push(second, 6.0);
        }
        // The rise of the first minute leaves the window and a new rise enters it. A counter that fell starts over.
        let (rise, over) = push(140, 6.0);
        assert!(rise == 0.0 && (60..=90).contains(&over), "{rise} {over}");
        assert_eq!(push(141, 16.0).0, 10.0);
        assert_eq!(push(142, 2.0), (0.0, 0));
        assert_eq!(push(143, 3.0), (1.0, 1));
    }

    #[test]
    fn what_rose_in_a_gap_rose_over_the_gap() {
        let mut window = Window::default();
        let minute = Duration::from_secs(60);
        let mut push = |second: u64, value| window.per_span(Time(second * 1_000_000_000), value, minute);
        // Only ten seconds of the minute were observed, so the rise in these ten seconds is returned unscaled.
        assert_eq!(push(0, 5.0), 0.0);
        assert_eq!(push(10, 8.0), 3.0);
        assert_eq!(push(610, 28.0), 2.0);
    }
}
