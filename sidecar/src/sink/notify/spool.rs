//! Undelivered parcels for a receiver. There is one file per parcel, and the oldest is sent first.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use super::notice::Notice;
use crate::host::read_plain;
use crate::safe_file;
use crate::sink::write_whole;
use crate::warn;

/// Maximum number of waiting parcels. Beyond it, the oldest is dropped and counted.
const MOST: usize = 1000;
/// Largest file that is read.
const MOST_BYTES: u64 = 16 << 20;
/// Directory for permanently rejected parcels.
const REFUSED: &str = "refused";

/// Notices that are sent together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parcel {
    /// When the parcel was made, milliseconds since 1970.
    pub unix_ms: u64,
    /// Its notices.
    pub notices: Vec<Notice>,
}

/// The directory of one receiver. Clones share it.
#[derive(Clone, Debug)]
pub struct Spool {
    dir: PathBuf,
    next: Arc<AtomicU64>,
}

impl Spool {
    /// Opens the spool. Creates it if it is missing.
    ///
    /// # Errors
    /// If it cannot be created or read.
    pub fn open(dir: &Path) -> io::Result<Spool> {
        safe_file::make_dir(dir)?;
        let spool = Spool::of(dir);
        let last = spool.list()?.last().map_or(0, |(number, _)| *number);
        spool.next.store(last + 1, Ordering::Relaxed);
        Ok(spool)
    }

    /// Creates a handle for inspection only. The directory need not exist.
    pub fn of(dir: &Path) -> Spool {
        Spool {
            dir: dir.to_owned(),
            next: Arc::default(),
        }
    }

    /// Returns the spool's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Appends a parcel.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn put(&self, parcel: &Parcel) -> io::Result<()> {
        let waiting = self.list()?;
        for (_, path) in waiting.iter().take((waiting.len() + 1).saturating_sub(MOST)) {
            warn::once(
                "notify full",
                format_args!("{}: full: the oldest notices are dropped", self.dir.display()),
            );
            fs::remove_file(path)?;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let bytes = serde_json::to_vec(parcel)?;
        write_whole(&self.dir.join(format!("{number:016}.json")), &bytes)
    }

    /// Returns the files with their numbers, oldest first.
    pub fn list(&self) -> io::Result<Vec<(u64, PathBuf)>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            let number = path
                .file_name()
                .and_then(|name| name.to_str()?.strip_suffix(".json")?.parse().ok());
            found.extend(number.map(|number| (number, path)));
        }
        found.sort();
        Ok(found)
    }

    /// Returns true if no parcel waits.
    pub fn is_empty(&self) -> bool {
        self.list().is_ok_and(|list| list.is_empty())
    }

    /// Reads a parcel.
    ///
    /// # Errors
    /// If it cannot be read, or is not a parcel.
    pub fn read(path: &Path) -> io::Result<Parcel> {
        // A longer file is truncated, which makes it invalid.
        Ok(serde_json::from_str(&read_plain(path, MOST_BYTES)?)?)
    }

    /// Removes a delivered parcel.
    pub fn delivered(path: &Path) {
        // If the removal fails, the parcel is sent again. Receivers recognize its key.
        let _ = fs::remove_file(path);
    }

    /// Moves a permanently rejected parcel aside, for inspection.
    pub fn refused(&self, path: &Path) {
        let aside = self.dir.join(REFUSED);
        let moved = safe_file::make_dir(&aside)
            .and_then(|aside| fs::rename(path, aside.join(path.file_name().unwrap_or_default())));
        if moved.is_err() {
            let _ = fs::remove_file(path);
        }
    }
}
