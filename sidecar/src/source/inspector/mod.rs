//! Output of NVIDIA's NCCL Inspector: durations of collectives, by communicator. It is used in jobs in which NCCL
//! Inspector occupies the only slot for a profiler plugin. The output has no steps; slow links can be found only if the
//! hook or a step log provides these.
//!
//! A separate thread reads the files, so that a hung file system blocks nothing else.

mod record;
mod tally;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use paceline_health::Provenance;
use paceline_health::event::Pulse;

pub use self::record::{Done, Record, RecordError, read};
pub use self::tally::Tally;
use super::follow::Follow;
use super::yields::{Read, Yields};
use super::{Losses, Send, Source};
use crate::{host, warn};

/// Polling interval of files. The directory is listed once in `LIST_EVERY` polls.
const LOOK: Duration = Duration::from_millis(200);
const LIST_EVERY: u32 = 10;
/// Maximum number of files followed.
const MAX_FILES: usize = 256;
/// Maximum number of queued records.
const MAX_WAITING: usize = 16 << 10;

#[derive(Debug, Default)]
struct Shared {
    over: AtomicBool,
    /// Number of records beyond the limit (`dropped`) and of invalid lines (`torn`).
    dropped: AtomicU64,
    torn: AtomicU64,
}

/// The source; see the module.
#[derive(Debug)]
pub struct Inspector {
    records: Receiver<Record>,
    shared: Arc<Shared>,
    yields: Yields,
    tally: Tally,
}

impl Inspector {
    /// Reads what is added to `path` from now on. `path` is a file, or a directory of files.
    pub fn new(path: PathBuf) -> Inspector {
        Inspector::of(path, host::hostname())
    }

    /// Reads only files of this `host`. In a shared directory, the sidecars of other hosts read the other files.
    fn of(path: PathBuf, host: String) -> Inspector {
        let (sender, records) = sync_channel(MAX_WAITING);
        let shared = Arc::new(Shared::default());
        let hint = "is a record of NCCL Inspector's of this host".to_owned();
        let yields = Yields::new("nccl-inspector", path.clone(), hint);
        let mut reader = Reader {
            path,
            host,
            files: BTreeMap::new(),
            sender,
            shared: Arc::clone(&shared),
            seen: yields.read(),
        };
        // Skip existing content, because it is from another or an earlier job.
        reader.list(false);
        let thread = std::thread::Builder::new()
            .name("inspector".into())
            .stack_size(256 << 10);
        if let Err(error) = thread.spawn(move || reader.run()) {
            warn::once(
                "inspector",
                format_args!("NCCL Inspector's files are not read: {error}"),
            );
        }
        Inspector {
            records,
            shared,
            yields,
            tally: Tally::default(),
        }
    }
}

/// State of the reading thread.
struct Reader {
    path: PathBuf,
    host: String,
    /// Followed files. The value is `None` if the file is broken or belongs to another host.
    files: BTreeMap<PathBuf, Option<Follow>>,
    sender: SyncSender<Record>,
    shared: Arc<Shared>,
    seen: Arc<Read>,
}

impl Reader {
    fn run(mut self) {
        let mut looks = 0_u32;
        while !self.shared.over.load(Ordering::Relaxed) {
            if looks.is_multiple_of(LIST_EVERY) {
                self.list(true);
            }
            looks = looks.wrapping_add(1);
            for (path, slot) in &mut self.files {
                let keeps = slot.as_mut().is_none_or(|follow| {
                    follow_on(path, follow, &self.host, &self.sender, &self.shared, &self.seen)
                });
                if !keeps {
                    *slot = None;
                }
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Finds new files. If `old` is set, their existing content is read as well.
    fn list(&mut self, old: bool) {
        let entries = match fs::read_dir(&self.path) {
            Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
            // The path is a file, or does not exist yet.
            Err(_) => vec![self.path.clone()],
        };
        for path in entries {
            let is_file = path.is_file() && path.extension().is_none_or(|end| end != "prom");
            let is_full = self.files.len() >= MAX_FILES && !self.files.contains_key(&path);
            if is_file && !is_full {
                let follow = || Some(Follow::new(path.clone(), old));
                self.files.entry(path.clone()).or_insert_with(follow);
            }
        }
    }
}

/// Continues to read one file. Returns false if the file does not belong to this host.
fn follow_on(
    path: &Path,
    follow: &mut Follow,
    host: &str,
    sender: &SyncSender<Record>,
    shared: &Shared,
    seen: &Read,
) -> bool {
    let mut is_ours = true;
    let done = follow.read(&mut |line| {
        if !is_ours {
            return;
        }
        let read = record::read(line);
        let is_here = |record: &Record| record.host.is_empty() || &*record.host == host;
        seen.line(read.as_ref().is_ok_and(is_here));
        match read {
            Ok(record) if !is_here(&record) => is_ours = false,
            Ok(record) => {
                if let Err(TrySendError::Full(_)) = sender.try_send(record) {
                    shared.dropped.fetch_add(1, Ordering::Relaxed);
                }
            }
            Err(error) => {
                shared.torn.fetch_add(1, Ordering::Relaxed);
                warn::once("inspector line", format_args!("{}: {error}", path.display()));
            }
        }
    });
    if follow.is_open() {
        seen.found();
    }
    if let Err(error) = &done {
        warn::once("inspector file", format_args!("{}: {error}", path.display()));
    }
    is_ours && done.is_ok()
}

impl Source for Inspector {
    fn name(&self) -> &'static str {
        "nccl-inspector"
    }

    fn poll(&mut self, now_ns: u64, send: &mut Send<'_>) {
        if let Some(trouble) = self.yields.look(now_ns) {
            send(Provenance::Live, trouble);
        }
        for record in self.records.try_iter().take(MAX_WAITING) {
            self.tally.take(&record, &mut |event| {
                send(Provenance::Live, event);
            });
        }
    }

    fn notice(&mut self, pulses: &[Pulse], _now_ns: u64) {
        self.tally.notice(pulses);
    }

    fn introduce(&mut self, _send: &mut Send<'_>) {
        self.tally.introduce();
        self.yields.forget();
    }

    fn losses(&self) -> Losses {
        Losses {
            dropped: self.shared.dropped.load(Ordering::Relaxed) + self.tally.lost(),
            torn: self.shared.torn.load(Ordering::Relaxed),
        }
    }

    fn is_idle(&mut self) -> bool {
        // Called only at the end, so no more data will come.
        self.yields.over();
        true
    }
}

impl Drop for Inspector {
    fn drop(&mut self) {
        // Do not wait for the thread, because it may hang in a file system.
        self.shared.over.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[path = "inspector_tests.rs"]
mod tests;
