//! Sends and receives of one communicator in one step.
//!
//! In a pipeline, their times show how long a stage waits for its neighbors. Other patterns do not count: ring
//! attention passes blocks in one direction during compute, and in a gather every rank but the root only sends. NCCL
//! may never report the time of a message, so the times of messages are awaited for fewer steps than those of
//! collectives.

use std::collections::BTreeSet;

use paceline_ring::{Collective, Function};

use super::sum::Sum;

/// Number of later steps for which the times of messages are awaited.
pub(super) const MAX_STEPS: usize = 4;

/// The sum of the messages, and the peers' ranks in the communicator.
#[derive(Debug, Default)]
pub(super) struct Messages {
    pub(super) sum: Sum,
    sent_to: BTreeSet<u64>,
    received_from: BTreeSet<u64>,
}

impl Messages {
    /// Adds an enqueued message.
    pub(super) fn enqueued(&mut self, did: &Collective) {
        self.sum.enqueued(did.bytes);
        let peers = match did.function {
            Function::Send => &mut self.sent_to,
            _ => &mut self.received_from,
        };
        peers.insert(did.sequence);
    }

    /// Returns true if the messages belong to a pipeline. A stage of a pipeline receives from each rank that it sends
    /// to: activations flow in one direction and gradients in the other.
    pub(super) fn are_of_a_pipeline(&self) -> bool {
        !self.sent_to.is_empty() && self.sent_to == self.received_from
    }
}
