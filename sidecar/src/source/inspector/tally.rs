//! Sums collectives by rank and step. NCCL numbers collectives but does not know steps, so this module derives them.
//!
//! Collectives of one kind in one communicator have the same numbers on all ranks. If the hook or a log reports steps,
//! the two rates give the number of collectives per step. That many consecutive collectives then form one step. It is
//! the same on all ranks, but it may start a few collectives before or after the real step. Nothing is sent until this
//! number is known, or if it is not an integer.

use std::collections::BTreeMap;
use std::sync::Arc;

use paceline_health::codec::hash::fnv;
use paceline_health::event::{Comm, Event, Group, Pulse};
use paceline_health::id::Rank;

use super::record::{Done, Record};

/// Maximum number of streams (one kind of collective of one process in one communicator), and of processes.
const MAX_STREAMS: usize = 1024;
const MAX_PROCESSES: usize = 256;
/// Minimum number of observed steps, and the same as a multiple of the collectives per step. Both are large because the
/// files may lag by a few collectives.
const MIN_STEPS: u64 = 50;
const MIN_TIMES: u64 = 10;
/// Collectives that no rank can finish before the last rank has started them.
const ALL_MEET: [&str; 3] = ["AllReduce", "ReduceScatter", "AllGather"];
/// Maximum difference between the collectives per step and an integer.
const WHOLE: f64 = 0.3;

/// The sums; see the module.
#[derive(Debug, Default)]
pub struct Tally {
    /// The latest step of this node's ranks, their highest rank, and the restart number.
    step: u64,
    highest: Option<u32>,
    restart: u32,
    /// For each process: the size of its largest communicator, and its rank in that communicator.
    processes: BTreeMap<u32, (u32, u32)>,
    largest: u32,
    streams: BTreeMap<(u64, Arc<str>, u32), Stream>,
    /// Number of steps with a missing collective, plus collectives beyond the limits.
    lost: u64,
}

/// One kind of collective of one process in one communicator.
#[derive(Debug)]
struct Stream {
    ranks: u32,
    name: Arc<str>,
    /// The first collective number seen, and the step at that time.
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
            // After a restart, forget all streams, because new processes have new communicators.
            *self = Tally {
                restart: restart.unwrap_or_default(),
                step: self.step,
                highest: self.highest,
                lost: self.lost,
                ..Tally::default()
            };
        }
    }

    /// Returns the number of lost steps.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Makes communicators be sent again, because the journal is new.
    pub fn introduce(&mut self) {
        self.streams
            .values_mut()
            .for_each(|stream| stream.is_told = false);
    }

    /// Adds a collective. Sends the step that it completes, if any.
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

    /// Returns the global rank of a process: its rank in the communicator of all ranks, if there is such a
    /// communicator.
    fn rank(&self, pid: u32) -> Option<Rank> {
        let (ranks, rank) = *self.processes.get(&pid)?;
        let is_whole = ranks == self.largest && self.highest.is_some_and(|highest| highest < ranks);
        is_whole.then_some(Rank(rank))
    }
}

impl Stream {
    /// Learns the number of collectives per step by comparing the growth of both numbers.
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

    /// Adds a collective. Returns the step that it completes, and the number of steps lost because of missing
    /// collectives.
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
