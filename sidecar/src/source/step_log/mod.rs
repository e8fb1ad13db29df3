//! Steps from a job's output, for jobs into which neither hook nor plugin can be loaded. The durations apply to the
//! whole job, by wall-clock time.
//!
//! The steps are reported as those of rank 0. The log is ignored as soon as a better source sees a rank of this node. A
//! separate thread reads and matches lines, so that a hung file system blocks nothing else.

mod format;
mod meter;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use paceline_health::Provenance;
use paceline_health::event::{Attach, Event, Phase, Pulse, Signal, Step, StepKind};
use paceline_health::id::Rank;

pub use self::format::{Line, Lines, PatternError, StepPattern};
pub use self::meter::{Measured, Meter};
use super::follow::Follow;
use super::yields::{Read, Yields};
use super::{Losses, Send, Source};
use crate::{host, warn};

/// Polling interval of a log.
const LOOK: Duration = Duration::from_millis(50);
/// Retry interval if the log cannot be read.
const RETRY: Duration = Duration::from_secs(5);
/// Maximum number of queued steps.
const MAX_WAITING: usize = 4096;

/// A line about a step, when it was read, and the log's format.
type Said = (Line, u64, &'static str);

/// State shared by the thread and the source.
#[derive(Debug, Default)]
struct Shared {
    over: AtomicBool,
    lost: AtomicU64,
    /// How many times the thread has read all available content.
    rounds: AtomicU64,
}

/// The source; see the module.
#[derive(Debug)]
pub struct StepLog {
    said: Receiver<Said>,
    shared: Arc<Shared>,
    yields: Yields,
    meter: Meter,
    /// Number of ranks of this job, from the environment; zero if unknown.
    world_size: u32,
    attach: Option<Attach>,
    is_attached: bool,
    /// Number of heartbeats since the first line. They show whether there is a better source.
    beats: u32,
    /// Set once a better source has seen ranks of this node.
    is_better_seen: bool,
    /// Set if the last heartbeat contains a pulse from the log.
    has_pulse: bool,
    /// At the end: the value of `rounds` at which everything has been read.
    last_round: Option<u64>,
    waiting: Vec<Measured>,
}

impl StepLog {
    /// Reads what is added to `path` from now on.
    pub fn new(path: PathBuf, pattern: Option<StepPattern>) -> StepLog {
        let (sender, said) = sync_channel(MAX_WAITING);
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        // Open the file before the thread starts, because only its content up to now is old.
        let follow = Follow::new(path.clone(), false);
        let hint = match &pattern {
            Some(_) => "fits --step-regex",
            None => "is a step in a known format: set --step-regex to your format",
        };
        // The path of the command's output means nothing to the user, so name it differently.
        let name = if path.starts_with("/proc") {
            PathBuf::from("its output")
        } else {
            path.clone()
        };
        let yields = Yields::new("step-log", name, hint.to_owned());
        let seen = yields.read();
        let run = move || read(follow, &path, Lines::new(pattern), &sender, &theirs, &seen);
        let thread = std::thread::Builder::new()
            .name("step log".into())
            .stack_size(512 << 10);
        if let Err(error) = thread.spawn(run) {
            warn::once("step log", format_args!("the step log is not read: {error}"));
        }
        let ranks = std::env::var("WORLD_SIZE")
            .ok()
            .and_then(|size| size.trim().parse().ok());
        StepLog {
            said,
            shared,
            yields,
            meter: Meter::default(),
            world_size: ranks.unwrap_or(0),
            attach: None,
            is_attached: false,
            beats: 0,
            is_better_seen: false,
            has_pulse: false,
            last_round: None,
            waiting: Vec::new(),
        }
    }

    /// Returns true if it is known that there is no better source than the log.
    fn may_speak(&self) -> bool {
        !self.is_better_seen && (self.beats > 0 || self.last_round.is_some())
    }

    fn attach(&mut self, format: &str) {
        self.attach.get_or_insert_with(|| Attach {
            rank: Rank(0),
            local_rank: 0,
            world_size: self.world_size,
            restart: 0,
            pid: 0,
            gpu: None,
            role: "".into(),
            framework: format!("log of {format}").into(),
        });
    }
}

/// The main function of the reading thread.
fn read(
    mut follow: Follow,
    path: &std::path::Path,
    mut lines: Lines,
    sender: &SyncSender<Said>,
    shared: &Shared,
    seen: &Read,
) {
    let mut gone = false;
    while !shared.over.load(Ordering::Relaxed) && !gone {
        let too_long = follow.too_long();
        let at_ns = host::monotonic_ns();
        let done = follow.read(&mut |line| {
            let said = lines.read(line);
            seen.line(said.is_some());
            let Some(said) = said else { return };
            let format = lines.format().unwrap_or_default();
            match sender.try_send((said, at_ns, format)) {
                Ok(()) => {}
                Err(TrySendError::Full(_)) => {
                    shared.lost.fetch_add(1, Ordering::Relaxed);
                }
                Err(TrySendError::Disconnected(_)) => gone = true,
            }
        });
        shared
            .lost
            .fetch_add(follow.too_long() - too_long, Ordering::Relaxed);
        if follow.is_open() {
            seen.found();
        }
        match done {
            Ok(false) => {}
            Ok(true) => {
                shared.rounds.fetch_add(1, Ordering::Release);
                std::thread::sleep(LOOK);
            }
            Err(error) => {
                warn::once("step log", format_args!("{}: {error}", path.display()));
                shared.rounds.fetch_add(2, Ordering::Release);
                std::thread::sleep(RETRY);
            }
        }
    }
}

impl Source for StepLog {
    fn name(&self) -> &'static str {
        "step-log"
    }

    fn poll(&mut self, now_ns: u64, send: &mut Send<'_>) {
        if let Some(trouble) = self.yields.look(now_ns) {
            send(Provenance::Live, trouble);
        }
        while let Ok((line, at_ns, format)) = self.said.try_recv() {
            self.attach(format);
            let measured = self.meter.take(line, at_ns);
            self.waiting
                .extend(measured.filter(|_| self.waiting.len() < MAX_WAITING));
        }
        if self.is_better_seen {
            self.waiting.clear();
        }
        let Some(attach) = self.attach.as_ref().filter(|_| self.may_speak()) else {
            return;
        };
        if !std::mem::replace(&mut self.is_attached, true) {
            send(Provenance::Live, Event::Attach(attach.clone()));
        }
        for measured in std::mem::take(&mut self.waiting) {
            send(Provenance::Live, Event::Step(step(attach, measured)));
        }
    }

    fn pulses(&mut self, now_ns: u64, out: &mut Vec<Pulse>) {
        let place = self.meter.place(now_ns).filter(|_| self.is_attached);
        self.has_pulse = place.is_some() && !self.is_better_seen;
        if let Some((step, idle_ns)) = place.filter(|_| self.has_pulse) {
            out.push(Pulse {
                rank: Rank(0),
                restart: 0,
                step,
                phase: Phase::Other,
                idle_ns,
                alive: true,
            });
        }
    }

    fn notice(&mut self, pulses: &[Pulse], _now_ns: u64) {
        self.is_better_seen |= pulses.len() > usize::from(self.has_pulse);
        self.beats += u32::from(self.attach.is_some());
    }

    fn introduce(&mut self, _send: &mut Send<'_>) {
        self.is_attached = false;
        self.yields.forget();
    }

    fn losses(&self) -> Losses {
        Losses {
            dropped: self.shared.lost.load(Ordering::Relaxed),
            torn: 0,
        }
    }

    fn is_idle(&mut self) -> bool {
        // Called only at the end, so no better source will appear. Wait for two more rounds, because the current one
        // may have missed the last lines.
        let round = self.shared.rounds.load(Ordering::Acquire);
        let is_read = round >= *self.last_round.get_or_insert(round + 2);
        if is_read {
            self.yields.over();
        }
        is_read
    }
}

fn step(attach: &Attach, measured: Measured) -> Step {
    Step {
        rank: attach.rank,
        restart: attach.restart,
        step: measured.step,
        kind: StepKind::Train,
        dur_ns: measured.dur_ns,
        phases: None,
        micro_batches: 0,
        tokens: 0,
        signal: Signal::S0,
        sum_sq: 0,
        expert_tokens: 0,
    }
}

impl Drop for StepLog {
    fn drop(&mut self) {
        // Do not wait for the thread, because it may hang in a file system.
        self.shared.over.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[path = "step_log_tests.rs"]
mod tests;
