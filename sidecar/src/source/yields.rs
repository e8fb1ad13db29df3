//! Checks whether a user's file contains the expected data, because a missing file or one with other lines must not
//! look like a job without steps.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use paceline_health::event::{Event, SourceState};

/// Grace period, because a file may be created late and begin with other lines.
const PATIENCE_NS: u64 = 10_000_000_000;
/// A file with fewer lines than this is not judged as long as more lines may follow.
const FEW: u64 = 20;

/// What the reading thread has read so far.
#[derive(Debug, Default)]
pub struct Read {
    is_there: AtomicBool,
    lines: AtomicU64,
    good: AtomicU64,
}

impl Read {
    /// Records that the file exists.
    pub fn found(&self) {
        self.is_there.store(true, Ordering::Relaxed);
    }

    /// Counts a line. `is_good` is set if it contained data.
    pub fn line(&self, is_good: bool) {
        self.lines.fetch_add(1, Ordering::Relaxed);
        self.good.fetch_add(u64::from(is_good), Ordering::Relaxed);
    }
}

/// The check of one file; see the module.
#[derive(Debug)]
pub struct Yields {
    source: &'static str,
    path: PathBuf,
    /// The end of the message: what lines should contain, and what to do if they do not.
    hint: String,
    read: Arc<Read>,
    since_ns: Option<u64>,
    is_over: bool,
    told: Option<String>,
}

impl Yields {
    /// Creates the check for `source`, which reads `path`. `hint` completes the sentence `none of its lines ...`.
    pub fn new(source: &'static str, path: PathBuf, hint: String) -> Yields {
        Yields {
            source,
            path,
            hint,
            read: Arc::default(),
            since_ns: None,
            is_over: false,
            told: None,
        }
    }

    /// Returns the counters for the reading thread.
    pub fn read(&self) -> Arc<Read> {
        Arc::clone(&self.read)
    }

    /// Records that no more data will come, so that missing data is reported at once.
    pub fn over(&mut self) {
        self.is_over = true;
    }

    /// Makes the next call of `look` send the state again.
    pub fn forget(&mut self) {
        self.told = None;
    }

    /// Returns the state as an event if it changed.
    pub fn look(&mut self, now_ns: u64) -> Option<Event> {
        let since_ns = *self.since_ns.get_or_insert(now_ns);
        let is_late = self.is_over || now_ns.saturating_sub(since_ns) >= PATIENCE_NS;
        let lines = self.read.lines.load(Ordering::Relaxed);
        let path = self.path.display();
        let trouble = if self.read.good.load(Ordering::Relaxed) > 0 {
            String::new()
        } else if !is_late || (lines < FEW && !self.is_over && lines > 0) {
            return None;
        } else if lines > 0 {
            // Before the end, print a fixed number, because the real one would change with every call.
            let many = if self.is_over { lines } else { FEW };
            format!("{path}: none of the {many} lines read {}", self.hint)
        } else if self.read.is_there.load(Ordering::Relaxed) {
            format!("nothing was added to {path}")
        } else {
            format!("{path} is not there")
        };
        if self.told.as_deref().unwrap_or_default() == trouble {
            return None;
        }
        self.told = Some(trouble.clone());
        Some(Event::Source(SourceState {
            source: self.source.into(),
            trouble: trouble.into(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn told(yields: &mut Yields, now_s: u64) -> Option<String> {
        yields.look(now_s * SECOND).map(|event| match event {
            Event::Source(state) => state.trouble.to_string(),
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn what_is_missing_is_told_once_and_taken_back() {
        let mut yields = Yields::new("step-log", "log".into(), "tells of a step".into());
        assert_eq!(told(&mut yields, 5), None);
        assert_eq!(told(&mut yields, 15), Some("log is not there".into()));
        assert_eq!(told(&mut yields, 16), None);
        let read = yields.read();
        read.found();
        assert_eq!(told(&mut yields, 17), Some("nothing was added to log".into()));
        (0..FEW).for_each(|_| read.line(false));
        let none = "log: none of the 20 lines read tells of a step";
        assert_eq!(told(&mut yields, 18), Some(none.into()));
        yields.forget();
        assert!(told(&mut yields, 19).is_some());
        read.line(true);
        assert_eq!(told(&mut yields, 20), Some(String::new()));
        assert_eq!(told(&mut yields, 21), None);
    }

    #[test]
    fn a_short_job_is_told_at_its_end() {
        let mut yields = Yields::new("step-log", "log".into(), "tells of a step".into());
        yields.read().line(false);
        assert_eq!((told(&mut yields, 1), told(&mut yields, 12)), (None, None));
        yields.over();
        assert_eq!(
            told(&mut yields, 13),
            Some("log: none of the 1 lines read tells of a step".into())
        );
    }
}
