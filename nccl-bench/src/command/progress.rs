//! A progress bar on stderr, if it is a terminal.

use std::io::{self, IsTerminal, Write};

use crate::measure::Row;

const CELLS: usize = 30;

/// A bar that is removed when it is dropped.
pub(super) struct Progress {
    shown: bool,
    done: usize,
    all: usize,
}

impl Progress {
    pub(super) fn new(all: usize, wanted: bool) -> Progress {
        let shown = wanted && io::stderr().is_terminal();
        let progress = Progress { shown, done: 0, all };
        progress.draw("");
        progress
    }

    /// Counts one more timing.
    pub(super) fn seen(&mut self, row: &Row) {
        self.done += 1;
        let timing = row.in_place.as_ref().or(row.out_of_place.as_ref());
        let rate = timing.map_or(String::new(), |timing| format!(", {:.2} GB/s", timing.bus_bw));
        self.draw(&format!(" {} bytes{rate}", row.size));
    }

    /// Removes the bar until the next update, for other output.
    pub(super) fn clear(&self) {
        if self.shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }

    fn draw(&self, last: &str) {
        if self.shown {
            let full = CELLS * self.done / self.all.max(1);
            let (bar, rest) = ("=".repeat(full), "-".repeat(CELLS - full.min(CELLS)));
            // If stderr is closed, the bar is not shown.
            let _ = write!(
                io::stderr(),
                "\r{bar}{rest} {}/{}{last}\x1b[K",
                self.done,
                self.all
            );
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
