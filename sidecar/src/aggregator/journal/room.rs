//! Keeps a journal's disk usage within its limit: the oldest closed segments lose their telemetry and, if that is not
//! enough, everything but the essential entries ([`thin`]).
//!
//! Entries that must be folded when the journal is reopened are never touched: those after the older of the two
//! snapshots that this aggregator wrote or resumed from.

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

/// Nice value of the thinning thread. The journal grows meanwhile: thinning must finish even on a machine with all
/// cores busy.
const LOW_PRIORITY: i32 = 5;

/// State between two calls.
#[derive(Debug, Default)]
struct Known {
    /// Segments whose snapshots are known to be valid.
    good: Vec<u32>,
    /// Segments up to this one no longer contain telemetry.
    thinned: u32,
}

/// Keeps one journal within its limit. A clone works on the same journal.
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
    /// For the journal at `journal`, resumed from the snapshot after segment `restored` (zero: none). The receiver gets
    /// records of what is removed.
    pub fn new(journal: &Path, node: NodeId, limits: Limits, restored: u32) -> (Room, Receiver<Thinned>) {
        let (told, hears) = channel();
        let good = if restored > 0 { vec![restored] } else { Vec::new() };
        let hand = Hand {
            node,
            bound_bytes: limits.bound_bytes,
            stop: Arc::new(AtomicBool::new(false)),
        };
        let mut thinned = 0;
        // A killed aggregator may not have reported them.
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

    /// The snapshot after this segment is on disk.
    pub fn has_snapshot(&self, number: u32) {
        self.known().good.push(number);
    }

    /// Stops thinning; the files stay as they are.
    pub fn stop(&self) {
        self.hand.stop.store(true, Ordering::Relaxed);
    }

    /// Like [`Room::keep`], but warns on errors, and returns at once if another thread is thinning. A thread other than
    /// `asker` lowers its own priority permanently.
    pub fn keep_in_peace(&self, asker: ThreadId) {
        let Ok(_turn) = self.turn.try_lock() else { return };
        if thread::current().id() != asker {
            // On Linux this affects only this thread. Failure is harmless.
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

    /// Removes entries beyond the limit. May take seconds: do not wait for it.
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
            // New snapshots may have appeared meanwhile, and allow removing more.
            self.take_out(safe)?;
        }
        Ok(())
    }

    /// Removes what is necessary from segments up to `safe`.
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

    /// Whether the next segment fits too: within the limit, and with its snapshot on a disk that other programs fill.
    fn fits(&self) -> io::Result<bool> {
        let (limits, used) = (self.limits()?, used(&self.journal)?);
        let next = limits
            .segment_bytes
            .saturating_mul(2)
            .saturating_add(snapshot_bytes(&self.journal)?);
        Ok(used <= limits.resting_bytes() && free(&self.journal) >= next)
    }

    /// The limits with the disk's current free space, which depends on other programs.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn limits(&self) -> io::Result<Limits> {
        Ok(self.limits.on(self.room_bytes()?))
    }

    /// Bytes that the journal uses or can still use.
    fn room_bytes(&self) -> io::Result<u64> {
        Ok(used(&self.journal)?.saturating_add(free(&self.journal)))
    }

    /// Parameters of thinning, with the limit to record.
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
            // The receiver may be gone at the end.
            let _ = self.told.send(record);
        }
    }

    /// The last segment that never has to be folded again.
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

/// Free bytes on a journal's disk; `u64::MAX` if unknown.
pub fn free(journal: &Path) -> u64 {
    let dir = journal.parent().unwrap_or(Path::new("."));
    rustix::fs::statvfs(dir).map_or(u64::MAX, |disk| disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Size of a journal's newest snapshot, bytes; the next one may be as large.
fn snapshot_bytes(journal: &Path) -> io::Result<u64> {
    let newest = snapshot::list(journal)?.pop();
    Ok(newest.map_or(0, |(_, path)| fs::metadata(path).map_or(0, |meta| meta.len())))
}

/// Disk usage of a journal and its snapshots, bytes.
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
