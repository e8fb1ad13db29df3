//! Finds step boundaries in the sequence of collectives when the program does not report its steps.
//!
//! A training program repeats itself. A step ends with a collective that occurs once per repetition and is identified
//! by the few collectives before it in its own communicator. All members of a communicator see the same sequence in it,
//! so all of them cut at the same collectives; they count from the start of the communicator and by NCCL's sequence
//! numbers, never by a clock.
//!
//! Limit: it cannot know which of several nested repetitions is the optimizer step. It takes the longest one in which
//! large collectives repeat; if the only large collective of a program repeats over and over, each one is a step.

use std::collections::{BTreeMap, VecDeque};

mod operations;
mod search;

use operations::{Operations, hash};
use search::Cut;

/// Functions that reduce, as the ring numbers them (`sidecar/probe/ring/layout.md`).
const ALL_REDUCE: u8 = 1;
const REDUCE_SCATTER: u8 = 2;
/// Collectives in the search window; a step can have at most a sixth of them.
const WINDOW: usize = 1 << 15;
/// Most collectives of a communicator that identify a position in the step.
const DEEPEST: usize = 16;
/// Collectives before the first search, and the growth before the next one, as a divisor.
const FIRST_LOOK: usize = 16;
const LOOK_AGAIN: usize = 8;
/// Most pairs of communicator and function whose sequence numbers are tracked.
const MOST_NUMBERED: usize = 1 << 12;
/// A shorter repetition is not a step but a part of one.
const SHORTEST_NS: u64 = 2_000_000;
/// The end of steps has changed if it has not occurred for this many steps.
const GONE: usize = 64;

/// A collective that a rank enqueued.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Did {
    /// The communicator, and its number of ranks.
    pub comm: u64,
    /// See `comm`.
    pub ranks: u32,
    /// The function, numbered as in the ring: 1 all-reduce, 2 reduce-scatter, 3 all-gather.
    pub function: u8,
    /// Its size.
    pub bytes: u64,
    /// Its sequence number among the collectives of this function in the communicator.
    pub sequence: u64,
    /// Its number in this process, modulo 2³²; a gap means lost records.
    pub ticket: u32,
    /// Large enough to characterize a step; small ones (losses, norms) may end a step and can occur at any time.
    pub is_heavy: bool,
}

/// The position of a collective.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The step, from 1; 0: not known yet.
    pub step: u64,
    /// Set on the last collective of a step.
    pub end: Option<End>,
}

/// The communicator with the most ranks, and its collectives per step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Led {
    /// The communicator.
    pub comm: u64,
    /// Its collectives per step; 0: not known.
    pub of_step: u32,
}

/// How a step that ended compares with the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It had the usual large collectives.
    Usual,
    /// It had different ones: an evaluation, a warm-up.
    Unlike,
    /// Some of its records are missing.
    InPart,
}

/// The state that a new reader needs to continue the count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// The collective that ends a step: its communicator, the hash of the collectives that identify it, and their
    /// number.
    pub comm: u64,
    /// See `comm`.
    pub context: u64,
    /// See `comm`.
    pub depth: u8,
    /// Function of the collective that ends a step.
    pub function: u8,
    /// How many collectives of that function and communicator a step has.
    pub each: u16,
    /// Collectives in a step.
    pub items: u32,
    /// Hash of the large collectives in a step.
    pub usual: u64,
    /// The last step that ended, and the sequence number of the collective that ended it.
    pub step: u64,
    /// See `step`.
    pub sequence: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Cadence {
    patience_ns: u64,
    began_ns: Option<u64>,
    /// The first records are missing, and there is no state from an earlier reader.
    is_late: bool,
    operations: Operations,
    /// Collectives since the last step ended, or since the beginning.
    recent: VecDeque<u16>,
    /// Number of collectives removed from `recent` because it was full.
    forgotten: u64,
    looked: usize,
    /// The latest ticket.
    ticket: Option<u32>,
    /// Next sequence number, by communicator and function.
    next: BTreeMap<(u64, u8), u64>,
    /// Collectives lost before steps were found, by communicator and function.
    missed: BTreeMap<(u64, u8), u64>,
    /// Collectives that may end a step were lost since the last step ended.
    is_lost: bool,
    /// Heavy collectives of the communicator in which steps end, latest last.
    context: VecDeque<u64>,
    found: Option<Memory>,
    /// Steps before the start of `recent`.
    counted: u64,
    led: Led,
    /// Of the current step: hash of its large collectives, and whether some are missing.
    sum: u64,
    is_broken: bool,
    /// Another reader has already counted up to this sequence number.
    resumed_at: Option<u64>,
}

impl Cadence {
    /// Creates a cadence without known steps. Steps are reported once a sequence has repeated several times and
    /// `patience_ns` have passed since the first collective, so that a repetition within one long step is not mistaken
    /// for a step.
    pub fn new(patience_ns: u64) -> Cadence {
        Cadence {
            patience_ns,
            ..Cadence::default()
        }
    }

    /// Continues another reader's count. The step in progress counts as incomplete.
    pub fn resume(&mut self, memory: Memory) {
        self.next
            .insert((memory.comm, memory.function), memory.sequence + 1);
        self.resumed_at = Some(memory.sequence);
        self.found = Some(memory);
        (self.is_broken, self.is_lost) = (true, true);
    }

    /// Marks that the first records are missing: without [`Cadence::resume`] no steps are found.
    pub fn comes_late(&mut self) {
        self.is_late = self.found.is_none();
    }

    /// The state for another reader; `None` until steps are found.
    pub fn memory(&self) -> Option<Memory> {
        self.found
    }

    /// The largest communicator of a step, and its collectives per step.
    pub fn led(&self) -> Led {
        self.led
    }

    /// Processes the next collective of this rank, in the order of enqueueing.
    pub fn see(&mut self, did: &Did, now_ns: u64) -> Place {
        let began_ns = *self.began_ns.get_or_insert(now_ns);
        if self.is_late || self.is_counted(did) {
            return Place::default();
        }
        self.miss(did);
        let number = self.operations.number(did);
        if self.recent.len() == WINDOW {
            self.recent.pop_front();
            self.forgotten += 1;
            self.looked = self.looked.saturating_sub(1);
        }
        self.recent.push_back(number);
        match self.found {
            Some(found) => self.go_on(found, number),
            None => self.look(now_ns.saturating_sub(began_ns)),
        }
    }

    /// Processes a send or receive, which ends no step but has a ticket like collectives. Returns its step; 0: not
    /// known yet.
    pub fn pass(&mut self, ticket: u32) -> u64 {
        if self.is_late || self.resumed_at.is_some() {
            return 0;
        }
        self.follow(ticket);
        self.found.map_or(0, |found| found.step + 1)
    }

    /// Whether the previous reader has already counted it.
    fn is_counted(&mut self, did: &Did) -> bool {
        let (Some(at), Some(found)) = (self.resumed_at, self.found) else {
            return false;
        };
        let is_new = (did.comm, did.function) == (found.comm, found.function) && did.sequence > at;
        if is_new {
            self.resumed_at = None;
        }
        !is_new
    }

    /// Detects lost records. The next ticket reveals a loss at once; the next sequence number of a function reveals how
    /// many were lost, maybe steps later.
    fn miss(&mut self, did: &Did) {
        self.follow(did.ticket);
        let key = (did.comm, did.function);
        let next = self.next.insert(key, did.sequence.wrapping_add(1));
        let gap = next.map_or(0, |next| did.sequence.saturating_sub(next));
        if self.next.len() > MOST_NUMBERED {
            self.next.clear();
        }
        if gap == 0 {
            return;
        }
        match self.found {
            Some(found) if found.comm == did.comm => {
                self.is_lost = true;
                self.context.clear();
            }
            Some(_) => {}
            None => *self.missed.entry(key).or_default() += gap,
        }
    }

    fn follow(&mut self, ticket: u32) {
        let last = self.ticket.replace(ticket);
        self.is_broken |= last.is_some_and(|last| ticket != last.wrapping_add(1));
    }

    fn go_on(&mut self, found: Memory, number: u16) -> Place {
        let kind = self.operations.of(number);
        if kind.is_heavy {
            self.sum = self.sum.wrapping_add(kind.class);
        }
        let mut place = Place {
            step: found.step + 1,
            ..Place::default()
        };
        if self.ends(&found, number) {
            place = Place {
                step: found.step + self.steps_since(&found),
                end: Some(match self.sum == found.usual {
                    _ if self.is_broken => End::InPart,
                    true => End::Usual,
                    false => End::Unlike,
                }),
            };
            self.ended(place.step);
        } else if self.recent.len() >= (GONE * found.items as usize).clamp(WINDOW / 8, WINDOW) {
            // Another phase of the program: search what followed the last step for the new end of steps.
            self.counted = found.step;
            self.found = None;
            self.looked = 0;
        }
        place
    }

    /// Whether the latest collective ends a step.
    fn ends(&mut self, found: &Memory, number: u16) -> bool {
        self.remember(number, found.comm);
        let kind = self.operations.of(number);
        if kind.comm != found.comm || kind.is_heavy != (found.depth > 0) {
            return false;
        }
        let from = self.context.len().checked_sub(usize::from(found.depth));
        match found.depth {
            0 => kind.hash == found.context,
            _ => from.is_some_and(|from| hash(self.context.iter().skip(from)) == found.context),
        }
    }

    /// Steps that have ended since the last recorded one. Lost records may include the end of a step.
    fn steps_since(&self, found: &Memory) -> u64 {
        let each = u64::from(found.each.max(1));
        let since = self.sequence(found).saturating_sub(found.sequence);
        if self.is_lost {
            ((since + each / 2) / each).max(1)
        } else {
            1
        }
    }

    /// The sequence number of the latest collective that may end a step.
    fn sequence(&self, found: &Memory) -> u64 {
        let next = self.next.get(&(found.comm, found.function));
        next.map_or(0, |next| next.wrapping_sub(1))
    }

    fn ended(&mut self, step: u64) {
        if let Some(mut found) = self.found {
            (found.step, found.sequence) = (step, self.sequence(&found));
            self.found = Some(found);
        }
        self.recent.clear();
        (self.sum, self.is_broken, self.is_lost) = (0, false, false);
    }

    fn look(&mut self, passed_ns: u64) -> Place {
        let due = (self.looked + self.looked / LOOK_AGAIN).max(FIRST_LOOK);
        let is_full = self.recent.len() == WINDOW && self.looked < WINDOW - WINDOW / LOOK_AGAIN;
        if passed_ns < self.patience_ns || (self.recent.len() < due && !is_full) {
            return Place::default();
        }
        self.looked = self.recent.len();
        let items: Vec<u16> = self.recent.iter().copied().collect();
        let Some(cut) = search::search(&items, &self.operations) else {
            return Place::default();
        };
        let ends = cut.ends + self.forgotten / u64::from(cut.items.max(1));
        if passed_ns / ends.max(1) < SHORTEST_NS {
            return Place::default();
        }
        self.take(&cut, &items, ends)
    }

    /// Starts to count at the latest end of a step.
    fn take(&mut self, cut: &Cut, items: &[u16], ends: u64) -> Place {
        let (before, after) = items.split_at(cut.last + 1);
        let end = self.operations.of(items[cut.last]);
        self.context.clear();
        items.iter().for_each(|item| self.remember(*item, end.comm));
        let is_of = |item: &&u16| {
            let kind = self.operations.of(**item);
            (kind.comm, kind.function) == (end.comm, end.function)
        };
        let behind = after.iter().filter(is_of).count() as u64;
        let next = self.next.get(&(end.comm, end.function)).copied().unwrap_or(0);
        let missed = self.missed.remove(&(end.comm, end.function)).unwrap_or(0);
        let each = u64::from(cut.each.max(1));
        let step = self.counted + ends + (missed + each / 2) / each;
        self.missed.clear();
        self.found = Some(Memory {
            comm: end.comm,
            context: cut.context,
            depth: cut.depth,
            function: end.function,
            each: cut.each,
            items: cut.items,
            usual: cut.usual,
            step,
            sequence: next.saturating_sub(behind + 1),
        });
        self.led = cut.led;
        self.recent.drain(..before.len());
        // The step in progress counts as incomplete.
        (self.sum, self.is_broken, self.forgotten) = (0, !after.is_empty(), 0);
        Place {
            step: step + u64::from(!after.is_empty()),
            end: after.is_empty().then_some(End::InPart),
        }
    }

    fn remember(&mut self, number: u16, comm: u64) {
        let kind = self.operations.of(number);
        if kind.comm != comm || !kind.is_heavy {
            return;
        }
        if self.context.len() == DEEPEST {
            self.context.pop_front();
        }
        self.context.push_back(kind.hash);
    }
}

#[cfg(test)]
mod tests;
