//! Single collectives of requested communicators. For other communicators, only sums are sent.
//!
//! Their number is limited per step, and per second of one process. The event contains the number left out.

use std::collections::BTreeMap;

use paceline_health::event::{self, MOST_OF_STEP, Want};
use paceline_health::id::Rank;
use paceline_ring::{Collective, Timed};

/// Maximum number of single collectives per second of one process, and at once after a pause. Each takes about 16 bytes
/// on the wire.
const A_SECOND: u64 = 2048;
const AT_ONCE: u64 = 4096;

/// The single collectives of one step, by communicator.
#[derive(Debug, Default)]
pub(super) struct Singles(BTreeMap<u64, Vec<Single>>);

#[derive(Clone, Copy, Debug)]
struct Single {
    ticket: u32,
    /// The collective. Its duration is 0 until the GPU's times have arrived.
    did: event::Collective,
}

impl Singles {
    /// Adds an enqueued collective that will be timed.
    pub(super) fn enqueued(&mut self, did: &Collective) {
        let of_comm = self.0.entry(did.comm).or_default();
        if of_comm.len() < MOST_OF_STEP {
            let ticket = did.ticket;
            let did = event::Collective {
                function: did.function as u8,
                sequence: did.sequence,
                bytes: did.bytes,
                dur_ns: 0,
            };
            of_comm.push(Single { ticket, did });
        }
    }

    /// Adds the times of a collective on the GPU.
    pub(super) fn timed(&mut self, timed: &Timed) {
        let Some(of_comm) = self.0.get_mut(&timed.comm) else {
            return;
        };
        // Tickets increase and wrap at 2³², so compare their distance from the first one.
        let first = of_comm.first().map_or(0, |single| single.ticket);
        let behind = |ticket: u32| ticket.wrapping_sub(first);
        let place = of_comm.binary_search_by_key(&behind(timed.ticket), |single| behind(single.ticket));
        if let Some(single) = place.ok().and_then(|place| of_comm.get_mut(place)) {
            single.did.dur_ns = timed.duration_ns;
        }
    }

    /// Returns the events to send. `there_were` returns how many collectives of a communicator would have been sent
    /// without losses.
    pub(super) fn told(
        self,
        rank: Rank,
        restart: u32,
        step: u64,
        there_were: impl Fn(u64) -> u32,
    ) -> Vec<event::Collectives> {
        let told = self.0.into_iter().map(|(comm, singles)| {
            let timed = singles.iter().map(|single| single.did);
            let each: Vec<event::Collective> = timed.filter(|did| did.dur_ns > 0).collect();
            event::Collectives {
                rank,
                restart,
                step,
                comm,
                left_out: there_were(comm).saturating_sub(each.len() as u32),
                each,
            }
        });
        told.collect()
    }
}

/// Returns true if single collectives of this communicator are requested in this step.
pub(super) fn is_wanted(wants: &[Want], restart: u32, comm: u64, step: u64) -> bool {
    let is_this = |want: &Want| want.comm == comm && want.restart == restart && step <= want.until;
    wants.iter().any(is_this)
}

/// The number of single collectives that may be sent now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    left: u64,
    at_ns: u64,
}

impl Budget {
    pub(super) fn new() -> Budget {
        Budget {
            left: AT_ONCE,
            at_ns: 0,
        }
    }

    /// Adds the allowance for the time that has passed.
    pub(super) fn refill(&mut self, now_ns: u64) {
        let passed_ns = u128::from(now_ns.saturating_sub(self.at_ns));
        let more = (passed_ns * u128::from(A_SECOND) / 1_000_000_000).min(u128::from(AT_ONCE)) as u64;
        if more > 0 {
            self.left = (self.left + more).min(AT_ONCE);
            self.at_ns = now_ns;
        }
    }

    /// Takes all single collectives of a step if they fit into the budget, otherwise none of them.
    pub(super) fn take(&mut self, mut did: event::Collectives) -> event::Collectives {
        let needed = did.each.len() as u64;
        if needed > self.left {
            did.left_out = did.left_out.saturating_add(did.each.len() as u32);
            did.each.clear();
        } else {
            self.left -= needed;
        }
        did
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn did(each: usize) -> event::Collectives {
        let one = event::Collective {
            function: 1,
            sequence: 0,
            bytes: 1,
            dur_ns: 1,
        };
        event::Collectives {
            rank: Rank(0),
            restart: 0,
            step: 1,
            comm: 7,
            each: vec![one; each],
            left_out: 3,
        }
    }

    #[test]
    fn a_step_fits_or_is_counted() {
        let mut budget = Budget::new();
        budget.refill(S);
        let told = |did: event::Collectives| (did.each.len(), did.left_out);
        assert_eq!(told(budget.take(did(4000))), (4000, 3));
        assert_eq!(told(budget.take(did(100))), (0, 103));
        assert_eq!(told(budget.take(did(96))), (96, 3), "a smaller one still fits");
        // Refill in steps of a tenth of a second, which is how often rings are read.
        for tick in 1..=5 {
            budget.refill(S + tick * S / 10);
        }
        assert_eq!(told(budget.take(did(1025))), (0, 1028));
        assert_eq!(told(budget.take(did(1000))), (1000, 3));
        budget.refill(100 * S);
        assert_eq!(
            told(budget.take(did(4097))),
            (0, 4100),
            "a pause is not saved up for ever"
        );
    }

    #[test]
    fn tickets_that_begin_anew() {
        let mut singles = Singles::default();
        let tickets = [u32::MAX - 1, u32::MAX, 0, 4];
        for (sequence, ticket) in (0..).zip(tickets) {
            singles.enqueued(&Collective {
                comm: 7,
                sequence,
                ticket,
                ..Collective::default()
            });
        }
        for ticket in [0, 4, u32::MAX, 3] {
            singles.timed(&Timed {
                comm: 7,
                ticket,
                duration_ns: 100 + u64::from(ticket % 7),
                ..Timed::default()
            });
        }
        let told = singles.told(Rank(1), 0, 5, |_| 6);
        let [told] = told.as_slice() else {
            panic!("{told:?}")
        };
        let seen: Vec<(u64, u64)> = told.each.iter().map(|did| (did.sequence, did.dur_ns)).collect();
        assert_eq!(seen, [(1, 100 + u64::from(u32::MAX % 7)), (2, 100), (3, 104)]);
        assert_eq!(told.left_out, 3);
    }
}
