//! The journal on disk: one JSON line per entry, appended and never changed.
//!
//! A full disk stops the journal and nothing else: what cannot be written is counted, a half-written line is cut off
//! again, and a small reserve is given up so that the report still fits.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use paceline_health::event::Event;
use paceline_health::id::JobId;
use paceline_health::line::MAX_LINE_BYTES;
use paceline_health::{Entry, line};
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};

pub use super::disk::{Disk, Medium, on_disk};
use super::lines::{Line, Lines};
use super::owner::{self, Mark, Owner, OwnerError, PACE};
use crate::warn;

/// Disk kept free for the report.
const RESERVE_BYTES: u64 = 256 << 10;
/// What has to last is put on the medium at most this often: all that came meanwhile together.
const SYNC_EVERY_NS: u64 = 200_000_000;
/// A disk that was full is tried again after this.
const RETRY_NS: u64 = 5_000_000_000;

/// Why there can be no journal in a directory.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Another aggregator writes there.
    #[error("{0}: {1} writes here")]
    Taken(PathBuf, String),
    /// It cannot be read or written.
    #[error("{0}: {1}")]
    Io(PathBuf, io::Error),
}

/// The journal of a run directory, open for appending.
#[derive(Debug)]
pub struct Journal {
    dir: PathBuf,
    /// Holds the directory's lock for as long as it is open.
    _lock: File,
    /// Tells other hosts; `None`: the disk does not take it.
    owner: Option<Owner>,
    file: Box<dyn Disk>,
    /// Bytes that are whole lines, or were given up.
    length: u64,
    /// Half a line stands behind them and cannot be cut off.
    half: bool,
    lost: u64,
    retry_at_ns: Option<u64>,
    /// Something that has to last is not on the medium, and when it may be put there.
    must_sync: bool,
    sync_at_ns: u64,
}

impl Journal {
    /// Opens the journal of `dir` for `job`. A journal of the same job that was not closed is continued: each of its
    /// entries goes to `replay` first. Any other one is moved aside.
    ///
    /// # Errors
    /// [`JournalError`]
    pub fn open(dir: &Path, job: &JobId, replay: impl FnMut(Entry)) -> Result<Journal, JournalError> {
        Journal::open_on(dir, job, replay, &mut on_disk)
    }

    /// As [`Journal::open`], on a disk of the caller's.
    ///
    /// # Errors
    /// [`JournalError`]
    pub fn open_on(
        dir: &Path,
        job: &JobId,
        replay: impl FnMut(Entry),
        medium: &mut Medium<'_>,
    ) -> Result<Journal, JournalError> {
        let failed = |error| JournalError::Io(dir.to_owned(), error);
        fs::create_dir_all(dir).map_err(failed)?;
        let (lock, owner) = occupy(dir)?;
        let path = dir.join("journal.ndjson");
        if path.exists() && !continues(&path, job).map_err(failed)? {
            let aside = free_name(dir);
            warn::once(
                "journal aside",
                format_args!("older journal moved to {}", aside.display()),
            );
            fs::rename(&path, &aside).map_err(failed)?;
            // Time begins anew with it.
            let _ = fs::remove_file(dir.join("journal.origin"));
        }
        let file = File::options().create(true).append(true).read(true).open(&path);
        let mut file = file.map_err(|error| JournalError::Io(path.clone(), error))?;
        let length = read_back(dir, &mut file, replay).map_err(|error| JournalError::Io(path, error))?;
        let journal = Journal {
            dir: dir.to_owned(),
            _lock: lock,
            owner,
            file: medium(file),
            length,
            half: false,
            lost: 0,
            retry_at_ns: None,
            must_sync: false,
            sync_at_ns: 0,
        };
        // A disk that is full from the start shows at the first append.
        let _ = journal.make_reserve();
        Ok(journal)
    }

    /// Appends entries, all or none. What cannot be written is counted as lost: the job goes on.
    pub fn append(&mut self, entries: &[Entry], now_ns: u64) {
        let count = entries.len() as u64;
        let superseded = self.owner.as_ref().is_some_and(Owner::is_superseded);
        if superseded || self.retry_at_ns.is_some_and(|at| now_ns < at) {
            self.lost += count;
            return;
        }
        let mut bytes = Vec::with_capacity(entries.len() * 320);
        for entry in entries {
            bytes.extend_from_slice(line::encode_sealed(entry).as_bytes());
            bytes.push(b'\n');
        }
        // After a failure the reserve comes first: a journal that eats it would leave no room for the report.
        let ready = if self.retry_at_ns.is_some() {
            self.make_reserve()
        } else {
            Ok(())
        };
        match ready
            .and_then(|()| self.mend())
            .and_then(|()| self.file.append(&bytes))
        {
            Ok(()) => {
                self.length += bytes.len() as u64;
                self.retry_at_ns = None;
            }
            Err(error) => {
                self.lost += count;
                self.retry_at_ns = Some(now_ns + RETRY_NS);
                warn::once(
                    "journal write",
                    format_args!("journal in {}: {error}; the job goes on", self.dir.display()),
                );
                self.half = self.file.cut(self.length).is_err();
                let _ = fs::remove_file(self.reserve());
            }
        }
    }

    /// A half line that could not be cut off becomes a line of its own, which readers skip: what follows must not be
    /// part of it.
    fn mend(&mut self) -> io::Result<()> {
        if !self.half || self.file.cut(self.length).is_ok() {
            self.half = false;
            return Ok(());
        }
        self.file.append(b"\n")?;
        self.length = self.file.length()?;
        self.half = false;
        Ok(())
    }

    /// What was appended has to last: it is put on the medium at once, or soon with what else comes.
    pub fn commit(&mut self, now_ns: u64) {
        self.must_sync = true;
        self.commit_due(now_ns);
    }

    /// Puts on the medium what waits for that, if it is time.
    pub fn commit_due(&mut self, now_ns: u64) {
        if self.must_sync && now_ns >= self.sync_at_ns {
            self.must_sync = false;
            self.sync_at_ns = now_ns.saturating_add(SYNC_EVERY_NS);
            self.say(|file| file.sync_soon());
        }
    }

    /// When that is.
    pub fn commits_at(&self) -> Option<u64> {
        self.must_sync.then_some(self.sync_at_ns)
    }

    fn say(&mut self, mut sync: impl FnMut(&mut dyn Disk) -> io::Result<()>) {
        if let Err(error) = sync(self.file.as_mut()) {
            let dir = self.dir.display();
            warn::once("journal sync", format_args!("journal in {dir}: {error}"));
        }
    }

    /// Entries that could not be written.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Puts everything on the medium and gives the reserve back.
    pub fn close(&mut self) {
        self.say(|file| file.sync());
        if let Some(owner) = &mut self.owner {
            owner.leave();
        }
        let _ = fs::remove_file(self.reserve());
    }

    fn reserve(&self) -> PathBuf {
        self.dir.join(".reserve")
    }

    fn make_reserve(&self) -> io::Result<()> {
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(self.reserve())?;
        match fallocate(&file, FallocateFlags::empty(), 0, RESERVE_BYTES) {
            // Network file systems may not know how; then there is no reserve.
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
            Err(error) => {
                let _ = fs::remove_file(self.reserve());
                Err(error.into())
            }
        }
    }

    #[cfg(test)]
    fn with_disk(mut self, disk: impl Disk + 'static) -> Journal {
        self.file = Box::new(disk);
        self
    }
}

/// This host's lock on the directory, and the file that says so to others.
fn occupy(dir: &Path) -> Result<(File, Option<Owner>), JournalError> {
    let failed = |error| JournalError::Io(dir.to_owned(), error);
    let taken = |by: Option<Mark>| {
        let by = by.map_or_else(|| "another aggregator".to_owned(), |by| by.name());
        JournalError::Taken(dir.to_owned(), by)
    };
    let lock = File::open(dir).map_err(failed)?;
    let locked = match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => true,
        Err(rustix::io::Errno::WOULDBLOCK) => return Err(taken(owner::holder(dir))),
        // A file system without locks: the file is the only guard then.
        Err(error) => {
            warn::once("journal lock", format_args!("{}: {error}", dir.display()));
            false
        }
    };
    match Owner::take(dir, locked, Mark::own(), PACE) {
        Ok(owner) => Ok((lock, Some(owner))),
        Err(OwnerError::Held(by)) => Err(taken(Some(by))),
        // A disk that is full from the start is no reason to watch nothing.
        Err(OwnerError::Io(error)) => {
            warn::once("owner file", format_args!("{}: {error}", dir.display()));
            Ok((lock, None))
        }
    }
}

/// Whether the journal at `path` is this job's and still open: one that ended with nobody missing is history. The first
/// entry says which job it is, or that of a later start, when that one is damaged.
fn continues(path: &Path, job: &JobId) -> io::Result<bool> {
    let mut file = File::open(path)?;
    let mut is_first = true;
    let mut opened = None;
    for line in Lines::new(BufReader::new(&mut file)) {
        match line? {
            Line::Entry(entry) => match entry.frame.event {
                Event::Job(job) => {
                    opened = Some(job.job);
                    break;
                }
                _ if is_first => return Ok(false),
                _ => {}
            },
            // Nothing whole was ever written.
            Line::Torn { .. } if is_first => return Ok(true),
            Line::Broken { .. } | Line::Torn { .. } => {}
        }
        is_first = false;
    }
    match opened {
        Some(opened) if opened == *job => {}
        Some(_) => return Ok(false),
        None => return Ok(is_first),
    }
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(2 * MAX_LINE_BYTES as u64)))?;
    let mut tail = Vec::new();
    file.read_to_end(&mut tail)?;
    let last = tail
        .strip_suffix(b"\n")
        .and_then(|tail| tail.rsplit(|byte| *byte == b'\n').next());
    let last = last.and_then(|text| line::decode(std::str::from_utf8(text).ok()?).ok());
    let ended =
        last.is_some_and(|entry| matches!(&entry.frame.event, Event::End(end) if end.missing.is_empty()));
    Ok(!ended)
}

fn free_name(dir: &Path) -> PathBuf {
    let mut number = 1u32;
    loop {
        let path = dir.join(format!("journal.{number}.ndjson"));
        if !path.exists() {
            return path;
        }
        number += 1;
    }
}

/// Hands out every entry, cuts off a torn end (kept in journal.torn), and says how long the file is now.
fn read_back(dir: &Path, file: &mut File, mut replay: impl FnMut(Entry)) -> io::Result<u64> {
    let mut torn = None;
    let (mut broken, mut first) = (0u64, None);
    for line in Lines::new(BufReader::with_capacity(256 << 10, &mut *file)) {
        match line? {
            Line::Entry(entry) => replay(*entry),
            Line::Broken { number, error } => {
                broken += 1;
                first.get_or_insert((number, error));
            }
            Line::Torn { offset } => torn = Some(offset),
        }
    }
    if let Some((number, error)) = first {
        let dir = dir.display();
        warn::once(
            "journal line",
            format_args!("{dir}/journal.ndjson: {broken} lines skipped, the first is line {number}: {error}"),
        );
    }
    if let Some(offset) = torn {
        // A disk that is full keeps nothing of it; that is no reason to watch nothing.
        if let Err(error) = keep_torn(dir, file, offset) {
            warn::once("journal.torn", format_args!("{}: {error}", dir.display()));
        }
        file.set_len(offset)?;
    }
    Ok(file.metadata()?.len())
}

fn keep_torn(dir: &Path, file: &mut File, offset: u64) -> io::Result<()> {
    file.seek(SeekFrom::Start(offset))?;
    let mut kept = File::options()
        .create(true)
        .append(true)
        .open(dir.join("journal.torn"))?;
    io::copy(file, &mut kept)?;
    kept.write_all(b"\n")
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
