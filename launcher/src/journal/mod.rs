//! Reads a journal, which is a stream of lines of bounded length with one entry each. Errors name the file, line and
//! column. The segments of one journal are read in sequence.

mod raw;

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use paceline_health::codec::line::{self, LineError, MAX_LINE_BYTES};
use paceline_health::event::{Event, Signal};
use paceline_health::text::humanize::count;
use paceline_health::{Detector, Entry, Policy};
use paceline_sidecar::aggregator::journal::segments;
use paceline_sidecar::aggregator::journal::snapshot::{self, OfDetector};

use crate::output::Style;
use crate::output::progress::Progress;
use raw::{Raw, read_line};

/// Name of the journal in a run directory.
pub(crate) const FILE: &str = "journal.ndjson";
/// Unit of the progress bar.
const MEGABYTE: u64 = 1_000_000;

/// Why a journal cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JournalError {
    /// The file cannot be read.
    #[error("{}: {problem}", path.display())]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The system's error. It is not a `source`, because the message already contains it and an error chain would
        /// print it twice.
        problem: io::Error,
    },
    /// A line is invalid.
    #[error("{}:{line}:{column}: {message}{hint}", path.display())]
    Line {
        /// The file's path.
        path: PathBuf,
        /// The line number, starting at 1.
        line: usize,
        /// The column, starting at 1, in bytes.
        column: usize,
        /// What is wrong with the line.
        message: String,
        /// A suggestion for the user.
        hint: &'static str,
    },
}

/// A journal that is read line by line. At most one line is in memory.
pub(crate) struct Journal<R = BufReader<File>> {
    path: PathBuf,
    reader: R,
    /// The remaining files of the journal, with their readers.
    later: VecDeque<(PathBuf, R)>,
    skip_broken: bool,
    insisted: Vec<(String, f64)>,
    /// True if the phases of steps are removed.
    hides_phases: bool,
    lines: usize,
    /// Number of unreadable lines that were skipped.
    pub(crate) broken: usize,
    /// True if the last line is incomplete, because its writer was interrupted.
    pub(crate) torn: bool,
    /// True if the end of the journal was reached.
    ended: bool,
    entries: u64,
    /// True if an entry has named the job.
    has_job: bool,
    /// Number of lines that were deleted to keep the journal within its size limit.
    thinned: u64,
    /// Number of bytes read, and the total size of all files when they were opened.
    bytes: (u64, u64),
    bar: Option<Progress>,
}

impl Journal {
    /// Opens `path` with its closed segments. If `path` is a directory, opens the journal in it.
    pub(crate) fn open(path: &Path, skip_broken: bool) -> Result<Journal, JournalError> {
        let path = file_of(path);
        again(|| {
            let files = segments::files(&path).unwrap_or_else(|_| vec![path.clone()]);
            Journal::of(files, skip_broken)
        })
    }

    /// Like [`Journal::open`], but starts from the newest usable snapshot and also returns the detector with the state
    /// in it. For callers that do not need every entry.
    pub(crate) fn resume(path: &Path, skip_broken: bool) -> Result<(Journal, Detector), JournalError> {
        let path = file_of(path);
        again(|| Journal::resume_now(&path, skip_broken))
    }

    fn resume_now(path: &Path, skip_broken: bool) -> Result<(Journal, Detector), JournalError> {
        let Some((number, _, OfDetector(detector))) = snapshot::newest(path) else {
            return Ok((
                Journal::open(path, skip_broken)?,
                Detector::new(Policy::default()),
            ));
        };
        let closed = segments::list(path).unwrap_or_default();
        let after = closed.into_iter().filter(|(closed, _)| *closed > number);
        let mut files: Vec<PathBuf> = after.map(|(_, path)| path).collect();
        if files.is_empty() || path.exists() {
            files.push(path.to_owned());
        }
        let mut journal = Journal::of(files, skip_broken)?;
        // Count the snapshot as the entries that it replaces.
        (journal.entries, journal.has_job) = (1, true);
        Ok((journal, detector))
    }

    fn of(files: Vec<PathBuf>, skip_broken: bool) -> Result<Journal, JournalError> {
        let mut all_bytes = 0;
        let open = |path: PathBuf| match File::open(&path) {
            Ok(file) => {
                all_bytes += file.metadata().map_or(0, |meta| meta.len());
                Ok((path, BufReader::with_capacity(1 << 16, file)))
            }
            Err(problem) => Err(JournalError::File { path, problem }),
        };
        let mut later = files
            .into_iter()
            .map(open)
            .collect::<Result<VecDeque<_>, JournalError>>()?;
        let Some((path, reader)) = later.pop_front() else {
            let problem = io::ErrorKind::NotFound.into();
            return Err(JournalError::File {
                path: FILE.into(),
                problem,
            });
        };
        let mut journal = Journal::new(path, reader, skip_broken);
        (journal.later, journal.bytes.1) = (later, all_bytes);
        Ok(journal)
    }
}

impl<R: BufRead> Journal<R> {
    /// Sets policy values from the command line, which override those in the journal.
    pub(crate) fn insisting_on(mut self, values: Vec<(String, f64)>) -> Journal<R> {
        self.insisted = values;
        self
    }

    /// Removes the phases that ranks reported.
    pub(crate) fn hiding_phases(mut self, hides: bool) -> Journal<R> {
        self.hides_phases = hides;
        self
    }

    /// Shows the progress of [`Journal::fold`].
    pub(crate) fn showing(mut self, style: Style) -> Journal<R> {
        self.bar = Some(Progress::new(style, "MB"));
        self
    }

    fn new(path: PathBuf, reader: R, skip_broken: bool) -> Journal<R> {
        Journal {
            path,
            reader,
            later: VecDeque::new(),
            skip_broken,
            insisted: Vec::new(),
            hides_phases: false,
            lines: 0,
            broken: 0,
            torn: false,
            ended: false,
            entries: 0,
            has_job: false,
            thinned: 0,
            bytes: (0, 0),
            bar: None,
        }
    }

    /// Returns the next entry, or `None` at the end of the journal.
    pub(crate) fn next(&mut self) -> Result<Option<Entry>, JournalError> {
        loop {
            let file_error = |problem| JournalError::File {
                path: self.path.clone(),
                problem,
            };
            let Some(raw) = read_line(&mut self.reader, &mut self.bytes.0).map_err(file_error)? else {
                if self.turn() {
                    continue;
                }
                self.ended = true;
                return Ok(None);
            };
            self.lines += 1;
            let (bytes, open) = match raw {
                Raw::Whole(bytes) => (bytes, false),
                Raw::Open(bytes) => (bytes, true),
                Raw::TooLong(bytes) => {
                    self.refuse(MAX_LINE_BYTES + 1, LineError::TooLong { bytes }.to_string())?;
                    continue;
                }
            };
            if bytes.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            match decode(&bytes) {
                Ok(entry) => {
                    self.entries += 1;
                    self.has_job |= matches!(entry.frame.event, Event::Job(_));
                    if let Event::Thinned(thinned) = &entry.frame.event
                        && thinned.here
                    {
                        let (telemetry, others) = thinned.lines();
                        self.thinned += telemetry + others;
                    }
                    return Ok(Some(entry));
                }
                // Skip the end of a closed segment that a power failure cut off.
                Err((_, _, false)) if open && self.turn() => self.broken += 1,
                Err((_, _, false)) if open => {
                    self.torn = true;
                    self.ended = true;
                    return Ok(None);
                }
                Err((column, message, _)) => self.refuse(column, message)?,
            }
        }
    }

    /// Continues with the next file. Returns false if there is none.
    fn turn(&mut self) -> bool {
        let Some((path, reader)) = self.later.pop_front() else {
            return false;
        };
        (self.path, self.reader, self.lines) = (path, reader, 0);
        true
    }

    /// Replaces the value with the one from the command line. The entry is kept, so that later entries keep their
    /// numbers in the evidence.
    fn insist(&self, entry: &mut Entry) {
        if let Event::Policy(change) = &mut entry.frame.event
            && let Some((_, value)) = self.insisted.iter().rev().find(|(key, _)| *key == *change.key)
        {
            change.value = *value;
        }
    }

    fn hide(&self, entry: &mut Entry) {
        if let Event::Step(step) = &mut entry.frame.event
            && self.hides_phases
        {
            (step.phases, step.signal) = (None, Signal::S0);
        }
    }

    fn refuse(&mut self, column: usize, message: String) -> Result<(), JournalError> {
        if self.skip_broken {
            self.broken += 1;
            return Ok(());
        }
        let hint = "; --skip-broken skips such lines";
        Err(JournalError::Line {
            path: self.path.clone(),
            line: self.lines,
            column,
            message,
            hint,
        })
    }

    /// Returns warnings about skipped lines and, if the end was reached, about missing data.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut said = Vec::new();
        let path = self.path.display();
        if self.torn {
            said.push(format!(
                "{path}:{}: the last line is incomplete and is skipped",
                self.lines
            ));
        }
        if self.broken > 0 {
            let lines = count(self.broken as u64, "broken line");
            said.push(format!("{path}: {lines} skipped"));
        }
        if self.thinned > 0 {
            let lines = count(self.thinned, "line");
            said.push(format!(
                "{path}: {lines} were deleted earlier to keep its size limit: their data is missing"
            ));
        }
        // Warn about an empty journal, because absence of data must never look like health.
        if self.ended && self.entries == 0 {
            said.push(format!("{path}: has no entry: nothing is known about its job"));
        } else if self.ended && !self.has_job {
            said.push(format!(
                "{path}: no entry names the job: the beginning is missing"
            ));
        }
        said
    }

    /// Feeds the rest of the journal to a new detector. Calls `each` after every entry.
    pub(crate) fn fold<E: From<JournalError>>(
        &mut self,
        policy: Policy,
        each: impl FnMut(&Entry, &mut Detector) -> Result<(), E>,
    ) -> Result<Detector, E> {
        self.fold_on(Detector::new(policy), each)
    }

    /// Like [`Journal::fold`], but continues with a detector that has the state before the rest of the journal.
    pub(crate) fn fold_on<E: From<JournalError>>(
        &mut self,
        mut detector: Detector,
        mut each: impl FnMut(&Entry, &mut Detector) -> Result<(), E>,
    ) -> Result<Detector, E> {
        // Take the bar out of `self`, so that it is erased before anything else is printed.
        let mut bar = self.bar.take();
        while let Some(mut entry) = self.next()? {
            if let Some(bar) = &mut bar {
                bar.at(self.bytes.0 / MEGABYTE, self.bytes.1 / MEGABYTE);
            }
            self.insist(&mut entry);
            self.hide(&mut entry);
            detector.read(&entry);
            each(&entry, &mut detector)?;
        }
        Ok(detector)
    }
}

/// Retries `open`, because a running aggregator may close or remove a segment between listing and opening the files.
fn again<T>(mut open: impl FnMut() -> Result<T, JournalError>) -> Result<T, JournalError> {
    for _ in 0..4 {
        match open() {
            Err(JournalError::File { problem, .. }) if problem.kind() == io::ErrorKind::NotFound => {}
            done => return done,
        }
    }
    open()
}

fn file_of(path: &Path) -> PathBuf {
    if path.is_dir() {
        path.join(FILE)
    } else {
        path.to_owned()
    }
}

/// Decodes an entry. On failure, returns the column, the reason, and true if another version of Paceline wrote the
/// line.
fn decode(bytes: &[u8]) -> Result<Entry, (usize, String, bool)> {
    let text = std::str::from_utf8(bytes)
        .map_err(|problem| (problem.valid_up_to() + 1, "not UTF-8".to_owned(), false))?;
    line::decode(text).map_err(|problem| match problem {
        LineError::Malformed { column, message } => (column, message, false),
        // Return the position of the frame's version.
        LineError::FutureVersion { .. } => (
            text.find("\"v\":").map_or(1, |at| at + 5),
            problem.to_string(),
            true,
        ),
        LineError::Damaged { .. } => (1, problem.to_string(), false),
        LineError::TooLong { .. } => (MAX_LINE_BYTES + 1, problem.to_string(), false),
    })
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
