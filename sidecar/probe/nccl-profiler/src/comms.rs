//! The communicators of this process. A context is a place and a generation, never an address.

use std::ffi::c_void;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Communicators at once; more are not watched.
pub const COMMS: usize = 512;
/// Words of a name.
pub const NAME: usize = 3;

/// See the module.
pub struct Comms {
    all: [Comm; COMMS],
    generations: AtomicU32,
    /// Ranks of the largest communicator so far, and its place: all of its members sample by its collectives.
    leader: AtomicU64,
}

/// One of them.
pub struct Comm {
    /// 0: free; 1: being filled.
    generation: AtomicU32,
    ranks: AtomicU32,
    id: AtomicU64,
    name: [AtomicU64; NAME],
    collectives: AtomicU64,
}

/// What is told of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// The same number on all members.
    pub id: u64,
    /// Members.
    pub ranks: u32,
    /// UTF-8, zero padded.
    pub name: [u64; NAME],
}

impl Default for Comms {
    fn default() -> Comms {
        Comms::new()
    }
}

impl Comms {
    /// None.
    pub const fn new() -> Comms {
        Comms {
            all: [const { Comm::new() }; COMMS],
            generations: AtomicU32::new(1),
            leader: AtomicU64::new(0),
        }
    }

    /// Takes a place; `None` when all are taken.
    pub fn join(&self, member: Member) -> Option<*mut c_void> {
        for (place, comm) in self.all.iter().enumerate() {
            if comm.generation.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
                continue;
            }
            comm.id.store(member.id, Relaxed);
            comm.ranks.store(member.ranks, Relaxed);
            comm.collectives.store(0, Relaxed);
            for (word, value) in comm.name.iter().zip(member.name) {
                word.store(value, Relaxed);
            }
            // Never 0 or 1, whatever the count comes to.
            let generation = self.generations.fetch_add(1, Relaxed) | 1 << 31;
            comm.generation.store(generation, Release);
            let size = u64::from(member.ranks) << 32;
            let largest = self.leader.load(Relaxed) >> 32 << 32;
            if size > largest {
                self.leader.fetch_max(size | place as u64, Relaxed);
            }
            let context = u64::from(generation) << 16 | (place as u64 + 1);
            return Some(context as usize as *mut c_void);
        }
        None
    }

    /// The communicator of a context, unless it has ended.
    pub fn of(&self, context: *mut c_void) -> Option<(&Comm, Member)> {
        let bits = context as usize as u64;
        let place = (bits & 0xffff).checked_sub(1)?;
        let comm = self.all.get(place as usize)?;
        let generation = (bits >> 16) as u32;
        if generation <= 1 || comm.generation.load(Acquire) != generation {
            return None;
        }
        Some((comm, comm.member()))
    }

    /// Ends one; gives what it was, the first time.
    pub fn leave(&self, context: *mut c_void) -> Option<Member> {
        let (comm, member) = self.of(context)?;
        let generation = (context as usize as u64 >> 16) as u32;
        comm.generation
            .compare_exchange(generation, 0, AcqRel, Relaxed)
            .ok()?;
        Some(member)
    }

    /// Collectives of the largest communicator so far.
    pub fn led(&self) -> u64 {
        let place = self.leader.load(Relaxed) & 0xffff_ffff;
        self.all
            .get(place as usize)
            .map_or(0, |comm| comm.collectives.load(Relaxed))
    }

    /// All that there are.
    pub fn each(&self, mut tell: impl FnMut(Member)) {
        for comm in &self.all {
            if comm.generation.load(Acquire) > 1 {
                tell(comm.member());
            }
        }
    }
}

impl Comm {
    const fn new() -> Comm {
        Comm {
            generation: AtomicU32::new(0),
            ranks: AtomicU32::new(0),
            id: AtomicU64::new(0),
            name: [const { AtomicU64::new(0) }; NAME],
            collectives: AtomicU64::new(0),
        }
    }

    /// Counts a collective.
    pub fn count(&self) {
        self.collectives.fetch_add(1, Relaxed);
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
mod tests {
    use super::*;

    fn member(id: u64, ranks: u32) -> Member {
        Member {
            id,
            ranks,
            name: [1, 2, 3],
        }
    }

    #[test]
    fn a_context_ends_once_and_is_stale_then() {
        let comms = Box::new(Comms::new());
        let context = comms.join(member(7, 4)).unwrap();
        assert_eq!(comms.of(context).map(|(_, found)| found), Some(member(7, 4)));
        assert_eq!(comms.leave(context), Some(member(7, 4)));
        assert_eq!(comms.leave(context), None);
        assert!(comms.of(context).is_none());
        let next = comms.join(member(8, 4)).unwrap();
        assert_ne!(next, context, "the same place, another generation");
        assert!(comms.of(context).is_none() && comms.of(next).is_some());
        for foreign in [0usize, 1, 0xffff, 0xdead_beef_0001] {
            assert!(comms.of(foreign as *mut c_void).is_none());
        }
    }

    #[test]
    fn the_largest_leads_and_more_than_fit_are_refused() {
        let comms = Box::new(Comms::new());
        let small = comms.join(member(1, 2)).unwrap();
        let large = comms.join(member(2, 8)).unwrap();
        let other = comms.join(member(3, 8)).unwrap();
        for (context, times) in [(small, 3), (large, 5), (other, 7)] {
            (0..times).for_each(|_| comms.of(context).unwrap().0.count());
        }
        assert_eq!(comms.led(), 5, "the first of the largest");
        for id in 3..COMMS as u64 {
            assert!(comms.join(member(id, 2)).is_some());
        }
        assert_eq!(comms.join(member(9, 2)), None);
        let mut told = 0;
        comms.each(|_| told += 1);
        assert_eq!(told, COMMS);
    }
}
