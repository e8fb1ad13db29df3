//! Who writes in a run directory. `flock` says so on one host; a shared file system may not carry it to another one, so a
//! file says it too: host, process and boot of the owner, and a count that grows every two seconds. Clocks of two hosts are
//! never compared: who finds another host's file watches whether it changes, and takes over when it does not.

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

/// Its name in a run directory.
const FILE: &str = "journal.owner";
/// A mark is shorter, bytes.
const MAX_BYTES: u64 = 16 << 10;

/// How fast an owner's count grows, and how long it is waited for.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The count grows this often.
    pub beat: Duration,
    /// An owner whose count stands for this long is gone.
    pub patience: Duration,
}

/// Three beats and more may be held up by a file system that is busy.
pub const PACE: Pace = Pace {
    beat: Duration::from_secs(2),
    patience: Duration::from_secs(7),
};

/// What the file says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// The owner's host.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// The boot of its host, where the kernel says.
    pub boot_id: Option<String>,
    /// Tells two owners of one process apart.
    pub chance: u64,
    /// Grows while it lives.
    pub beat: u64,
}

impl Mark {
    /// This process.
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

    /// For people.
    pub fn name(&self) -> String {
        format!("process {} of host {}", self.pid, self.host)
    }

    /// Whether a lock that this host gives would tell of it. Two containers of one machine may share a boot and no lock.
    fn is_of_this_host(&self) -> bool {
        self.boot_id.is_some() && self.boot_id == host::boot_id() && self.host == host::hostname()
    }

    fn is(&self, other: &Mark) -> bool {
        (self.chance, self.pid, &self.host) == (other.chance, other.pid, &other.host)
    }
}

/// The right to write in a directory, for as long as it is kept.
#[derive(Debug)]
pub struct Owner {
    path: PathBuf,
    mark: Mark,
    superseded: Arc<AtomicBool>,
    /// Dropped, it ends the thread.
    stop: Option<SyncSender<()>>,
    beats: Option<thread::JoinHandle<()>>,
}

/// Why it cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum OwnerError {
    /// Somebody has it.
    #[error("{}", .0.name())]
    Held(Mark),
    /// The file cannot be written.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Who holds `dir`, if a file says so.
pub fn holder(dir: &Path) -> Option<Mark> {
    serde_json::from_str(&read_plain(&dir.join(FILE), MAX_BYTES).ok()?).ok()
}

/// Whether somebody writes in `dir` now: the mark is as young as that of one who lives.
pub fn is_held(dir: &Path) -> bool {
    let modified = fs::metadata(dir.join(FILE)).and_then(|file| file.modified());
    // One of the future is of a clock that is ahead.
    modified.is_ok_and(|at| at.elapsed().map_or(true, |age| age <= PACE.patience))
}

impl Owner {
    /// Takes `dir`. `locked`: this host's lock on it is ours, so that a file of this host is of nobody who lives.
    ///
    /// # Errors
    /// [`OwnerError`]; it takes [`Pace::patience`] to find out whether a file of another host is anybody's.
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
                // Who else waited has written by now; the last one has it.
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
        // A thread of its own: a long journal that is read or a disk that hangs must not look like death.
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
                    // A full disk: the count stands, and somebody may take over, who cannot write either.
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

    /// Somebody took over, who thought that this one was gone: it must write no more.
    pub fn is_superseded(&self) -> bool {
        self.superseded.load(Ordering::Relaxed)
    }

    /// Leaves the directory to whoever comes.
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

/// Returns when the owner is gone.
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
            // It left in order.
            None => return Ok(()),
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "owner_tests.rs"]
mod tests;
