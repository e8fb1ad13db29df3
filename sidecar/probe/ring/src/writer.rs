//! The trainer's side of the ring. A write reserves a slot, fills it and publishes it; if the ring is full, it drops
//! the record and counts that.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Relaxed, Release};

use crate::layout::*;
use crate::map::{self, Map, monotonic_ns};
use crate::protocol::{self, Gate};
use crate::record::{PhaseWord, Record};

/// Why a ring could not be created. The trainer continues without one.
#[derive(Debug)]
pub enum CreateError {
    /// The capacity is not a power of two, or too small to hold the spare slots, or too large.
    Capacity(u32),
    /// The file cannot be created.
    Io(PathBuf, io::Error),
}

impl std::fmt::Display for CreateError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CreateError::Capacity(slots) => {
                write!(
                    f,
                    "a ring of {slots} slots: must be a power of two, 128 to {MAX_CAPACITY}"
                )
            }
            CreateError::Io(path, error) => write!(f, "{}: {error}", path.display()),
        }
    }
}

impl std::error::Error for CreateError {}

/// The result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrote {
    /// The record is in the ring.
    Published,
    /// The ring was full. The record was dropped and counted.
    Dropped,
    /// Nothing was written, because the kill switch is set or this is a forked child of the ring's owner.
    Off,
}

/// The writing end of a ring. Any number of threads may write through it, and none ever waits.
#[derive(Debug)]
pub struct Writer {
    map: Map,
    /// Nonzero only in the process that created the ring. A forked child reads zero and does not write.
    owner: Map,
    mask: u64,
    path: PathBuf,
}

impl Writer {
    /// Creates `<dir>/<pid>.ring` with the ordinary capacity.
    ///
    /// # Errors
    /// Returns [`CreateError`] if the ring cannot be created. No file is left behind then.
    pub fn create(dir: &Path) -> Result<Writer, CreateError> {
        Writer::create_named(dir, &format!("{}.ring", std::process::id()), CAPACITY)
    }

    /// Creates a ring of `capacity` slots under `dir`. The plugin's ring is called `<pid>-nccl.ring`.
    ///
    /// # Errors
    /// Returns [`CreateError`] if the ring cannot be created. No file is left behind then.
    pub fn create_named(dir: &Path, name: &str, capacity: u32) -> Result<Writer, CreateError> {
        if !capacity.is_power_of_two() || !(128..=MAX_CAPACITY).contains(&capacity) {
            return Err(CreateError::Capacity(capacity));
        }
        let path = dir.join(name);
        let draft = dir.join(format!(".{name}.{}", std::process::id()));
        let made = Writer::fill_and_rename(&draft, &path, capacity);
        made.map_err(|error| {
            let _ = fs::remove_file(&draft);
            CreateError::Io(path, error)
        })
    }

    /// Fills the header and then renames the file, so that a reader never sees an incomplete header.
    fn fill_and_rename(draft: &Path, path: &Path, capacity: u32) -> io::Result<Writer> {
        let len = HEADER_BYTES + capacity as usize * SLOT_BYTES;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(draft)?;
        match map::allocate(file.as_raw_fd(), len) {
            0 => {}
            error => return Err(io::Error::from_raw_os_error(error)),
        }
        let map = Map::shared(&file, len)?;
        map.u64(AT_MAGIC).store(u64::from_le_bytes(MAGIC), Relaxed);
        let once = [
            (AT_VERSION, VERSION),
            (AT_HEADER_BYTES, HEADER_BYTES as u32),
            (AT_SLOT_BYTES, SLOT_BYTES as u32),
            (AT_CAPACITY, capacity),
            (AT_PID, std::process::id()),
            (AT_UID, file.metadata()?.uid()),
        ];
        for (at, value) in once {
            map.u32(at).store(value.to_le(), Release);
        }
        let owner = Map::wiped_on_fork()?;
        owner.u64(0).store(1, Relaxed);
        fs::rename(draft, path)?;
        Ok(Writer {
            map,
            owner,
            mask: u64::from(capacity) - 1,
            path: path.to_owned(),
        })
    }

    /// Returns the path of the ring.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes one record. This is wait-free: it takes one check, one atomic add and eight stores.
    pub fn write(&self, record: &Record) -> Wrote {
        if self.is_off() {
            return Wrote::Off;
        }
        let gate = Gate {
            head: self.map.u64(AT_HEAD),
            tail: self.map.u64(AT_TAIL),
            dropped: self.map.u64(AT_DROPPED),
            room: self.mask + 1 - SPARE_SLOTS,
        };
        let Some(index) = gate.reserve() else {
            return Wrote::Dropped;
        };
        let at = HEADER_BYTES + (index & self.mask) as usize * SLOT_BYTES;
        protocol::publish(|i| self.map.u64(at + i * 8), index, record.encode());
        Wrote::Published
    }

    /// Publishes the trainer's current step and phase. Call it before anything that can block.
    pub fn progress(&self, step: u64, phase: PhaseWord) {
        if self.is_off() {
            return;
        }
        self.map.u64(AT_PROGRESS_SINCE).store(monotonic_ns(), Relaxed);
        self.map
            .u64(AT_PROGRESS)
            .store((step << 8) | phase as u64, Release);
    }

    /// Returns the number of records dropped so far because the ring was full.
    pub fn dropped(&self) -> u64 {
        self.map.u64(AT_DROPPED).load(Relaxed)
    }

    fn is_off(&self) -> bool {
        self.owner.u64(0).load(Relaxed) == 0 || self.map.u32(AT_CONTROL).load(Relaxed) & CONTROL_STOP != 0
    }

    /// Reserves a slot and never fills it, like a writer killed between the two.
    #[doc(hidden)]
    pub fn reserve_and_die(&self) {
        self.map.u64(AT_HEAD).fetch_add(1, Relaxed);
    }
}
