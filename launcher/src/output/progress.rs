//! Draws a progress bar on stderr. It appears only on a terminal, and is never part of a command's output.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::output::{Paint, Style};

/// Minimum interval between redraws.
const EVERY: Duration = Duration::from_millis(100);
const CELLS: usize = 30;

/// A bar that is erased when it is dropped.
pub(crate) struct Progress {
    style: Style,
    what: &'static str,
    /// Time of the last drawing. `None` if stderr is not a terminal.
    drawn: Option<Instant>,
    began: Instant,
}

impl Progress {
    /// Creates a bar that counts in units of `what`.
    pub(crate) fn new(style: Style, what: &'static str) -> Progress {
        let began = Instant::now();
        let drawn = io::stderr().is_terminal().then_some(began);
        Progress {
            style,
            what,
            drawn,
            began,
        }
    }

    /// Updates the bar to show `done` of `all`.
    pub(crate) fn at(&mut self, done: u64, all: u64) {
        let Some(last) = &mut self.drawn else { return };
        let now = Instant::now();
        if now.duration_since(*last) < EVERY || all == 0 {
            return;
        }
        *last = now;
        let share = (done as f64 / all as f64).clamp(0.0, 1.0);
        let full = (share * CELLS as f64) as usize;
        let bar = self.style.glyph("━", "=").repeat(full);
        let rest = self.style.glyph("━", "-").repeat(CELLS - full);
        let rate = done as f64 / now.duration_since(self.began).as_secs_f64();
        let (bar, rest) = (
            self.style.paint(Paint::Good, bar),
            self.style.paint(Paint::Faint, rest),
        );
        let _ = write!(
            io::stderr(),
            "\r{bar}{rest} {done}/{all} {}, {rate:.0}/s\x1b[K",
            self.what
        );
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.drawn.is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
