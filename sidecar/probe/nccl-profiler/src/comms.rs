//! The communicators of this process. A context encodes a slot and a generation; it is never an address.
//!
//! If no hook reports steps, one communicator is the leader, and all of its members cut their windows by its
//! collectives.

use std::cmp::Reverse;
use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};

/// Maximum number of communicators at a time. Further ones are not recorded.
pub const COMMS: usize = 512;
/// The number of peers that a pipeline stage sends to and receives from. A rank with more peers, or with itself as a
/// peer, runs an all-to-all exchange. Such messages are not recorded, because they would take two records per rank.
const NEIGHBORS: usize = 2;
/// Number of words in a name.
pub const NAME: usize = 3;

/// See the module documentation.
pub struct Comms {
    all: [Comm; COMMS],
    /// Slots from this index on were never used.
    used: AtomicUsize,
    generations: AtomicU32,
    /// Context of the leader, or 0 if there is none.
    leader: AtomicU64,
    /// The id of the leader that the reader requested last.
    wanted: AtomicU64,
}

/// One communicator.
pub struct Comm {
    /// Generation of the slot; 0 if it is free, and 1 while it is being filled.
    generation: AtomicU32,
    ranks: AtomicU32,
    id: AtomicU64,
    name: [AtomicU64; NAME],
    collectives: AtomicU64,
    /// Number of collectives at the last check.
    before: AtomicU64,
    is_shared: AtomicBool,
    /// Peers of this rank, each as its rank + 1, or 0 if there is none yet.
    neighbors: [AtomicU32; NEIGHBORS],
    /// True if the rank has more peers than [`NEIGHBORS`].
    exchanges: AtomicBool,
}

/// The reported facts of a communicator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Identifies the communicator; the same on all members.
    pub id: u64,
    /// Number of members.
    pub ranks: u32,
    /// Name in UTF-8, zero padded.
    pub name: [u64; NAME],
}

impl Default for Comms {
    fn default() -> Comms {
        Comms::new()
    }
}

impl Comms {
    /// Returns an empty set of communicators.
    pub const fn new() -> Comms {
        Comms {
            all: [const { Comm::new() }; COMMS],
            used: AtomicUsize::new(0),
            generations: AtomicU32::new(1),
            leader: AtomicU64::new(0),
            wanted: AtomicU64::new(0),
        }
    }

    /// Takes a slot for a communicator. Returns its context, or `None` if all slots are taken.
    pub fn join(&self, member: Member) -> Option<*mut c_void> {
        let is_taken = |comm: &Comm| comm.generation.compare_exchange(0, 1, Acquire, Relaxed).is_ok();
        let (place, comm) = self.all.iter().enumerate().find(|(_, comm)| is_taken(comm))?;
        comm.id.store(member.id, Relaxed);
        comm.ranks.store(member.ranks, Relaxed);
        comm.collectives.store(0, Relaxed);
        comm.before.store(0, Relaxed);
        comm.is_shared.store(false, Relaxed);
        comm.exchanges.store(false, Relaxed);
        for neighbor in &comm.neighbors {
            neighbor.store(0, Relaxed);
        }
        for (word, value) in comm.name.iter().zip(member.name) {
            word.store(value, Relaxed);
        }
        self.used.fetch_max(place + 1, SeqCst);
        // The generation is never 0 or 1, whatever the counter's value.
        let generation = self.generations.fetch_add(1, Relaxed) | 1 << 31;
        // Two communicators may join at the same time. Each becomes visible before it looks for others, so at least one
        // of them sees the other.
        comm.generation.store(generation, SeqCst);
        let context = context(generation, place);
        for (other, twin) in self.living() {
            if other != context && twin.id.load(Relaxed) == member.id {
                twin.is_shared.store(true, Relaxed);
                comm.is_shared.store(true, Relaxed);
            }
        }
        // A leader that the reader chose is kept, because a larger communicator that joins later may only serve an
        // occasional barrier.
        let gives_way = |leader: &Comm| {
            leader.id.load(Relaxed) != self.wanted.load(Relaxed) && member.ranks > leader.ranks.load(Relaxed)
        };
        if !comm.is_shared() && self.leader().is_none_or(gives_way) {
            self.leader.store(context, Relaxed);
        }
        Some(context as usize as *mut c_void)
    }

    /// Returns the communicator of a context, or `None` if it has ended.
    pub fn of(&self, context: *mut c_void) -> Option<(&Comm, Member)> {
        let comm = self.at(context as usize as u64)?;
        Some((comm, comm.member()))
    }

    /// Removes a communicator. Only the first call returns its facts.
    pub fn leave(&self, context: *mut c_void) -> Option<Member> {
        let (comm, member) = self.of(context)?;
        let bits = context as usize as u64;
        comm.generation
            .compare_exchange((bits >> 16) as u32, 0, AcqRel, Relaxed)
            .ok()?;
        if self.leader.load(Relaxed) == bits && !self.elect(Comm::has_moved) {
            self.elect(|_| true);
        }
        Some(member)
    }

    /// Returns the leader's id and its number of collectives so far.
    pub fn led(&self) -> (u64, u64) {
        self.leader().map_or((0, 0), |comm| {
            (comm.id.load(Relaxed), comm.collectives.load(Relaxed))
        })
    }

    /// Makes the communicator with this id the leader. The reader requests it because it has determined which
    /// collectives make up a step. A former leader is accepted again only if it has had collectives since it was
    /// replaced.
    pub fn lead(&self, id: u64) {
        if self.leader().is_some_and(|leader| leader.id.load(Relaxed) == id) {
            self.wanted.store(id, Relaxed);
            return;
        }
        let is_new = id != self.wanted.load(Relaxed);
        let is_it = |comm: &Comm| comm.id.load(Relaxed) == id && (is_new || comm.has_moved());
        let found = self.living().find(|(_, comm)| is_it(comm));
        if let Some((context, _)) = found {
            self.wanted.store(id, Relaxed);
            self.leader.store(context, Relaxed);
        }
    }

    /// Checks the leader. Call this at intervals of more collectives than any step has. A leader that had no collective
    /// since the last call is replaced, because its windows would never end.
    pub fn look(&self) {
        if !self.leader().is_some_and(Comm::has_moved) {
            self.elect(Comm::has_moved);
        }
        for (_, comm) in self.living() {
            comm.before.store(comm.collectives.load(Relaxed), Relaxed);
        }
    }

    /// Passes each recorded communicator to `tell`.
    pub fn each(&self, mut tell: impl FnMut(Member)) {
        for (_, comm) in self.living().filter(|(_, comm)| !comm.is_shared()) {
            tell(comm.member());
        }
    }

    /// Makes the largest of the eligible communicators the leader. Among equally large ones it takes the first that
    /// joined, so all members elect the same one.
    fn elect(&self, is_fit: impl Fn(&Comm) -> bool) -> bool {
        let fit = self
            .living()
            .filter(|(_, comm)| !comm.is_shared() && is_fit(comm));
        let best = fit.max_by_key(|(context, comm)| (comm.ranks.load(Relaxed), Reverse(*context >> 16)));
        if let Some((context, _)) = best {
            self.leader.store(context, Relaxed);
        }
        best.is_some()
    }

    fn leader(&self) -> Option<&Comm> {
        self.at(self.leader.load(Relaxed))
            .filter(|comm| !comm.is_shared())
    }

    fn at(&self, context: u64) -> Option<&Comm> {
        let comm = self.all.get(((context & 0xffff) as usize).checked_sub(1)?)?;
        let generation = (context >> 16) as u32;
        (generation > 1 && comm.generation.load(Acquire) == generation).then_some(comm)
    }

    /// Returns the communicators that have joined and not left, with their contexts.
    fn living(&self) -> impl Iterator<Item = (u64, &Comm)> {
        let used = self.used.load(SeqCst);
        let places = self.all.iter().take(used).enumerate();
        places.filter_map(|(place, comm)| {
            let generation = comm.generation.load(SeqCst);
            (generation > 1).then(|| (context(generation, place), comm))
        })
    }
}

const fn context(generation: u32, place: usize) -> u64 {
    (generation as u64) << 16 | (place as u64 + 1)
}

impl Comm {
    const fn new() -> Comm {
        Comm {
            generation: AtomicU32::new(0),
            ranks: AtomicU32::new(0),
            id: AtomicU64::new(0),
            name: [const { AtomicU64::new(0) }; NAME],
            collectives: AtomicU64::new(0),
            before: AtomicU64::new(0),
            is_shared: AtomicBool::new(false),
            neighbors: [const { AtomicU32::new(0) }; NEIGHBORS],
            exchanges: AtomicBool::new(false),
        }
    }

    /// Counts a collective.
    pub fn count(&self) {
        self.collectives.fetch_add(1, Relaxed);
    }

    /// Returns true if this process holds several ranks of the communicator, one per GPU. Activity cannot be attributed
    /// to a rank then.
    pub fn is_shared(&self) -> bool {
        self.is_shared.load(Relaxed)
    }

    /// Returns true if messages between this rank, `own`, and `peer` are pipeline traffic.
    pub fn is_neighbor(&self, peer: c_int, own: c_int) -> bool {
        if self.exchanges.load(Relaxed) {
            return false;
        }
        let number = (peer.unsigned_abs()).wrapping_add(1);
        let is_it = |place: &AtomicU32| {
            let taken = place.compare_exchange(0, number, Relaxed, Relaxed);
            taken.is_ok() || taken == Err(number)
        };
        let is_neighbor = peer != own && self.neighbors.iter().any(is_it);
        if !is_neighbor {
            self.exchanges.store(true, Relaxed);
        }
        is_neighbor
    }

    fn has_moved(&self) -> bool {
        self.collectives.load(Relaxed) != self.before.load(Relaxed)
    }

    fn member(&self) -> Member {
        let [a, b, c] = &self.name;
        Member {
            id: self.id.load(Relaxed),
            ranks: self.ranks.load(Relaxed),
            name: [a.load(Relaxed), b.load(Relaxed), c.load(Relaxed)],
        }
    }
}

#[cfg(test)]
#[path = "comms_tests.rs"]
mod tests;
