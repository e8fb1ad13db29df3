//! The journal on disk, with one JSON line per entry. It is append-only and split into segments. Each closed segment is
//! followed by a snapshot ([`segments`], [`snapshot`]).
//!
//! A full disk stops only the journal. Unwritten entries are counted, a half-written line is truncated, and a small
//! reserve is released so that the report still fits.

pub mod disk;
pub mod lines;
pub mod owner;
mod reopen;
pub mod room;
pub mod segments;
pub mod snapshot;
pub mod thin;
mod way;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::thread::{self, JoinHandle};

use paceline_health::Entry;
use paceline_health::codec::line;
use paceline_health::event::Thinned;
use paceline_health::id::{JobId, NodeId};

pub use self::disk::{Disk, Medium, on_disk};
use self::owner::Owner;
pub use self::reopen::Replay;
use self::reopen::{continues, lay_aside, occupy, read_back};
use self::room::Room;
use self::segments::Limits;
use crate::{safe_file, warn};

/// Disk space reserved for a short report.
const RESERVE_BYTES: u64 = 256 << 10;
/// Minimum interval between two syncs of durable entries. One sync covers all entries since the last one.
const SYNC_EVERY_NS: u64 = 200_000_000;
/// Delay before writing to a full disk is tried again.
const RETRY_NS: u64 = 5_000_000_000;

/// Why a journal cannot be opened in a directory.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Another aggregator writes to the directory.
    #[error("{0}: {1} writes here")]
    Taken(PathBuf, String),
    /// The directory cannot be read or written.
    #[error("{0}: {1}")]
    Io(PathBuf, io::Error),
}

/// The journal of a run directory, open for appending.
#[derive(Debug)]
pub struct Journal {
    dir: PathBuf,
    /// Holds the directory's lock for as long as it is open.
    _lock: File,
    /// The owner file, which protects the directory from other hosts. `None` if it cannot be written.
    owner: Option<Owner>,
    file: Box<dyn Disk>,
    /// The length of the file up to the last complete or abandoned line, bytes.
    length: u64,
    /// True if half a line follows at the end and cannot be truncated.
    half: bool,
    lost: u64,
    retry_at_ns: Option<u64>,
    /// True if a durable entry is not synced yet. `sync_at_ns` is when it may be synced.
    must_sync: bool,
    sync_at_ns: u64,
    /// Size at which a segment is closed.
    segment_bytes: u64,
    /// Disk space reserved for the report.
    reserve_bytes: u64,
    /// The number of the last closed segment, or zero if there is none.
    segment: u32,
    /// Earliest time to close the next segment.
    close_at_ns: u64,
    /// Threads that write snapshots to disk and then keep the journal within its limit.
    keepers: Vec<JoinHandle<()>>,
    /// True while the last snapshot is being written.
    is_keeping: Arc<AtomicBool>,
    room: Room,
    /// Receives records of thinning.
    thinned: Receiver<Thinned>,
}

impl Journal {
    /// Opens the journal of `dir` for `job`. A journal of the same job that was not closed is continued: `replay` first
    /// receives each of its entries. Any other journal is renamed.
    ///
    /// # Errors
    /// [`JournalError`]
    pub fn open(dir: &Path, job: &JobId, mut replay: impl FnMut(Entry)) -> Result<Journal, JournalError> {
        let node = NodeId::from("");
        Journal::open_on(dir, (job, &node), &mut replay, &mut on_disk, Limits::default())
    }

    /// Like [`Journal::open`], but for the aggregator of a node and on the caller's disk.
    ///
    /// # Errors
    /// [`JournalError`]
    pub fn open_on(
        dir: &Path,
        (job, node): (&JobId, &NodeId),
        replay: &mut dyn Replay,
        medium: &mut Medium<'_>,
        limits: Limits,
    ) -> Result<Journal, JournalError> {
        let failed = |error| JournalError::Io(dir.to_owned(), error);
        safe_file::make_dir(dir).map_err(failed)?;
        way::clear(dir);
        let (lock, owner) = occupy(dir)?;
        let path = dir.join("journal.ndjson");
        if !continues(&path, job).map_err(failed)? {
            lay_aside(dir, &path).map_err(failed)?;
        }
        segments::sweep(&path);
        let mut file = safe_file::append(&path).map_err(|error| JournalError::Io(path.clone(), error))?;
        let read = read_back(&path, job, &mut file, replay);
        let (length, restored) = read.map_err(|error| JournalError::Io(path.clone(), error))?;
        let segment = segments::list(&path)
            .map_err(failed)?
            .last()
            .map_or(0, |(number, _)| *number);
        let (room, thinned) = Room::new(&path, node.clone(), limits, restored);
        let segment_bytes = room.limits().map_err(failed)?.segment_bytes;
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
            segment_bytes,
            reserve_bytes: RESERVE_BYTES,
            segment,
            close_at_ns: 0,
            keepers: Vec::new(),
            is_keeping: Arc::default(),
            room,
            thinned,
        };
        // Ignore errors here. If the disk is full from the start, the first append fails and reports it.
        let _ = journal.make_reserve();
        Ok(journal)
    }

    /// Appends all entries or none. Entries that cannot be written are counted as lost, and the job continues.
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
        // After a failure, restore the reserve first. If the journal used that space, the report would not fit.
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
                    format_args!("journal in {}: {error}; the job continues", self.dir.display()),
                );
                self.half = self.file.cut(self.length).is_err();
                let _ = fs::remove_file(self.reserve());
                self.make_room();
            }
        }
    }

    /// Terminates half a line that could not be truncated, so that later lines do not become part of it. Readers skip
    /// the half.
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

    /// Makes the appended entries durable, either with a sync at once or with a sync that is shared with later entries.
    pub fn commit(&mut self, now_ns: u64) {
        self.must_sync = true;
        self.commit_due(now_ns);
    }

    /// Syncs pending entries if a sync is due.
    pub fn commit_due(&mut self, now_ns: u64) {
        if self.must_sync && now_ns >= self.sync_at_ns {
            self.must_sync = false;
            self.sync_at_ns = now_ns.saturating_add(SYNC_EVERY_NS);
            self.say(|file| file.sync_soon());
        }
    }

    /// Returns when the next sync is due, or `None` if no entry needs one.
    pub fn commits_at(&self) -> Option<u64> {
        self.must_sync.then_some(self.sync_at_ns)
    }

    fn say(&mut self, mut sync: impl FnMut(&mut dyn Disk) -> io::Result<()>) {
        if let Err(error) = sync(self.file.as_mut()) {
            let dir = self.dir.display();
            warn::once("journal sync", format_args!("journal in {dir}: {error}"));
        }
    }

    /// Returns true if the open segment should be closed now. `between` two steps it is closed at its full size, and
    /// otherwise when it is larger by an eighth.
    pub fn is_full(&self, between: bool, now_ns: u64) -> bool {
        let more = if between { 0 } else { self.segment_bytes / 8 };
        self.length >= self.segment_bytes + more
            && now_ns >= self.close_at_ns
            && self.retry_at_ns.is_none()
            && !self.owner.as_ref().is_some_and(Owner::is_superseded)
            // Do not start a second snapshot while the last one is still being written.
            && !self.is_keeping()
    }

    /// Returns true while a snapshot is being written.
    pub fn is_keeping(&self) -> bool {
        self.is_keeping.load(Ordering::Acquire)
    }

    /// Closes the open segment and starts the next. Returns true on success.
    pub fn close_segment(&mut self, now_ns: u64) -> bool {
        let path = self.dir.join("journal.ndjson");
        // Skip a number whose file name is already taken, so that no file is overwritten.
        let number = (self.segment.saturating_add(1)..)
            .find(|number| !segments::closed(&path, *number).exists())
            .unwrap_or(u32::MAX);
        let closed = segments::closed(&path, number);
        self.say(|file| file.sync_soon());
        let next = self
            .mend()
            .and_then(|()| fs::rename(&path, &closed))
            .and_then(|()| {
                let next = File::options()
                    .create_new(true)
                    .append(true)
                    .read(true)
                    .open(&path);
                next.inspect_err(|_| {
                    let _ = fs::rename(&closed, &path);
                })
            });
        match next {
            Ok(next) => {
                self.file = self.file.another(next);
                (self.length, self.segment) = (0, number);
                if let Ok(limits) = self.room.limits() {
                    self.segment_bytes = limits.segment_bytes;
                }
                true
            }
            Err(error) => {
                self.close_at_ns = now_ns.saturating_add(RETRY_NS);
                let dir = self.dir.display();
                warn::once("journal segment", format_args!("journal in {dir}: {error}"));
                false
            }
        }
    }

    /// Writes a snapshot of the state at the end of the last closed segment, then thins older segments as necessary.
    /// Does not wait for the disk.
    pub fn keep(&mut self, state: Vec<u8>) {
        let (path, number) = (self.dir.join("journal.ndjson"), self.segment);
        let (room, asker) = (self.room.clone(), thread::current().id());
        let is_keeping = Arc::clone(&self.is_keeping);
        // If a snapshot is larger than its segment, the disk is probably small, so compress it.
        let is_long = state.len() as u64 > self.segment_bytes;
        let write = [snapshot::write, snapshot::write_deflated][usize::from(is_long)];
        is_keeping.store(true, Ordering::Release);
        self.beside(move || {
            // Sync the closed segment first, because a snapshot must never be ahead of the journal on disk.
            let kept = File::open(segments::closed(&path, number))
                .and_then(|closed| closed.sync_data())
                .and_then(|()| snapshot::sync_dir(&path))
                .and_then(|()| write(&path, number, &state));
            match kept {
                Ok(()) => room.has_snapshot(number),
                Err(error) => {
                    let path = path.display();
                    warn::once("snapshot", format_args!("a snapshot of {path}: {error}"));
                }
            }
            drop(state);
            is_keeping.store(false, Ordering::Release);
            room.keep_in_peace(asker);
        });
    }

    /// Thins older segments in the background if they exceed the limit or the space on the disk.
    fn make_room(&mut self) {
        let (room, asker) = (self.room.clone(), thread::current().id());
        self.beside(move || room.keep_in_peace(asker));
    }

    fn beside(&mut self, work: impl FnOnce() + Send + 'static) {
        self.keepers.retain(|keeper| !keeper.is_finished());
        let keeper = self.file.run(Box::new(work));
        self.keepers.extend(keeper);
    }

    /// Returns the records of thinning since the last call.
    pub fn thinned(&self) -> Vec<Thinned> {
        self.thinned.try_iter().collect()
    }

    /// Returns the number of entries that could not be written.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Reserves twice the size of this report: space for the last report and for thinning the journal.
    pub fn reserve_for(&mut self, report_bytes: u64) {
        let wanted = report_bytes.saturating_mul(2).next_multiple_of(RESERVE_BYTES);
        if wanted > self.reserve_bytes && self.retry_at_ns.is_none() {
            self.reserve_bytes = wanted;
            // Ignore errors here. If the disk is full, the next append fails and reports it.
            let _ = self.make_reserve();
        }
    }

    /// Syncs everything and releases the reserve.
    pub fn close(&mut self) {
        self.say(|file| file.sync());
        self.rest();
        if let Some(owner) = &mut self.owner {
            owner.leave();
        }
        let _ = fs::remove_file(self.reserve());
    }

    /// Waits until no thread uses the journal's files.
    fn rest(&mut self) {
        self.room.stop();
        for keeper in self.keepers.drain(..) {
            let _ = keeper.join();
        }
    }

    fn reserve(&self) -> PathBuf {
        self.dir.join(".reserve")
    }

    fn make_reserve(&self) -> io::Result<()> {
        disk::reserve(&self.reserve(), self.reserve_bytes)
    }

    #[cfg(test)]
    fn with_disk(mut self, disk: impl Disk + 'static) -> Journal {
        self.file = Box::new(disk);
        self
    }
}

impl Drop for Journal {
    /// Waits for the threads, because none of them may change the files after the journal is opened again.
    fn drop(&mut self) {
        self.rest();
    }
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
