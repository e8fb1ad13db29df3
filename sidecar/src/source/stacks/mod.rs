//! What ranks without progress do: the Python stacks of their main threads and data loader workers, and the kernel's
//! information about them. Ranks that make progress are not queried.
//!
//! A request is a signal. The Python hook registers faulthandler for it, which answers without the GIL. A separate
//! thread sends the requests and waits for the answers. It lives only as long as needed.

mod ask;
mod kernel;
mod parse;
mod when;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

use paceline_health::Provenance;
use paceline_health::event::{Activity, Event, Pulse, Stacks, WorkerActivity};
use paceline_health::id::Rank;

use self::ask::Asker;
pub(super) use self::when::When;
use super::trainers::Trainers;
use super::{Send, Source};
use crate::warn;

/// Maximum number of ranks of a node queried at once.
const MAX_RANKS: usize = 32;

/// A rank, its restart count, and its process ID.
type Asked = (Rank, u32, u32);
/// A rank, its restart count, its activity, and that of its loader workers.
type Answer = (Rank, u32, Activity, Vec<WorkerActivity>);

/// The source of [`Event::Stacks`].
#[derive(Debug)]
pub struct StackSource {
    ring_dir: PathBuf,
    trainers: Trainers,
    when: When,
    /// Ranks to query next.
    due: Vec<Asked>,
    /// Answers for ranks without progress whose process is not known here.
    unseen: Vec<Answer>,
    /// When each rank last made progress. `asked_ns` is when the ranks that are being queried were chosen.
    moved_ns: BTreeMap<Rank, u64>,
    asked_ns: u64,
    thread: Option<Thread>,
    is_asking: bool,
}

#[derive(Debug)]
struct Thread {
    ask: SyncSender<Vec<Asked>>,
    answers: Receiver<Vec<Answer>>,
}

impl StackSource {
    /// Creates the source for the ranks of `trainers`, whose hooks write their answers under `ring_dir`.
    pub fn new(ring_dir: PathBuf, trainers: Trainers) -> StackSource {
        StackSource {
            ring_dir,
            trainers,
            when: When::default(),
            due: Vec::new(),
            unseen: Vec::new(),
            moved_ns: BTreeMap::new(),
            asked_ns: 0,
            thread: None,
            is_asking: false,
        }
    }

    fn begin(&mut self, asked: Vec<Asked>) {
        if self.thread.is_none() {
            self.thread = Thread::start(Asker::new(&self.ring_dir));
        }
        let thread = self.thread.as_ref();
        self.is_asking = thread.is_some_and(|thread| thread.ask.try_send(asked).is_ok());
    }
}

impl Thread {
    fn start(mut asker: Asker) -> Option<Thread> {
        let (ask, asked) = sync_channel::<Vec<Asked>>(1);
        let (answer, answers) = sync_channel::<Vec<Answer>>(1);
        let run = move || {
            while let Ok(ranks) = asked.recv() {
                let one = |(rank, restart, pid)| {
                    let (main, workers) = asker.ask(pid);
                    (rank, restart, main, workers)
                };
                if answer.send(ranks.into_iter().map(one).collect()).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("stacks".into())
            .stack_size(256 << 10);
        match thread.spawn(run) {
            Ok(_) => Some(Thread { ask, answers }),
            Err(error) => {
                warn::once("stacks thread", format_args!("no stacks are taken: {error}"));
                None
            }
        }
    }
}

impl Source for StackSource {
    fn name(&self) -> &'static str {
        "stacks"
    }

    fn notice(&mut self, pulses: &[Pulse], now_ns: u64) {
        let moved = |pulse: &Pulse| (pulse.rank, now_ns.saturating_sub(pulse.idle_ns));
        self.moved_ns = pulses.iter().map(moved).collect();
        let still = self.when.notice(pulses, now_ns);
        if still.is_empty() || self.is_asking {
            return;
        }
        let trainers = self.trainers.now();
        self.asked_ns = now_ns;
        for (rank, restart) in still.into_iter().take(MAX_RANKS) {
            match trainers.get(&rank) {
                Some(pid) => self.due.push((rank, restart, *pid)),
                None => self.unseen.push((rank, restart, unseen(), Vec::new())),
            }
        }
    }

    fn poll(&mut self, _now_ns: u64, send: &mut Send<'_>) {
        for stacks in merged(std::mem::take(&mut self.unseen)) {
            send(Provenance::Live, Event::Stacks(stacks));
        }
        if !self.due.is_empty() && !self.is_asking {
            let due = std::mem::take(&mut self.due);
            self.begin(due);
        }
        if !self.is_asking {
            return;
        }
        match self.thread.as_ref().map(|thread| thread.answers.try_recv()) {
            Some(Ok(answers)) => {
                self.is_asking = false;
                // Drop the answer of a rank that has made progress since it was queried, because it is outdated.
                let is_still = |(rank, ..): &Answer| self.moved_ns.get(rank) <= Some(&self.asked_ns);
                for stacks in merged(answers.into_iter().filter(is_still).collect()) {
                    send(Provenance::Live, Event::Stacks(stacks));
                }
            }
            Some(Err(TryRecvError::Empty)) => {}
            Some(Err(TryRecvError::Disconnected)) | None => (self.is_asking, self.thread) = (false, None),
        }
    }
}

fn unseen() -> Activity {
    Activity {
        missing: "its process is not visible from the sidecar's container".into(),
        ..Activity::default()
    }
}

/// Merges ranks with the same activity into one event.
fn merged(answers: Vec<Answer>) -> Vec<Stacks> {
    let mut all: Vec<Stacks> = Vec::new();
    for (rank, restart, main, workers) in answers {
        let same = all
            .iter_mut()
            .find(|stacks| stacks.restart == restart && stacks.main == main && stacks.workers == workers);
        match same {
            Some(stacks) => stacks.ranks.push(rank),
            None => all.push(Stacks {
                ranks: vec![rank],
                restart,
                main,
                workers,
            }),
        }
    }
    all
}

#[cfg(test)]
#[path = "stacks_tests.rs"]
mod tests;
