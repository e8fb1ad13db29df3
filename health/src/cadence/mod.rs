//! Finds step boundaries in the sequence of collectives when the program does not report its steps.
//!
//! A training program repeats itself. A step ends with a collective that occurs once per repetition and is identified
//! by the few collectives before it in its own communicator. All members of a communicator see the same sequence in it,
//! so all of them end their steps at the same collectives. Collectives are counted from the start of the communicator
//! by NCCL's sequence numbers. No clock is used.
//!
//! Limit: this module cannot know which of several nested repetitions is the optimizer step. It takes the longest one
//! in which large collectives repeat. If a program's only large collective repeats over and over, each occurrence
//! counts as a step.

use std::collections::{BTreeMap, VecDeque};

mod operations;
mod search;

use operations::{Operations, hash};
use search::Cut;

/// Numbers in the ring of the functions that reduce (`sidecar/probe/ring/layout.md`).
const ALL_REDUCE: u8 = 1;
const REDUCE_SCATTER: u8 = 2;
/// Number of collectives in the search window. A step can have at most a sixth of that number.
const WINDOW: usize = 1 << 15;
/// Most collectives of a communicator that identify a position in the step.
const DEEPEST: usize = 16;
/// The first search starts after this many collectives. The next constant is a divisor: the next search starts when the
/// sequence has grown by that fraction.
const FIRST_LOOK: usize = 16;
const LOOK_AGAIN: usize = 8;
/// Most pairs of communicator and function whose sequence numbers are tracked.
const MOST_NUMBERED: usize = 1 << 12;
/// Minimum length of a step. A shorter repetition is only a part of a step.
const SHORTEST_NS: u64 = 2_000_000;
/// If the collective that ends steps has not occurred for this many steps, the program has entered another phase.
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
    /// True if it is large enough to characterize a step. Small collectives (losses, norms) can occur at any time; one
    /// of them may end a step.
    pub is_heavy: bool,
}

/// The position of a collective.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The step, from 1. Zero means that it is not known yet.
    pub step: u64,
    /// Set on the last collective of a step.
    pub end: Option<End>,
}

/// The communicator with the most ranks, and its collectives per step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Led {
    /// The communicator.
    pub comm: u64,
    /// Its collectives per step. Zero means that the number is not known.
    pub of_step: u32,
}

/// How a step that ended compares with the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The step had the usual large collectives.
    Usual,
    /// The step had different large collectives, for example because it was an evaluation or a warm-up.
    Unlike,
    /// Some of the step's records are missing.
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

/// Finds steps, as the module's documentation describes.
#[derive(Debug, Default)]
pub struct Cadence {
    patience_ns: u64,
    began_ns: Option<u64>,
    /// True if the first records are missing and there is no state from an earlier reader.
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
    /// True if collectives that may end a step were lost since the last step ended.
    is_lost: bool,
    /// Heavy collectives of the communicator in which steps end, latest last.
    context: VecDeque<u64>,
    found: Option<Memory>,
    /// Steps before the start of `recent`.
    counted: u64,
    led: Led,
    /// Hash of the large collectives of the current step, and whether some of them are missing.
    sum: u64,
    is_broken: bool,
    /// The sequence number up to which another reader has already counted.
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

    /// Records that the first records are missing. Unless [`Cadence::resume`] is called as well, no steps are found
    /// then.
    pub fn comes_late(&mut self) {
        self.is_late = self.found.is_none();
    }

    /// Returns the state for another reader, or `None` until steps are found.
    pub fn memory(&self) -> Option<Memory> {
        self.found
    }

    /// Returns the largest communicator of a step, and its collectives per step.
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

    /// Processes a send or receive, which cannot end a step but has a ticket as collectives do. Returns its step, or 0
    /// if the step is not known yet.
    pub fn pass(&mut self, ticket: u32) -> u64 {
        if self.is_late || self.resumed_at.is_some() {
            return 0;
        }
        self.follow(ticket);
        self.found.map_or(0, |found| found.step + 1)
    }

    /// Returns true if the previous reader has already counted this collective.
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

    /// Detects lost records. A gap before the next ticket shows a loss at once. How many collectives of a function were
    /// lost is known only from that function's next sequence number, which may come several steps later.
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
            // The program has entered another phase. Search the collectives after the last step for the new end of
            // steps.
            self.counted = found.step;
            self.found = None;
            self.looked = 0;
        }
        place
    }

    /// Returns true if the latest collective ends a step.
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

    /// Returns how many steps have ended since the last recorded one. This includes steps whose last collective was
    /// lost.
    fn steps_since(&self, found: &Memory) -> u64 {
        let each = u64::from(found.each.max(1));
        let since = self.sequence(found).saturating_sub(found.sequence);
        if self.is_lost {
            ((since + each / 2) / each).max(1)
        } else {
            1
        }
    }

    /// Returns the sequence number of the latest collective that may end a step.
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

    /// Starts counting at the latest end of a step.
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
