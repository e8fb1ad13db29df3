//! Sums collectives by rank and step: NCCL numbers collectives, but has no steps.
//!
//! Collectives of one kind in one communicator have the same numbers on all ranks. If steps are known as well (from the
//! hook or a log), their rate gives the number of collectives per step. That many consecutive collectives then form one
//! step, the same on all ranks, though it may start a few collectives before or after the real one. Until this number
//! is known, and if it is not an integer, nothing is sent.

use std::collections::BTreeMap;
use std::sync::Arc;

use paceline_health::codec::hash::fnv;
use paceline_health::event::{Comm, Event, Group, Pulse};
use paceline_health::id::Rank;

use super::record::{Done, Record};

/// Maximum number of kinds of collectives in communicators, and of processes.
const MAX_STREAMS: usize = 1024;
const MAX_PROCESSES: usize = 256;
/// Minimum number of steps, also as a multiple of the collectives per step: the files may lag by a few.
const MIN_STEPS: u64 = 50;
const MIN_TIMES: u64 = 10;
/// Collectives that no rank can leave before the last rank has entered.
const ALL_MEET: [&str; 3] = ["AllReduce", "ReduceScatter", "AllGather"];
/// Maximum deviation of the collectives per step from an integer.
const WHOLE: f64 = 0.3;

/// See the module.
#[derive(Debug, Default)]
pub struct Tally {
    /// The latest step of this node's ranks, the highest rank, and the restart number.
    step: u64,
    highest: Option<u32>,
    restart: u32,
    /// By process: size of its largest communicator, and its rank in it.
    processes: BTreeMap<u32, (u32, u32)>,
    largest: u32,
    streams: BTreeMap<(u64, Arc<str>, u32), Stream>,
    /// Steps with a missing collective, and collectives beyond the limits.
    lost: u64,
}

/// One kind of collective of one process in one communicator.
#[derive(Debug)]
struct Stream {
    ranks: u32,
    name: Arc<str>,
    /// The first number seen, and the step at that time.
    first: (u64, u64),
    a_step: Option<u64>,
    is_told: bool,
    open: Option<Open>,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    step: u64,
    count: u64,
    bytes: u64,
    dur_ns: u64,
}

impl Tally {
    /// Records the steps of this node's ranks.
    pub fn notice(&mut self, pulses: &[Pulse]) {
        self.step = pulses.iter().map(|pulse| pulse.step).max().unwrap_or(self.step);
        self.highest = pulses.iter().map(|pulse| pulse.rank.0).max();
        let restart = pulses.iter().map(|pulse| pulse.restart).max();
        if restart.is_some_and(|restart| restart != self.restart) {
            // New processes have new communicators.
            *self = Tally {
                restart: restart.unwrap_or_default(),
                step: self.step,
                highest: self.highest,
                lost: self.lost,
                ..Tally::default()
            };
        }
    }

    /// Number of lost steps.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Sends communicators again to a new journal.
    pub fn introduce(&mut self) {
        self.streams
            .values_mut()
            .for_each(|stream| stream.is_told = false);
    }

    /// Adds a collective; sends what it completes.
    pub fn take(&mut self, record: &Record, tell: &mut dyn FnMut(Event)) {
        if self.processes.len() < MAX_PROCESSES || self.processes.contains_key(&record.pid) {
            let known = self
                .processes
                .entry(record.pid)
                .or_insert((record.ranks, record.rank));
            if record.ranks > known.0 {
                *known = (record.ranks, record.rank);
            }
        }
        self.largest = self.largest.max(record.ranks);
        let (Some(done), true) = (&record.done, record.ranks > 1) else {
            return;
        };
        if !ALL_MEET.contains(&&*done.collective) {
            return;
        }
        let key = (record.comm, done.collective.clone(), record.pid);
        if !self.streams.contains_key(&key) && self.streams.len() >= MAX_STREAMS {
            self.lost += 1;
            return;
        }
        let step = self.step;
        let rank = self.rank(record.pid);
        let restart = self.restart;
        let stream = self.streams.entry(key).or_insert_with(|| Stream {
            ranks: record.ranks,
            name: record.name.clone(),
            first: (done.number, step),
            a_step: None,
            is_told: false,
            open: None,
        });
        stream.learn(done.number, step);
        let (Some(a_step), Some(rank)) = (stream.a_step, rank) else {
            return;
        };
        let (whole, lost) = stream.add(done, a_step);
        self.lost += lost;
        let Some(open) = whole else { return };
        let comm = record.comm ^ fnv(done.collective.as_bytes());
        if !std::mem::replace(&mut stream.is_told, true) {
            let name = format!("{} {}", stream.name, done.collective);
            tell(Event::Group(Group {
                rank,
                restart,
                comm,
                size: stream.ranks,
                name: name.trim().into(),
            }));
        }
        tell(Event::Comm(Comm {
            rank,
            restart,
            step: open.step,
            comm,
            collectives: u32::try_from(open.count).unwrap_or(u32::MAX),
            bytes: open.bytes,
            dur_ns: open.dur_ns,
            exposed_ns: None,
            unfit: 0,
            gpu: true,
            functions: Vec::new(),
        }));
    }

    /// The global rank of a process: its rank in the communicator of all ranks, if there is one.
    fn rank(&self, pid: u32) -> Option<Rank> {
        let (ranks, rank) = *self.processes.get(&pid)?;
        let is_whole = ranks == self.largest && self.highest.is_some_and(|highest| highest < ranks);
        is_whole.then_some(Rank(rank))
    }
}

impl Stream {
    /// Learns the number of collectives per step from the rates of both.
    fn learn(&mut self, number: u64, step: u64) {
        let (from, from_step) = self.first;
        let (done, steps) = (number.saturating_sub(from), step.saturating_sub(from_step));
        if self.a_step.is_some() || done == 0 || steps < MIN_STEPS {
            return;
        }
        let ratio = done as f64 / steps as f64;
        let whole = ratio.round();
        if whole >= 1.0 && (ratio - whole).abs() <= WHOLE && steps as f64 >= MIN_TIMES as f64 * whole {
            self.a_step = Some(whole as u64);
        }
    }

    /// Adds a collective; returns the step that it completes, and the steps lost because of missing ones.
    fn add(&mut self, done: &Done, a_step: u64) -> (Option<Open>, u64) {
        let step = done.number / a_step;
        let mut lost = 0;
        if self.open.is_some_and(|open| open.step != step) {
            lost = 1;
            self.open = None;
        }
        let open = self.open.get_or_insert(Open {
            step,
            count: 0,
            bytes: 0,
            dur_ns: 0,
        });
        open.count += 1;
        open.bytes = open.bytes.saturating_add(done.bytes);
        open.dur_ns = open.dur_ns.saturating_add(done.dur_ns);
        if open.count < a_step {
            return (None, lost);
        }
        (self.open.take(), lost)
    }
}
