//! Sends and receives of one communicator in one step.
//!
//! Those of a pipeline tell for whom its stages wait. Others do not: a ring passes its blocks on beside the work, and who
//! gathers something only receives. NCCL may never give their times, so they are not waited for as long as collectives.

use std::collections::BTreeSet;

use paceline_health::event;
use paceline_health::id::Rank;
use paceline_ring::{Collective, Function};

/// Later steps that times of messages are waited for.
pub(super) const MAX_STEPS: usize = 4;

/// What was enqueued, and what of it has been timed.
#[derive(Debug, Default)]
pub(super) struct Messages {
    enqueued: u32,
    timed: u32,
    bytes: u64,
    dur_ns: u64,
    /// Ranks of the communicator.
    sent_to: BTreeSet<u64>,
    received_from: BTreeSet<u64>,
}

impl Messages {
    /// A message was enqueued.
    pub(super) fn enqueued(&mut self, did: &Collective) {
        self.enqueued += 1;
        self.bytes = self.bytes.saturating_add(did.bytes);
        let peers = match did.function {
            Function::Send => &mut self.sent_to,
            _ => &mut self.received_from,
        };
        peers.insert(did.sequence);
    }

    /// The GPU's time of one has come.
    pub(super) fn timed(&mut self, duration_ns: u64) {
        self.timed += 1;
        self.dur_ns = self.dur_ns.saturating_add(duration_ns);
    }

    /// A stage receives from each rank that it sends to: activations go one way and gradients the other.
    pub(super) fn are_of_a_pipeline(&self) -> bool {
        !self.sent_to.is_empty() && self.sent_to == self.received_from
    }

    /// All of them have their times.
    pub(super) fn are_timed(&self) -> bool {
        self.timed == self.enqueued
    }

    /// As the sum of a communicator, whose step and members are to be filled in. `covered_ns`: what they took together.
    pub(super) fn sum(&self, covered_ns: Option<u64>) -> event::Comm {
        event::Comm {
            rank: Rank(0),
            restart: 0,
            step: 0,
            comm: 0,
            collectives: self.enqueued,
            bytes: self.bytes,
            dur_ns: covered_ns.unwrap_or(self.dur_ns),
            exposed_ns: None,
            unfit: self.enqueued,
            gpu: true,
            functions: Vec::new(),
        }
    }
}
