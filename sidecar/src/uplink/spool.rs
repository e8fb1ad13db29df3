//! Holds events that are not safe yet. It is bounded and numbers the events. If it is full, the least valuable events
//! are dropped first and counted.

use std::collections::VecDeque;

use paceline_health::Provenance;
use paceline_health::event::Event;

use super::wire::{BATCH_BYTES, BATCH_EVENTS, Batch, Blob, MAX_EVENT_BYTES, encode_event};

/// Number of bytes that a frame needs besides its event.
const OVERHEAD_BYTES: usize = 64;

#[derive(Clone, Debug)]
struct Item {
    seq: u64,
    /// True if later frames cannot be interpreted without this one. Other frames, which are telemetry, are dropped
    /// first.
    keep: bool,
    bytes: Vec<u8>,
}

/// A queue of encoded events.
#[derive(Clone, Debug)]
pub struct Spool {
    items: VecDeque<Item>,
    bound_bytes: usize,
    bytes: usize,
    /// Sequence number of the last frame added.
    last_seq: u64,
    dropped: u64,
}

impl Spool {
    /// Creates an empty spool that never holds more than `bound_bytes`.
    pub fn new(bound_bytes: usize) -> Spool {
        Spool {
            items: VecDeque::new(),
            bound_bytes,
            bytes: 0,
            last_seq: 0,
            dropped: 0,
        }
    }

    /// Numbers an event and keeps it until it is acknowledged. Returns its number.
    pub fn push(&mut self, provenance: Provenance, event: &Event) -> u64 {
        self.last_seq += 1;
        let bytes = encode_event(provenance, event);
        if bytes.len() > MAX_EVENT_BYTES {
            // The event is too large. Drop it, because every aggregator would reject it, and all later events would
            // wait for it.
            self.dropped += 1;
            return self.last_seq;
        }
        self.bytes += bytes.len() + OVERHEAD_BYTES;
        self.items.push_back(Item {
            seq: self.last_seq,
            keep: !event.is_telemetry(),
            bytes,
        });
        while self.bytes > self.bound_bytes {
            self.drop_one();
        }
        self.last_seq
    }

    /// Drops the oldest telemetry. If there is none, drops the oldest of the rest.
    fn drop_one(&mut self) {
        let at = self.items.iter().position(|item| !item.keep).unwrap_or(0);
        if let Some(item) = self.items.remove(at) {
            self.bytes -= item.bytes.len() + OVERHEAD_BYTES;
            self.dropped += 1;
        }
    }

    /// Removes everything up to `upto`, which is safe.
    pub fn ack(&mut self, upto: u64) {
        while self.items.front().is_some_and(|item| item.seq <= upto) {
            if let Some(item) = self.items.pop_front() {
                self.bytes -= item.bytes.len() + OVERHEAD_BYTES;
            }
        }
    }

    /// Returns the next frames after `sent` without a gap, as the events of a batch: the frame before the first that is
    /// still here, the first's number, and the events. Returns `None` if there are no more frames.
    pub fn run_after(&self, sent: u64) -> Option<(u64, u64, Vec<Blob>)> {
        let start = self.items.partition_point(|item| item.seq <= sent);
        let first = self.items.get(start)?.seq;
        let after = start
            .checked_sub(1)
            .and_then(|i| self.items.get(i))
            .map_or(0, |item| item.seq);
        let mut events = Vec::new();
        let mut bytes = 0;
        for item in self.items.range(start..) {
            bytes += item.bytes.len();
            let fits = events.is_empty() || (bytes <= BATCH_BYTES && events.len() < BATCH_EVENTS);
            if item.seq != first + events.len() as u64 || !fits {
                break;
            }
            events.push(Blob(item.bytes.clone()));
        }
        Some((after, first, events))
    }

    /// Returns the last frame up to which every frame is safe or dropped. The data that they were made from is no
    /// longer needed.
    pub fn settled(&self) -> u64 {
        self.items.front().map_or(self.last_seq, |item| item.seq - 1)
    }

    /// Returns the sequence number of the last frame.
    pub fn last_seq(&self) -> u64 {
        self.last_seq
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of frames dropped because the spool was full.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

/// Returns the last sequence number of a batch.
pub fn last_seq(batch: &Batch) -> u64 {
    batch
        .first_seq
        .saturating_add(batch.events.len() as u64)
        .saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use paceline_health::event::{Beat, Exit};

    use super::*;

    fn beat() -> Event {
        Event::Beat(Beat::default())
    }

    #[test]
    fn runs_end_at_holes_and_bounds() {
        let mut spool = Spool::new(usize::MAX);
        assert_eq!(spool.run_after(0), None);
        (0..BATCH_EVENTS + 2).for_each(|_| _ = spool.push(Provenance::Live, &beat()));
        let (after, first, events) = spool.run_after(0).unwrap();
        assert_eq!((after, first, events.len()), (0, 1, BATCH_EVENTS));
        let (after, first, events) = spool.run_after(1024).unwrap();
        assert_eq!((after, first, events.len()), (1024, 1025, 2));
        spool.ack(1024);
        assert_eq!(
            spool.run_after(1024).unwrap().0,
            0,
            "nothing older is left to wait for"
        );
        assert_eq!((spool.settled(), spool.last_seq()), (1024, 1026));
        spool.ack(5000);
        assert_eq!((spool.settled(), spool.bytes), (1026, 0));
    }

    #[test]
    fn telemetry_goes_first() {
        let exit = Event::Exit(Exit { code: 0 });
        let one = encode_event(Provenance::Live, &beat()).len() + OVERHEAD_BYTES;
        let mut spool = Spool::new(4 * one);
        spool.push(Provenance::Live, &exit);
        (0..6).for_each(|_| _ = spool.push(Provenance::Live, &beat()));
        let kept: Vec<u64> = spool.items.iter().map(|item| item.seq).collect();
        assert_eq!((kept, spool.dropped()), (vec![1, 5, 6, 7], 3));
        assert_eq!(spool.run_after(0).unwrap().2.len(), 1, "the hole ends the run");
        let (after, first, _) = spool.run_after(1).unwrap();
        assert_eq!((after, first), (1, 5));
        (0..9).for_each(|_| _ = spool.push(Provenance::Live, &exit));
        assert!(
            spool.bytes <= 4 * one && spool.items.iter().all(|item| item.keep),
            "bounded at any price"
        );
    }
}
