//! The protocol of `layout.md`: reserve, publish, read. It does not depend on where the memory is, so that loom can run
//! every interleaving (`cargo test` with `RUSTFLAGS="--cfg loom"`). No function here can panic, allocate or wait.

use crate::layout::{SLOT_WORDS, Slot, checksum};
use crate::sync::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

/// The three words of the header that writers share.
pub(crate) struct Gate<'a> {
    pub(crate) head: &'a AtomicU64,
    pub(crate) tail: &'a AtomicU64,
    pub(crate) dropped: &'a AtomicU64,
    /// Number of slots in use at which the ring counts as full: the capacity without the spare slots.
    pub(crate) room: u64,
}

impl Gate<'_> {
    /// Reserves a slot and returns its index. Returns `None` if the ring is full, and counts that.
    #[inline]
    pub(crate) fn reserve(&self) -> Option<u64> {
        let in_use = self.head.load(Relaxed).wrapping_sub(self.tail.load(Acquire));
        if in_use >= self.room {
            self.dropped.fetch_add(1, Relaxed);
            return None;
        }
        Some(self.head.fetch_add(1, Relaxed))
    }
}

/// Fills the reserved slot `index` and stores its sequence last. `word` returns the slot's words, 0 to 7.
#[inline]
pub(crate) fn publish<'a>(word: impl Fn(usize) -> &'a AtomicU64, index: u64, mut slot: Slot) {
    let sequence = index.wrapping_add(1);
    slot[1] |= u64::from(checksum(&slot, sequence));
    for (i, value) in slot.iter().enumerate().skip(1) {
        word(i).store(value.to_le(), Relaxed);
    }
    word(0).store(sequence.to_le(), Release);
}

/// Returns the slot if it is published with this sequence and complete.
pub(crate) fn read<'a>(word: impl Fn(usize) -> &'a AtomicU64, sequence: u64) -> Option<Slot> {
    if u64::from_le(word(0).load(Acquire)) != sequence {
        return None;
    }
    let mut slot: Slot = [0; SLOT_WORDS];
    for (i, value) in slot.iter_mut().enumerate() {
        *value = u64::from_le(word(i).load(Relaxed));
    }
    let stated = slot[1] as u32;
    (slot[0] == sequence && stated == checksum(&slot, sequence)).then_some(slot)
}

#[cfg(all(test, loom))]
mod tests {
    use super::*;
    use loom::sync::Arc;
    use std::collections::BTreeSet;

    /// Two writers may race past the check, so there are two spare slots.
    const CAPACITY: u64 = 4;
    const ROOM: u64 = 2;

    struct Ring {
        head: AtomicU64,
        tail: AtomicU64,
        dropped: AtomicU64,
        words: Vec<AtomicU64>,
    }

    impl Ring {
        fn new() -> Ring {
            let words = (0..CAPACITY as usize * SLOT_WORDS).map(|_| AtomicU64::new(0));
            Ring {
                head: AtomicU64::new(0),
                tail: AtomicU64::new(0),
                dropped: AtomicU64::new(0),
                words: words.collect(),
            }
        }

        fn word<'a>(&'a self, index: u64) -> impl Fn(usize) -> &'a AtomicU64 {
            let at = (index % CAPACITY) as usize * SLOT_WORDS;
            move |i| &self.words[at + i]
        }

        fn write(&self, value: u64) -> bool {
            let gate = Gate {
                head: &self.head,
                tail: &self.tail,
                dropped: &self.dropped,
                room: ROOM,
            };
            let Some(index) = gate.reserve() else { return false };
            publish(
                self.word(index),
                index,
                [0, 1 << 32, value, !value, 0, 0, 0, value],
            );
            true
        }

        /// Returns the record at the tail and releases its slot at once.
        fn take(&self) -> Option<u64> {
            let tail = self.tail.load(Relaxed);
            let slot = read(self.word(tail), tail + 1)?;
            assert_eq!((slot[2], slot[7]), (!slot[3], slot[2]), "a record in pieces");
            self.tail.store(tail + 1, Release);
            Some(slot[2])
        }
    }

    /// Two writers and a reader run at once. Each record must be read exactly once and complete, or be counted as
    /// dropped.
    #[test]
    fn nothing_is_lost_but_what_is_counted() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(5);
        model.check(|| {
            let ring = Arc::new(Ring::new());
            let writers: Vec<_> = [10, 20]
                .map(|value| {
                    let ring = ring.clone();
                    loom::thread::spawn(move || [ring.write(value), ring.write(value + 1)])
                })
                .into_iter()
                .collect();
            let mut read = Vec::new();
            read.extend(ring.take());
            read.extend(ring.take());
            let wrote: Vec<bool> = writers.into_iter().flat_map(|w| w.join().unwrap()).collect();
            while let Some(value) = ring.take() {
                read.push(value);
            }
            let published = wrote.iter().filter(|wrote| **wrote).count();
            assert_eq!(ring.dropped.load(Relaxed) as usize, wrote.len() - published);
            assert_eq!(read.len(), published);
            assert_eq!(read.iter().collect::<BTreeSet<_>>().len(), published, "{read:?}");
        });
    }
}
