//! The owner of a run directory. `flock` protects the directory on one host, but maybe not across hosts on a shared
//! file system. A file therefore also names the owner's host, process and boot, with a counter that increases every two
//! seconds. Clocks of two hosts are never compared. A process takes over another host's directory when the file stops
//! changing.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::host::{self, read_plain};
use crate::sink::write_whole;
use crate::warn;

/// The file's name in a run directory.
const FILE: &str = "journal.owner";
/// Maximum size of the owner file, bytes.
const MAX_BYTES: u64 = 16 << 10;

/// The interval at which an owner increases its counter, and the timeout of an owner.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Interval of the counter.
    pub beat: Duration,
    /// An owner whose counter is unchanged for this long is considered dead.
    pub patience: Duration,
}

/// The normal timing. A busy file system may delay three beats or more.
pub const PACE: Pace = Pace {
    beat: Duration::from_secs(2),
    patience: Duration::from_secs(7),
};

/// The contents of the owner file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// The owner's host.
    pub host: String,
    /// The owner's process ID.
    pub pid: u32,
    /// Boot ID of its host, if known.
    pub boot_id: Option<String>,
    /// A random number that distinguishes two owners in one process.
    pub chance: u64,
    /// A counter that increases while the owner is alive.
    pub beat: u64,
}

impl Mark {
    /// Creates the mark of this process.
    pub fn own() -> Mark {
        use std::hash::{BuildHasher, RandomState};
        Mark {
            host: host::hostname(),
            pid: std::process::id(),
            boot_id: host::boot_id(),
            chance: RandomState::new().hash_one(host::incarnation()),
            beat: 0,
        }
    }

    /// Returns a readable name of the owner.
    pub fn name(&self) -> String {
        format!("process {} of host {}", self.pid, self.host)
    }

    /// Returns true if the owner is on this host, where its lock would be visible. The host name is compared too,
    /// because two containers of one machine may share a boot but no locks.
    fn is_of_this_host(&self) -> bool {
        self.boot_id.is_some() && self.boot_id == host::boot_id() && self.host == host::hostname()
    }

    fn is(&self, other: &Mark) -> bool {
        (self.chance, self.pid, &self.host) == (other.chance, other.pid, &other.host)
    }
}

/// The right to write to a directory. It lasts until this value is dropped.
#[derive(Debug)]
pub struct Owner {
    path: PathBuf,
    mark: Mark,
    superseded: Arc<AtomicBool>,
    /// Ends the thread when dropped.
    stop: Option<SyncSender<()>>,
    beats: Option<thread::JoinHandle<()>>,
}

/// Why the ownership was not obtained.
#[derive(Debug, thiserror::Error)]
pub enum OwnerError {
    /// Another owner has it.
    #[error("{}", .0.name())]
    Held(Mark),
    /// The file cannot be written.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Returns the owner of `dir` according to its file.
pub fn holder(dir: &Path) -> Option<Mark> {
    serde_json::from_str(&read_plain(&dir.join(FILE), MAX_BYTES).ok()?).ok()
}

/// Returns true if a process writes to `dir` now, that is, if its mark is recent.
pub fn is_held(dir: &Path) -> bool {
    let modified = fs::metadata(dir.join(FILE)).and_then(|file| file.modified());
    // A time in the future comes from a clock that is ahead, so it counts as recent.
    modified.is_ok_and(|at| at.elapsed().map_or(true, |age| age <= PACE.patience))
}

impl Owner {
    /// Takes ownership of `dir`. If `locked` is true, we hold this host's lock on it, so the owner of a mark from this
    /// host is no longer alive.
    ///
    /// # Errors
    /// [`OwnerError`]. It takes [`Pace::patience`] to find out whether the owner of another host's mark is alive.
    pub fn take(dir: &Path, locked: bool, mark: Mark, pace: Pace) -> Result<Owner, OwnerError> {
        let path = dir.join(FILE);
        let text = serde_json::to_vec(&mark).unwrap_or_default();
        let fresh = File::options().create_new(true).write(true).open(&path);
        match fresh.and_then(|mut file| file.write_all(&text)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if let Some(known) = holder(dir)
                    && !(locked && known.is_of_this_host())
                {
                    wait_for(dir, &known, pace)?;
                }
                write_whole(&path, &text)?;
                // All other waiting processes have written their marks by now. The process that wrote last wins.
                if !locked {
                    thread::sleep(pace.beat / 4);
                }
                if let Some(other) = holder(dir).filter(|other| !other.is(&mark)) {
                    return Err(OwnerError::Held(other));
                }
            }
            Err(error) => return Err(error.into()),
        }
        Ok(Owner::beating(path, mark, pace))
    }

    fn beating(path: PathBuf, mark: Mark, pace: Pace) -> Owner {
        let superseded = Arc::new(AtomicBool::new(false));
        let (stop, stopped) = sync_channel::<()>(1);
        let (own, flag) = (path.clone(), superseded.clone());
        let mut now = mark.clone();
        // Use a separate thread, so that an owner that reads a long journal or waits for a hung disk does not look
        // dead.
        let beats = thread::Builder::new()
            .name("owner".into())
            .stack_size(64 << 10)
            .spawn(move || {
                while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(pace.beat) {
                    let dir = own.parent().unwrap_or(Path::new("."));
                    if let Some(other) = holder(dir).filter(|other| !other.is(&now)) {
                        let (dir, name) = (dir.display(), other.name());
                        warn::once(
                            "superseded",
                            format_args!("{dir}: taken over by {name}: this process stops writing here"),
                        );
                        return flag.store(true, Ordering::Relaxed);
                    }
                    now.beat += 1;
                    // On a full disk the counter stops, and another process may take over. That is harmless, because it
                    // cannot write either.
                    let _ = write_whole(&own, &serde_json::to_vec(&now).unwrap_or_default());
                }
            });
        Owner {
            path,
            mark,
            superseded,
            stop: Some(stop),
            beats: beats.ok(),
        }
    }

    /// Returns true if another process took over because this one seemed dead. This process must not write any more.
    pub fn is_superseded(&self) -> bool {
        self.superseded.load(Ordering::Relaxed)
    }

    /// Releases the directory.
    pub fn leave(&mut self) {
        self.stop = None;
        if let Some(beats) = self.beats.take() {
            let _ = beats.join();
        }
        let dir = self.path.parent().unwrap_or(Path::new("."));
        if holder(dir).is_some_and(|known| known.is(&self.mark)) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Waits until the owner is gone, or returns an error if it is alive.
fn wait_for(dir: &Path, known: &Mark, pace: Pace) -> Result<(), OwnerError> {
    warn::once(
        "owner",
        format_args!(
            "{}: {} was writing here: waiting {:.0?} to see whether it is alive",
            dir.display(),
            known.name(),
            pace.patience
        ),
    );
    let looks = 20;
    for _ in 0..looks {
        thread::sleep(pace.patience / looks);
        match holder(dir) {
            Some(now) if now != *known => return Err(OwnerError::Held(now)),
            Some(_) => {}
            // The owner released the directory.
            None => return Ok(()),
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "owner_tests.rs"]
mod tests;
