//! Steps found in the sequence of collectives, where nobody tells them.
//!
//! A training program repeats itself. What ends a step is a collective that comes once in each repetition, known by the
//! few before it in its own communicator. Every member of a communicator sees the same sequence in it, so all cut at
//! the same collectives; they count from the communicator's beginning and from the numbers that NCCL gives, never by a
//! clock.
//!
//! What it cannot know: which of several levels that repeat is the optimizer's step. It takes the longest in which
//! large collectives repeat; of a program that does nothing large but the same collective over and over each is a step.

use std::collections::{BTreeMap, VecDeque};

mod operations;
mod search;

use operations::{Operations, hash};
use search::Cut;

/// Functions that reduce, as the ring numbers them (`sidecar/probe/ring/layout.md`).
const ALL_REDUCE: u8 = 1;
const REDUCE_SCATTER: u8 = 2;
/// Collectives that are looked back over: a step may have a sixth of them.
const WINDOW: usize = 1 << 15;
/// Collectives of a communicator that tell one place in the step from another, at most.
const DEEPEST: usize = 16;
/// The first look, and how much more must have come for another, as a divisor.
const FIRST_LOOK: usize = 16;
const LOOK_AGAIN: usize = 8;
/// Communicators and functions whose numbers are followed at a time.
const MOST_NUMBERED: usize = 1 << 12;
/// A step that is shorter is none, but a part of one.
const SHORTEST_NS: u64 = 2_000_000;
/// What ended steps is gone for good when it has not come for so many of them.
const GONE: usize = 64;

/// A collective that a rank enqueued.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Did {
    /// The communicator, and ranks in it.
    pub comm: u64,
    /// See `comm`.
    pub ranks: u32,
    /// What it does, as the ring numbers it: 1 all-reduce, 2 reduce-scatter, 3 all-gather.
    pub function: u8,
    /// Its size.
    pub bytes: u64,
    /// Its number among those of its function in the communicator.
    pub sequence: u64,
    /// Its number in this process, modulo 2³²: one that is missing was lost.
    pub ticket: u32,
    /// Large enough to be part of what a step is; small ones (losses, norms) may end one, and come when they like.
    pub is_heavy: bool,
}

/// Where a collective stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The step, from 1; 0: not known yet.
    pub step: u64,
    /// It is the last one of its step.
    pub end: Option<End>,
}

/// How the communicator with the most ranks counts steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Led {
    /// The communicator.
    pub comm: u64,
    /// Its collectives in a step; 0: not known.
    pub of_step: u32,
}

/// What can be said of a step that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It had the large collectives that steps have.
    Usual,
    /// It had others: an evaluation, a warm-up.
    Unlike,
    /// Not all of it was seen.
    InPart,
}

/// What a reader that takes over needs to count on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// What ends a step: its communicator, the hash of the collectives that tell it, and how many these are.
    pub comm: u64,
    /// See `comm`.
    pub context: u64,
    /// See `comm`.
    pub depth: u8,
    /// Function of the collective that ends a step.
    pub function: u8,
    /// How many of that function in that communicator a step has.
    pub each: u16,
    /// Collectives in a step.
    pub items: u32,
    /// Hash of the large collectives in a step.
    pub usual: u64,
    /// The last step that ended, and the number of the collective that ended it.
    pub step: u64,
    /// See `step`.
    pub sequence: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Cadence {
    patience_ns: u64,
    began_ns: Option<u64>,
    /// It was not there from the beginning, and nobody told it what had been.
    is_late: bool,
    operations: Operations,
    /// Since the last step that ended, or from the beginning.
    recent: VecDeque<u16>,
    /// Those that no longer fit there.
    forgotten: u64,
    looked: usize,
    /// The one that came last.
    ticket: Option<u32>,
    /// By communicator and function: the number that comes next.
    next: BTreeMap<(u64, u8), u64>,
    /// How many of them were lost before steps were found.
    missed: BTreeMap<(u64, u8), u64>,
    /// Some of those that may end a step were lost since the last one ended.
    is_lost: bool,
    /// Heavy collectives of the communicator in which steps end, the latest last.
    context: VecDeque<u64>,
    found: Option<Memory>,
    /// Steps before `recent` begins.
    counted: u64,
    led: Led,
    /// Of the step that goes on: hash of its large collectives, and whether some are missing.
    sum: u64,
    is_broken: bool,
    /// Up to this number another reader has counted already.
    resumed_at: Option<u64>,
}

impl Cadence {
    /// Starts without steps. Steps are reported once a sequence has repeated several times and `patience_ns` have
    /// passed since the first collective, so that a repetition within one long step is not taken for the step.
    pub fn new(patience_ns: u64) -> Cadence {
        Cadence {
            patience_ns,
            ..Cadence::default()
        }
    }

    /// Counts on from what another reader knew. The step in which it begins is not a usual one.
    pub fn resume(&mut self, memory: Memory) {
        self.next
            .insert((memory.comm, memory.function), memory.sequence + 1);
        self.resumed_at = Some(memory.sequence);
        self.found = Some(memory);
        (self.is_broken, self.is_lost) = (true, true);
    }

    /// Says that what comes first is not the beginning: without [`Cadence::resume`] no steps can be told.
    pub fn comes_late(&mut self) {
        self.is_late = self.found.is_none();
    }

    /// What another reader would need; `None` until steps are told.
    pub fn memory(&self) -> Option<Memory> {
        self.found
    }

    /// How many collectives a step has in its largest communicator.
    pub fn led(&self) -> Led {
        self.led
    }

    /// Takes the next collective of this rank, in the order in which it enqueued them.
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

    /// A send or receive, which ends no step and has a ticket as collectives have. Gives the step that it is in; 0: not
    /// known yet.
    pub fn pass(&mut self, ticket: u32) -> u64 {
        if self.is_late || self.resumed_at.is_some() {
            return 0;
        }
        self.follow(ticket);
        self.found.map_or(0, |found| found.step + 1)
    }

    /// Whether the reader before this one has counted it.
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

    /// Records may be lost. The next ticket says so at once; how many of a function, its next number, maybe steps
    /// later.
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
            // Another phase of the program: what there was since the last step ended says what ends them now.
            self.counted = found.step;
            self.found = None;
            self.looked = 0;
        }
        place
    }

    /// Whether a step ends with the collective that came last.
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

    /// How many steps have ended since the last one that was seen to. A record that was lost may have ended some.
    fn steps_since(&self, found: &Memory) -> u64 {
        let each = u64::from(found.each.max(1));
        let since = self.sequence(found).saturating_sub(found.sequence);
        if self.is_lost {
            ((since + each / 2) / each).max(1)
        } else {
            1
        }
    }

    /// The number of the latest of those that may end a step.
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

    /// Steps are told from the last collective on that ended one.
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
        // The step in which this was found out counts as one of which not all was told.
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
