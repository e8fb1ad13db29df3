//! The collectives that are on the GPU. A handle is a ticket, never an address. An event that arrives late, twice, or
//! after its slot was reassigned does not match the slot's ticket and has no effect.
//!
//! A thread pins a slot while it works in it, and a pinned slot is not reassigned. No call here waits.

use std::ffi::c_void;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use paceline_ring::Timed;

/// Maximum number of collectives that may be enqueued and unfinished. Older ones are abandoned.
pub const SLOTS: usize = 4096;
/// Maximum number of channels, which is NCCL's MAXCHANNELS.
const CHANNELS: u8 = 64;
/// Maximum difference between the GPU's clock and the host's: a fraction of the duration (one in this many), plus a
/// fixed part.
const CLOCKS_DIFFER: u64 = 100;
const CLOCKS_DIFFER_NS: u64 = 1_000_000;
/// A slot's word: the ticket in the upper 56 bits, then the busy bit, then the number of pins.
const BUSY: u64 = 1 << 7;
const PINS: u64 = BUSY - 1;
/// Maximum number of attempts to update a contended word. Each attempt fails only because another thread succeeded.
const TRIES: usize = 64;

/// What a handle refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handle {
    /// A collective.
    Coll(u64),
    /// A collective's kernel on one channel.
    Kernel(u64, u8),
}

impl Handle {
    /// Encodes the handle in the form that NCCL stores, which is never null.
    pub fn pack(self) -> *mut c_void {
        let bits = match self {
            Handle::Coll(ticket) => ticket << 8 | 1,
            Handle::Kernel(ticket, channel) => ticket << 8 | u64::from(channel) << 2 | 2,
        };
        bits as usize as *mut c_void
    }

    /// Decodes a handle. Returns `None` if the plugin did not create it.
    pub fn unpack(handle: *mut c_void) -> Option<Handle> {
        let bits = handle as usize as u64;
        match bits & 3 {
            1 if bits & 0xfc == 0 => Some(Handle::Coll(bits >> 8)),
            2 => Some(Handle::Kernel(bits >> 8, (bits >> 2) as u8 & (CHANNELS - 1))),
            _ => None,
        }
    }
}

/// See the module documentation.
pub struct Table {
    slots: [Slot; SLOTS],
}

/// The state of one collective, in one cache line.
#[repr(align(64))]
struct Slot {
    word: AtomicU64,
    /// Channels whose kernel has started, one bit per channel.
    started: AtomicU64,
    stopped: AtomicU64,
    first_ns: AtomicU64,
    last_ns: AtomicU64,
    comm: AtomicU64,
    channels: AtomicU64,
    /// When the collective was enqueued, on the host's clock.
    enqueued_ns: AtomicU64,
}

/// The result of a claim.
#[derive(Debug, PartialEq, Eq)]
pub enum Claim {
    /// The slot now belongs to the collective.
    Taken,
    /// The slot now belongs to the collective. The previous collective in it, given here, is abandoned.
    Evicted(Timed),
    /// Another thread works in the slot, so the collective is not timed.
    Refused,
}

impl Default for Table {
    fn default() -> Table {
        Table::new()
    }
}

impl Table {
    /// Returns an empty table.
    pub const fn new() -> Table {
        Table {
            slots: [const { Slot::new() }; SLOTS],
        }
    }

    fn slot(&self, ticket: u64) -> &Slot {
        &self.slots[ticket as usize % SLOTS]
    }

    /// Takes the slot of a ticket for a collective on `channels` channels, enqueued at `now_ns`.
    pub fn claim(&self, ticket: u64, comm: u64, channels: u8, now_ns: u64) -> Claim {
        let slot = self.slot(ticket);
        let before = slot.word.load(Acquire);
        let ours = ticket << 8 | BUSY | 1;
        let is_free = before & PINS == 0;
        if !is_free
            || slot
                .word
                .compare_exchange(before, ours, Acquire, Relaxed)
                .is_err()
        {
            return Claim::Refused;
        }
        let evicted = (before & BUSY != 0).then(|| slot.given_up(before >> 8));
        slot.started.store(0, Relaxed);
        slot.stopped.store(0, Relaxed);
        slot.first_ns.store(u64::MAX, Relaxed);
        slot.last_ns.store(0, Relaxed);
        slot.comm.store(comm, Relaxed);
        slot.channels.store(u64::from(channels), Relaxed);
        slot.enqueued_ns.store(now_ns, Relaxed);
        // A plain store is enough: no other thread changes the word of a pinned slot whose ticket is not published yet.
        slot.word.store(ours - 1, Release);
        evicted.map_or(Claim::Taken, Claim::Evicted)
    }

    /// Records the start of a kernel on a channel. Returns false if it was reported before, or if the collective is not
    /// in the table.
    pub fn start(&self, ticket: u64, channel: u8, at_ns: u64) -> bool {
        if channel >= CHANNELS {
            return false;
        }
        let Some(pin) = self.pin(ticket) else { return false };
        let bit = 1 << channel;
        if pin.slot.started.fetch_or(bit, Relaxed) & bit != 0 {
            return false;
        }
        pin.slot.first_ns.fetch_min(at_ns, Relaxed);
        true
    }

    /// Records the GPU's time at the end of the kernel.
    pub fn ends(&self, ticket: u64, channel: u8, at_ns: u64) {
        let Some(pin) = self.pin(ticket) else { return };
        if pin.slot.stopped.load(Relaxed) & (1 << channel) == 0 {
            pin.slot.last_ns.fetch_max(at_ns, Relaxed);
        }
    }

    /// Records the end of the kernel on a channel. Returns the collective's times if that was the last channel. The
    /// duration is 0 if it exceeds the time since the collective was enqueued, because the times then belong to another
    /// collective.
    pub fn stop(&self, ticket: u64, channel: u8, now_ns: impl FnOnce() -> u64) -> Option<Timed> {
        let pin = self.pin(ticket)?;
        let slot = pin.slot;
        let bit = 1 << channel;
        if slot.started.load(Relaxed) & bit == 0 {
            return None;
        }
        // Each channel's times were written before its bit was set, so a thread that sees all bits sees all times.
        let before = slot.stopped.fetch_or(bit, AcqRel);
        let channels = (before | bit).count_ones();
        if before & bit != 0 || u64::from(channels) != slot.channels.load(Relaxed) {
            return None;
        }
        slot.word.fetch_and(!BUSY, Relaxed);
        let first = slot.first_ns.load(Relaxed);
        let duration_ns = slot.last_ns.load(Relaxed).saturating_sub(first);
        let passed_ns = now_ns().saturating_sub(slot.enqueued_ns.load(Relaxed));
        let longest_ns = passed_ns + passed_ns / CLOCKS_DIFFER + CLOCKS_DIFFER_NS;
        Some(Timed {
            comm: slot.comm.load(Relaxed),
            start_ns: first,
            duration_ns: if duration_ns <= longest_ns { duration_ns } else { 0 },
            ticket: ticket as u32,
            channels: channels as u8,
        })
    }

    /// Abandons the remaining collectives of a communicator that ends. One operation clears the busy bit and pins the
    /// slot, so no other thread takes it meanwhile and nothing is reported twice.
    pub fn forget(&self, comm: u64, mut tell: impl FnMut(Timed)) {
        for slot in &self.slots {
            let before = slot.word.load(Acquire);
            let is_left = before & (BUSY | PINS) == BUSY && slot.comm.load(Relaxed) == comm;
            if is_left
                && slot
                    .word
                    .compare_exchange(before, (before & !BUSY) | 1, Acquire, Relaxed)
                    .is_ok()
            {
                let _pin = Pin { slot };
                tell(slot.given_up(before >> 8));
            }
        }
    }

    fn pin(&self, ticket: u64) -> Option<Pin<'_>> {
        let slot = self.slot(ticket);
        let mut word = slot.word.load(Relaxed);
        for _ in 0..TRIES {
            if word >> 8 != ticket || word & BUSY == 0 || word & PINS == PINS {
                return None;
            }
            match slot.word.compare_exchange_weak(word, word + 1, Acquire, Relaxed) {
                Ok(_) => return Some(Pin { slot }),
                Err(now) => word = now,
            }
        }
        None
    }
}

impl Slot {
    const fn new() -> Slot {
        Slot {
            word: AtomicU64::new(0),
            started: AtomicU64::new(0),
            stopped: AtomicU64::new(0),
            first_ns: AtomicU64::new(0),
            last_ns: AtomicU64::new(0),
            comm: AtomicU64::new(0),
            channels: AtomicU64::new(0),
            enqueued_ns: AtomicU64::new(0),
        }
    }

    /// Returns the report of a collective whose channels did not all end.
    fn given_up(&self, ticket: u64) -> Timed {
        Timed {
            comm: self.comm.load(Relaxed),
            start_ns: self.first_ns.load(Relaxed),
            duration_ns: 0,
            ticket: ticket as u32,
            channels: self.stopped.load(Relaxed).count_ones() as u8,
        }
    }
}

/// Pins a slot, so that it cannot be reassigned while this value exists.
struct Pin<'a> {
    slot: &'a Slot,
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.slot.word.fetch_sub(1, Release);
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
