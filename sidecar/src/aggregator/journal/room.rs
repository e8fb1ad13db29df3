//! Keeps a journal's disk usage within its limit. The oldest closed segments lose their telemetry. If that is not
//! enough, they lose everything but the essential entries ([`thin`]).
//!
//! Entries after the older of the two snapshots that this aggregator wrote or resumed from are never removed, because
//! they must be folded when the journal is reopened.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use paceline_health::event::Thinned;
use paceline_health::id::NodeId;

use super::segments::{self, Limits};
use super::snapshot;
use super::thin::{self, Done, Hand, Rule};
use crate::warn;

/// Nice value of the thinning thread. It is not lower in priority because the journal grows meanwhile, so thinning must
/// finish even on a machine with all cores busy.
const LOW_PRIORITY: i32 = 5;

/// State between two calls.
#[derive(Debug, Default)]
struct Known {
    /// Segments that are followed by a snapshot known to be valid.
    good: Vec<u32>,
    /// The last segment up to which no segment contains telemetry any more.
    thinned: u32,
}

/// Keeps one journal within its limit. Clones share one journal.
#[derive(Clone, Debug)]
pub struct Room {
    journal: PathBuf,
    limits: Limits,
    hand: Hand,
    known: Arc<Mutex<Known>>,
    /// Only one clone works on the journal at a time.
    turn: Arc<Mutex<()>>,
    told: Sender<Thinned>,
}

impl Room {
    /// Creates it for the journal at `journal`, which was resumed from the snapshot after segment `restored` (zero if
    /// there was none). The receiver gets records of what is removed.
    pub fn new(journal: &Path, node: NodeId, limits: Limits, restored: u32) -> (Room, Receiver<Thinned>) {
        let (told, hears) = channel();
        let good = if restored > 0 { vec![restored] } else { Vec::new() };
        let hand = Hand {
            node,
            bound_bytes: limits.bound_bytes,
            stop: Arc::new(AtomicBool::new(false)),
        };
        let mut thinned = 0;
        // Report records of earlier thinning again, because a killed aggregator may not have reported them.
        for (number, path) in segments::list(journal).unwrap_or_default() {
            let Some(record) = thin::told_in(&path) else { break };
            thinned = number;
            let _ = told.send(record);
        }
        let room = Room {
            journal: journal.to_owned(),
            limits,
            hand,
            known: Arc::new(Mutex::new(Known { good, thinned })),
            turn: Arc::default(),
            told,
        };
        (room, hears)
    }

    /// Records that the snapshot after this segment is on disk.
    pub fn has_snapshot(&self, number: u32) {
        self.known().good.push(number);
    }

    /// Stops thinning. The files remain as they are.
    pub fn stop(&self) {
        self.hand.stop.store(true, Ordering::Relaxed);
    }

    /// Like [`Room::keep`], but errors only cause a warning, and it returns at once if another thread is thinning. A
    /// thread other than `asker` lowers its own priority permanently.
    pub fn keep_in_peace(&self, asker: ThreadId) {
        let Ok(_turn) = self.turn.try_lock() else { return };
        if thread::current().id() != asker {
            // On Linux this affects only this thread. A failure is harmless.
            let _ = rustix::process::setpriority_process(None, LOW_PRIORITY);
        }
        match self.keep() {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => warn::once(
                "journal room",
                format_args!("{}: not thinned: {error}", self.journal.display()),
            ),
            _ => {}
        }
    }

    /// Removes entries beyond the limit. This may take seconds, so the caller should not wait for it.
    ///
    /// # Errors
    /// If a file cannot be read or written, or if stopped.
    pub fn keep(&self) -> io::Result<()> {
        let mut safe = 0;
        while !self.fits()? {
            let tried = std::mem::replace(&mut safe, self.safe()?);
            if safe == tried {
                self.complain(safe)?;
                break;
            }
            // New snapshots may have appeared meanwhile, so that more may be removed.
            self.take_out(safe)?;
        }
        Ok(())
    }

    /// Removes as much as necessary from segments up to `safe`.
    fn take_out(&self, safe: u32) -> io::Result<()> {
        let mut old = segments::list(&self.journal)?;
        old.retain(|(number, _)| *number <= safe);
        for (number, path) in &old {
            if *number <= self.known().thinned {
                continue;
            }
            self.tell(thin::squeeze(None, path, Rule::Telemetry, &self.hand()?)?);
            self.known().thinned = *number;
            if self.fits()? {
                return Ok(());
            }
        }
        let mut earlier: Option<PathBuf> = None;
        for (_, path) in old {
            if !thin::is_dropped(&path) {
                let (earlier, hand) = (earlier.as_deref(), self.hand()?);
                self.tell(thin::squeeze(earlier, &path, Rule::Everything, &hand)?);
                if self.fits()? {
                    return Ok(());
                }
            }
            earlier = thin::is_dropped(&path).then_some(path);
        }
        Ok(())
    }

    /// Returns true if the next segment also fits. It must fit within the limit and, with its snapshot, on a disk that
    /// other programs also fill.
    fn fits(&self) -> io::Result<bool> {
        let (limits, used) = (self.limits()?, used(&self.journal)?);
        let next = limits
            .segment_bytes
            .saturating_mul(2)
            .saturating_add(snapshot_bytes(&self.journal)?);
        Ok(used <= limits.resting_bytes() && free(&self.journal) >= next)
    }

    /// Returns the limits for the disk's current free space, which depends on other programs.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn limits(&self) -> io::Result<Limits> {
        Ok(self.limits.on(self.room_bytes()?))
    }

    /// Returns the number of bytes that the journal uses or can still use.
    fn room_bytes(&self) -> io::Result<u64> {
        Ok(used(&self.journal)?.saturating_add(free(&self.journal)))
    }

    /// Returns the parameters of thinning, with the limit to record.
    fn hand(&self) -> io::Result<Hand> {
        Ok(Hand {
            bound_bytes: self.limits.under(self.room_bytes()?).bound_bytes,
            ..self.hand.clone()
        })
    }

    fn complain(&self, safe: u32) -> io::Result<()> {
        let why = if safe == 0 {
            "it has fewer than two valid snapshots, and without them the whole journal may have to be read again"
        } else {
            "its newest segments and snapshots exceed the limit: raise --journal-bytes, or free disk space"
        };
        let (journal, used, bound) = (
            self.journal.display(),
            used(&self.journal)?,
            self.limits.bound_bytes,
        );
        warn::once(
            "journal room",
            format_args!(
                "{journal}: {used} bytes of {bound}, {} free on its disk, and nothing more can be deleted: {why}",
                free(&self.journal)
            ),
        );
        Ok(())
    }

    fn tell(&self, done: Done) {
        if let Some(record) = done.record {
            // At the end of the job the receiver may already be gone.
            let _ = self.told.send(record);
        }
    }

    /// Returns the last segment that never has to be folded again.
    fn safe(&self) -> io::Result<u32> {
        let there = snapshot::list(&self.journal)?;
        let mut known = self.known();
        known
            .good
            .retain(|good| there.iter().any(|(number, _)| number == good));
        let older = known.good.iter().rev().nth(1);
        Ok(older.copied().unwrap_or(0))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the free bytes on a journal's disk, or `u64::MAX` if unknown.
pub fn free(journal: &Path) -> u64 {
    let dir = journal.parent().unwrap_or(Path::new("."));
    rustix::fs::statvfs(dir).map_or(u64::MAX, |disk| disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Returns the size of a journal's newest snapshot, bytes. The next one may be as large.
fn snapshot_bytes(journal: &Path) -> io::Result<u64> {
    let newest = snapshot::list(journal)?.pop();
    Ok(newest.map_or(0, |(_, path)| fs::metadata(path).map_or(0, |meta| meta.len())))
}

/// Returns the disk usage of a journal and its snapshots, bytes.
///
/// # Errors
/// When its directory cannot be read.
pub fn used(journal: &Path) -> io::Result<u64> {
    let closed = segments::list(journal)?;
    let files = closed.into_iter().chain(snapshot::list(journal)?);
    let files = files.map(|(_, path)| path).chain([journal.to_owned()]);
    // A missing file takes no space.
    Ok(files
        .filter_map(|path| Some(fs::metadata(path).ok()?.len()))
        .sum())
}
