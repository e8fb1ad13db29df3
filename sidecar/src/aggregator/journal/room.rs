//! The room that a journal takes on the disk, and how it is kept within its bound: the oldest closed segments lose their
//! telemetry, and when that does not suffice, all else but what nobody can do without ([`thin`]).
//!
//! Never touched is what somebody who opens the journal again has to fold: what lies behind the older of the two snapshots
//! that this aggregator wrote itself or has gone on from.

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

/// Nice value of who thins. What comes meanwhile grows the journal: on a machine whose cores are all taken, too, it has to
/// come to its end.
const LOW_PRIORITY: i32 = 5;

/// What is remembered from one time to the next.
#[derive(Debug, Default)]
struct Known {
    /// Snapshots that are known to be good, by their segments.
    good: Vec<u32>,
    /// Segments up to this one have no telemetry any more.
    thinned: u32,
}

/// Keeps one journal within its bound. A clone does the same for the same journal.
#[derive(Clone, Debug)]
pub struct Room {
    journal: PathBuf,
    limits: Limits,
    hand: Hand,
    known: Arc<Mutex<Known>>,
    /// Of those who keep the same journal one is at it.
    turn: Arc<Mutex<()>>,
    told: Sender<Thinned>,
}

impl Room {
    /// Of the journal at `journal`, which was gone on from the snapshot behind segment `restored` (zero: none). What is
    /// gone comes out of the other end.
    pub fn new(journal: &Path, node: NodeId, limits: Limits, restored: u32) -> (Room, Receiver<Thinned>) {
        let (told, hears) = channel();
        let good = if restored > 0 { vec![restored] } else { Vec::new() };
        let hand = Hand {
            node,
            bound_bytes: limits.bound_bytes,
            stop: Arc::new(AtomicBool::new(false)),
        };
        let mut thinned = 0;
        // Who was killed may not have told of it.
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

    /// The snapshot behind this segment is on the medium.
    pub fn has_snapshot(&self, number: u32) {
        self.known().good.push(number);
    }

    /// Whoever is at it leaves it as it is.
    pub fn stop(&self) {
        self.hand.stop.store(true, Ordering::Relaxed);
    }

    /// As [`Room::keep`], and says what went wrong; whoever finds another at it leaves it to that one. A thread other than
    /// `asker` gives way to all others from now on.
    pub fn keep_in_peace(&self, asker: ThreadId) {
        let Ok(_turn) = self.turn.try_lock() else { return };
        if thread::current().id() != asker {
            // On Linux this is the thread's own, and it is nobody's worry if it may not.
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

    /// Takes out what is too much. May take seconds: nobody should wait for it.
    ///
    /// # Errors
    /// When a file cannot be read or written, or when it was stopped.
    pub fn keep(&self) -> io::Result<()> {
        let mut safe = 0;
        while !self.fits()? {
            let tried = std::mem::replace(&mut safe, self.safe()?);
            if safe == tried {
                self.complain(safe)?;
                break;
            }
            // Snapshots may come meanwhile, and more can go then.
            self.take_out(safe)?;
        }
        Ok(())
    }

    /// Takes out of segments up to `safe` what has to go.
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

    /// Whether the next segment fits in, too: under the bound, and with its snapshot on a disk that others fill.
    fn fits(&self) -> io::Result<bool> {
        let (limits, used) = (self.limits()?, used(&self.journal)?);
        let next = limits
            .segment_bytes
            .saturating_mul(2)
            .saturating_add(snapshot_bytes(&self.journal)?);
        Ok(used <= limits.resting_bytes() && free(&self.journal) >= next)
    }

    /// As they are on the disk as it is now: what others leave free is used, and given back.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn limits(&self) -> io::Result<Limits> {
        Ok(self.limits.on(self.room_bytes()?))
    }

    /// What the journal has and may have, bytes.
    fn room_bytes(&self) -> io::Result<u64> {
        Ok(used(&self.journal)?.saturating_add(free(&self.journal)))
    }

    /// Who thins, and says within what it had to be kept.
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
            // Nobody hears it who is about to end.
            let _ = self.told.send(record);
        }
    }

    /// The last segment that nobody has to fold again.
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

/// What the disk of a journal has left, bytes; without end when it does not say.
pub fn free(journal: &Path) -> u64 {
    let dir = journal.parent().unwrap_or(Path::new("."));
    rustix::fs::statvfs(dir).map_or(u64::MAX, |disk| disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// What the newest snapshot of a journal takes, bytes; the next one may take as much.
fn snapshot_bytes(journal: &Path) -> io::Result<u64> {
    let newest = snapshot::list(journal)?.pop();
    Ok(newest.map_or(0, |(_, path)| fs::metadata(path).map_or(0, |meta| meta.len())))
}

/// What a journal takes on the disk, with its snapshots, bytes.
///
/// # Errors
/// When its directory cannot be read.
pub fn used(journal: &Path) -> io::Result<u64> {
    let closed = segments::list(journal)?;
    let files = closed.into_iter().chain(snapshot::list(journal)?);
    let files = files.map(|(_, path)| path).chain([journal.to_owned()]);
    // One that is not there takes nothing.
    Ok(files
        .filter_map(|path| Some(fs::metadata(path).ok()?.len()))
        .sum())
}
