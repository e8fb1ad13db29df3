//! The last collectives that a process enqueued, by communicator, from the NCCL plugin's records. They are reported
//! when the rank makes no progress. Messages are left out, because they are numbered differently on each rank. So are
//! functions that the ring does not distinguish.

use std::collections::BTreeMap;

use paceline_health::event::{self, CommEntered, LastCollective, MAX_ENTERED};
use paceline_health::id::Rank;
use paceline_ring::{Collective, Duty, Function};

use super::ring::Ring;

/// Maximum number of communicators stored for one rank.
const MOST: usize = 256;

/// The last collectives of one process; see the module.
#[derive(Debug, Default)]
pub(super) struct Entered {
    /// For each communicator: the time of its latest collective, and the last collective of each function, latest
    /// first.
    comms: BTreeMap<u64, (u64, Vec<LastCollective>)>,
}

impl Entered {
    /// Adds an enqueued collective. A collective that a CUDA graph replays has its old number and adds nothing new.
    pub(super) fn enqueued(&mut self, did: &Collective) {
        if did.function.is_message() || did.function == Function::Other {
            return;
        }
        if self.comms.len() >= MOST && !self.comms.contains_key(&did.comm) {
            let oldest = self.comms.iter().min_by_key(|(_, (at_ns, _))| *at_ns);
            let oldest = oldest.map(|(comm, _)| *comm);
            oldest.and_then(|comm| self.comms.remove(&comm));
        }
        let last = LastCollective {
            function: did.function as u8,
            sequence: did.sequence,
            bytes: did.bytes,
        };
        let (at_ns, each) = self.comms.entry(did.comm).or_default();
        match each.iter().position(|known| known.function == last.function) {
            Some(known) if each[known].sequence == last.sequence => return,
            Some(known) => each[..=known].rotate_right(1),
            None => each.insert(0, last),
        }
        each[0] = last;
        *at_ns = did.enqueued_ns;
    }

    /// Returns the collectives of this ring's process, if its rank is one of `ranks`. Returns `None` if records were
    /// lost or the plugin has stopped, because the rank would then look as if it were behind.
    pub(super) fn of(ring: &Ring, ranks: &[(Rank, u32)], now_ns: u64) -> Option<event::Entered> {
        let attach = ring.attach.as_ref().filter(|_| ring.alive)?;
        let is_asked = ranks.contains(&(attach.rank, attach.restart));
        let is_lossy = ring.reader.dropped() > 0 || ring.reader.torn() > 0;
        let has_stopped = matches!(ring.reader.duty().1, Duty::Stopped | Duty::TookItselfOut);
        if !is_asked || is_lossy || has_stopped {
            return None;
        }
        let comms = ring.collectives.entered.comms(now_ns);
        (!comms.is_empty()).then_some(event::Entered {
            rank: attach.rank,
            restart: attach.restart,
            comms,
            whole: ring.is_from_begin,
        })
    }

    /// Returns the communicators, starting with that of the latest collective.
    fn comms(&self, now_ns: u64) -> Vec<CommEntered> {
        let mut latest: Vec<_> = self.comms.iter().collect();
        latest.sort_by_key(|(_, (at_ns, _))| std::cmp::Reverse(*at_ns));
        let latest = latest.into_iter().take(MAX_ENTERED);
        latest
            .map(|(comm, (at_ns, each))| CommEntered {
                comm: *comm,
                each: each.clone(),
                ago_ns: now_ns.saturating_sub(*at_ns),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_each_function_the_latest_first() {
        let mut entered = Entered::default();
        assert_eq!(entered.comms(0), []);
        let mut enqueue = |comm, function, sequence, enqueued_ns| {
            entered.enqueued(&Collective {
                comm,
                sequence,
                bytes: 8,
                enqueued_ns,
                function,
                ..Collective::of([0; 6])
            });
        };
        enqueue(7, Function::AllReduce, 1, 10);
        enqueue(7, Function::AllGather, 0, 20);
        enqueue(9, Function::AllReduce, 4, 30);
        enqueue(7, Function::Send, 3, 40);
        enqueue(7, Function::Other, 3, 45);
        enqueue(7, Function::AllReduce, 2, 50);
        // A CUDA graph is replayed.
        enqueue(7, Function::AllReduce, 2, 55);
        let comms = entered.comms(60);
        let words: Vec<(u64, Vec<(&str, u64)>)> = comms
            .iter()
            .map(|comm| {
                let each = comm.each.iter().map(|last| (last.name(), last.sequence));
                (comm.comm, each.collect())
            })
            .collect();
        let expected = [
            (7, vec![("all_reduce", 2), ("all_gather", 0)]),
            (9, vec![("all_reduce", 4)]),
        ];
        assert_eq!(words, expected);
        assert_eq!(comms.iter().map(|comm| comm.ago_ns).collect::<Vec<_>>(), [10, 30]);
    }
}
