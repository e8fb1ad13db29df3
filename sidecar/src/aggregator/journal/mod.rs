//! The journal on disk: one JSON line per entry, appended and never changed. Segments of it are closed, each with a
//! snapshot behind it ([`segments`], [`snapshot`]).
//!
//! A full disk stops the journal and nothing else: what cannot be written is counted, a half-written line is cut off
//! again, and a small reserve is given up so that the report still fits.

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

/// Disk kept free for a report that is short.
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
    /// A segment is closed when it is so long.
    segment_bytes: u64,
    /// Disk that is kept free for the report.
    reserve_bytes: u64,
    /// The last segment that was closed; zero: none.
    segment: u32,
    /// Not before this is the next one closed.
    close_at_ns: u64,
    /// Put snapshots on the medium, and keep the journal within its bound then.
    keepers: Vec<JoinHandle<()>>,
    /// The last snapshot is on its way to the medium.
    is_keeping: Arc<AtomicBool>,
    room: Room,
    /// What was thinned.
    thinned: Receiver<Thinned>,
}

impl Journal {
    /// Opens the journal of `dir` for `job`. A journal of the same job that was not closed is continued: each of its
    /// entries goes to `replay` first. Any other one is moved aside.
    ///
    /// # Errors
    /// [`JournalError`]
    pub fn open(dir: &Path, job: &JobId, mut replay: impl FnMut(Entry)) -> Result<Journal, JournalError> {
        let node = NodeId::from("");
        Journal::open_on(dir, (job, &node), &mut replay, &mut on_disk, Limits::default())
    }

    /// As [`Journal::open`] by the aggregator of a node, on a disk of the caller's.
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
                    format_args!("journal in {}: {error}; the job continues", self.dir.display()),
                );
                self.half = self.file.cut(self.length).is_err();
                let _ = fs::remove_file(self.reserve());
                self.make_room();
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

    /// Whether the segment that is written is to be closed now: at its length `between` two steps, else an eighth later.
    pub fn is_full(&self, between: bool, now_ns: u64) -> bool {
        let more = if between { 0 } else { self.segment_bytes / 8 };
        self.length >= self.segment_bytes + more
            && now_ns >= self.close_at_ns
            && self.retry_at_ns.is_none()
            && !self.owner.as_ref().is_some_and(Owner::is_superseded)
            // A medium that has not taken the last snapshot gets no second one.
            && !self.is_keeping()
    }

    /// Whether a snapshot is being put on the medium.
    pub fn is_keeping(&self) -> bool {
        self.is_keeping.load(Ordering::Acquire)
    }

    /// Closes the segment that is written and begins the next. Whether it could be done.
    pub fn close_segment(&mut self, now_ns: u64) -> bool {
        let path = self.dir.join("journal.ndjson");
        // Whatever has been given its name meanwhile is neither lost nor in the way.
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

    /// Keeps a snapshot of what the journal came to when its last segment was closed, and takes out of older segments what
    /// is too much, without waiting for the medium.
    pub fn keep(&mut self, state: Vec<u8>) {
        let (path, number) = (self.dir.join("journal.ndjson"), self.segment);
        let (room, asker) = (self.room.clone(), thread::current().id());
        let is_keeping = Arc::clone(&self.is_keeping);
        // One that is longer than its segment is a sign of a small disk.
        let is_long = state.len() as u64 > self.segment_bytes;
        let write = [snapshot::write, snapshot::write_deflated][usize::from(is_long)];
        is_keeping.store(true, Ordering::Release);
        self.beside(move || {
            // A snapshot never knows more than the medium has of its journal.
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

    /// Takes out of older segments what is too much for the bound or the disk, where nobody waits for it.
    fn make_room(&mut self) {
        let (room, asker) = (self.room.clone(), thread::current().id());
        self.beside(move || room.keep_in_peace(asker));
    }

    fn beside(&mut self, work: impl FnOnce() + Send + 'static) {
        self.keepers.retain(|keeper| !keeper.is_finished());
        let keeper = self.file.run(Box::new(work));
        self.keepers.extend(keeper);
    }

    /// What was thinned since the last time that this was asked.
    pub fn thinned(&self) -> Vec<Thinned> {
        self.thinned.try_iter().collect()
    }

    /// Entries that could not be written.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// A report takes so many bytes: as much again is kept free for the last one, and some for what thins the journal.
    pub fn reserve_for(&mut self, report_bytes: u64) {
        let wanted = report_bytes.saturating_mul(2).next_multiple_of(RESERVE_BYTES);
        if wanted > self.reserve_bytes && self.retry_at_ns.is_none() {
            self.reserve_bytes = wanted;
            // A disk that is full shows at the next append.
            let _ = self.make_reserve();
        }
    }

    /// Puts everything on the medium and gives the reserve back.
    pub fn close(&mut self) {
        self.say(|file| file.sync());
        self.rest();
        if let Some(owner) = &mut self.owner {
            owner.leave();
        }
        let _ = fs::remove_file(self.reserve());
    }

    /// Nobody is at its files any more.
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
    /// Whoever opens it next finds it at rest.
    fn drop(&mut self) {
        self.rest();
    }
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
