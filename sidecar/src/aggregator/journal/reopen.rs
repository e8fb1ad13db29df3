//! Handles an existing journal: decides whether to continue it, restores its state, and takes its lock.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use paceline_health::Entry;
use paceline_health::codec::line::{self, MAX_LINE_BYTES};
use paceline_health::event::Event;
use paceline_health::frame::AGGREGATOR;
use paceline_health::id::JobId;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::de::IgnoredAny;

use super::JournalError;
use super::lines::{Line, Lines};
use super::owner::{self, Mark, Owner, OwnerError, PACE};
use super::segments;
use super::snapshot::{self, Snapshot, Unfit};
use crate::{safe_file, warn};

/// Number of retries for a held lock, and the delay between them.
const LOOKS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(10);

/// Receives the contents of a journal.
pub trait Replay {
    /// Restores the state of a snapshot.
    ///
    /// # Errors
    /// If the state cannot be resumed from this snapshot. In that case all entries follow, from the first.
    fn restore(&mut self, snapshot: &Snapshot) -> Result<(), Unfit>;

    /// Takes the next entry.
    fn take(&mut self, entry: Entry);
}

/// A plain function receives all entries; snapshots are not used.
impl<F: FnMut(Entry)> Replay for F {
    fn restore(&mut self, _: &Snapshot) -> Result<(), Unfit> {
        Err(Unfit::Misfit)
    }

    fn take(&mut self, entry: Entry) {
        self(entry);
    }
}

/// Takes this host's lock on the directory, and writes the owner file for other hosts.
pub(super) fn occupy(dir: &Path) -> Result<(File, Option<Owner>), JournalError> {
    let failed = |error| JournalError::Io(dir.to_owned(), error);
    let taken = |by: Option<Mark>| {
        let by = by.map_or_else(|| "another aggregator".to_owned(), |by| by.name());
        JournalError::Taken(dir.to_owned(), by)
    };
    let lock = File::open(dir).map_err(failed)?;
    let locked = match patient_lock(&lock) {
        Ok(()) => true,
        Err(Errno::WOULDBLOCK) => return Err(taken(owner::holder(dir))),
        // The file system does not support locks, so the owner file is the only protection.
        Err(error) => {
            warn::once("journal lock", format_args!("{}: {error}", dir.display()));
            false
        }
    };
    match Owner::take(dir, locked, Mark::own(), PACE) {
        Ok(owner) => Ok((lock, Some(owner))),
        Err(OwnerError::Held(by)) => Err(taken(Some(by))),
        // A disk that is full from the start must not prevent monitoring.
        Err(OwnerError::Io(error)) => {
            warn::once("owner file", format_args!("{}: {error}", dir.display()));
            Ok((lock, None))
        }
    }
}

/// Takes the lock, with retries. A child process of an aggregator holds inherited descriptors until it calls exec, so
/// the lock of an aggregator that has just exited may still be held.
fn patient_lock(file: &File) -> Result<(), Errno> {
    for _ in 0..LOOKS {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => thread::sleep(PAUSE),
            known => return known,
        }
    }
    flock(file, FlockOperation::NonBlockingLockExclusive)
}

/// Returns true if the journal at `path` belongs to this job and is still open. A journal is closed if the job ended
/// with no node missing. The job is named in the first entry; if that is damaged, in the entry of a later start;
/// otherwise in the newest snapshot. A journal that does not exist yet counts as open.
pub(super) fn continues(path: &Path, job: &JobId) -> io::Result<bool> {
    let files: Vec<PathBuf> = segments::files(path)?
        .into_iter()
        .filter(|file| file.exists())
        .collect();
    let mut is_first = true;
    for file in &files {
        for line in Lines::new(BufReader::new(safe_file::open_own(file)?)) {
            match line? {
                Line::Entry(entry) => match entry.frame.event {
                    // Ignore this event unless the aggregator wrote it, because any node with the key can send one.
                    Event::Job(_) if entry.frame.agent != AGGREGATOR => {}
                    Event::Job(opened) if opened.job == *job => return Ok(!has_ended(&files)?),
                    Event::Job(_) => return Ok(false),
                    _ if is_first => return Ok(false),
                    _ => {}
                },
                // No complete line was ever written, so the journal counts as open.
                Line::Torn { .. } if is_first => return Ok(true),
                Line::Broken { .. } | Line::Torn { .. } => {}
            }
            is_first = false;
        }
    }
    // If the oldest part was removed, only snapshots may still name the job.
    let is_known = || snapshot::newest::<IgnoredAny>(path).is_some_and(|(_, header, _)| header.job == *job);
    Ok(is_first || (is_known() && !has_ended(&files)?))
}

/// Returns true if the last entry reports the job's end with no node missing.
fn has_ended(files: &[PathBuf]) -> io::Result<bool> {
    for path in files.iter().rev() {
        let mut file = safe_file::open_own(path)?;
        let length = file.metadata()?.len();
        if length == 0 {
            continue;
        }
        file.seek(SeekFrom::Start(length.saturating_sub(2 * MAX_LINE_BYTES as u64)))?;
        let mut tail = Vec::new();
        file.read_to_end(&mut tail)?;
        let last = tail
            .strip_suffix(b"\n")
            .and_then(|tail| tail.rsplit(|byte| *byte == b'\n').next());
        let last = last.and_then(|text| line::decode(std::str::from_utf8(text).ok()?).ok());
        return Ok(last.is_some_and(|entry| {
            entry.frame.agent == AGGREGATOR
                && matches!(&entry.frame.event, Event::End(end) if end.missing.is_empty())
        }));
    }
    Ok(false)
}

/// Renames the journal at `path` with all its files.
pub(super) fn lay_aside(dir: &Path, path: &Path) -> io::Result<()> {
    let aside = free_name(dir);
    warn::once(
        "journal aside",
        format_args!("older journal moved to {}", aside.display()),
    );
    snapshot::forget(path);
    segments::sweep(path);
    for (number, closed) in segments::list(path)? {
        fs::rename(closed, segments::closed(&aside, number))?;
    }
    if path.exists() {
        fs::rename(path, &aside)?;
    }
    // The new journal has a new time origin.
    let _ = fs::remove_file(dir.join("journal.origin"));
    Ok(())
}

fn free_name(dir: &Path) -> PathBuf {
    let mut number = 1u32;
    loop {
        let path = dir.join(format!("journal.{number}.ndjson"));
        if !path.exists() && segments::list(&path).is_ok_and(|closed| closed.is_empty()) {
            return path;
        }
        number += 1;
    }
}

/// Replays the newest usable snapshot and every entry after it, and truncates a torn end (kept in journal.torn).
/// Returns the length of `file`, the open segment, and the number of the segment before the snapshot (zero: none).
pub(super) fn read_back(
    path: &Path,
    job: &JobId,
    file: &mut File,
    replay: &mut dyn Replay,
) -> io::Result<(u64, u32)> {
    let closed = segments::list(path)?;
    let known = restore(path, job, &closed, replay);
    for (_, segment) in closed.iter().filter(|(number, _)| *number > known) {
        // A power failure may truncate a closed segment. Its torn last line is then treated like any damaged line.
        read(segment, &mut safe_file::open_own(segment)?, replay)?;
    }
    if let Some(offset) = read(path, file, replay)? {
        // The torn end cannot be saved on a full disk. That must not prevent monitoring.
        let dir = path.parent().unwrap_or(Path::new("."));
        if let Err(error) = keep_torn(dir, file, offset) {
            warn::once("journal.torn", format_args!("{}: {error}", dir.display()));
        }
        file.set_len(offset)?;
    }
    Ok((file.metadata()?.len(), known))
}

/// Replays every entry of one file. Returns the offset of a torn last line, if there is one.
fn read(path: &Path, file: &mut File, replay: &mut dyn Replay) -> io::Result<Option<u64>> {
    let mut torn = None;
    let (mut broken, mut first) = (0u64, None);
    for line in Lines::new(BufReader::with_capacity(256 << 10, &mut *file)) {
        match line? {
            Line::Entry(entry) => replay.take(*entry),
            Line::Broken { number, error } => {
                broken += 1;
                first.get_or_insert((number, error));
            }
            Line::Torn { offset } => torn = Some(offset),
        }
    }
    if let Some((number, error)) = first {
        let path = path.display();
        warn::once(
            "journal line",
            format_args!("{path}: {broken} lines skipped, the first is line {number}: {error}"),
        );
    }
    Ok(torn)
}

/// Restores the newest usable snapshot. Returns the number of the segment before it, or zero if there is none.
fn restore(path: &Path, job: &JobId, closed: &[(u32, PathBuf)], replay: &mut dyn Replay) -> u32 {
    for (number, file) in snapshot::list(path).unwrap_or_default().into_iter().rev() {
        let restored = Snapshot::read(&file).and_then(|snapshot| {
            let after = closed.iter().filter(|(other, _)| *other > number);
            let after = after.map(|(_, path)| path.as_path()).chain([path]);
            let next = after.filter_map(first_entry).next();
            let fits = snapshot.header.job == *job && next.is_none_or(|next| next > snapshot.header.n);
            if fits {
                replay.restore(&snapshot)
            } else {
                Err(Unfit::Misfit)
            }
        });
        match restored {
            Ok(()) => return number,
            Err(why) => {
                let file = file.display();
                warn::once(
                    "snapshot",
                    format_args!("{file}: {why}: ignored, the journal is read instead"),
                );
            }
        }
    }
    0
}

/// Returns the number of the first entry of a file.
fn first_entry(path: &Path) -> Option<u64> {
    let lines = Lines::new(BufReader::new(safe_file::open_own(path).ok()?));
    lines.flatten().find_map(|line| match line {
        Line::Entry(entry) => Some(entry.n),
        _ => None,
    })
}

fn keep_torn(dir: &Path, file: &mut File, offset: u64) -> io::Result<()> {
    file.seek(SeekFrom::Start(offset))?;
    let mut kept = safe_file::append(&dir.join("journal.torn"))?;
    io::copy(file, &mut kept)?;
    kept.write_all(b"\n")
}
