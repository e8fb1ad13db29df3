//! The detector's requests for more detail, sent to a node in response to its batch. They are derived from the journal,
//! so a restarted aggregator makes the same requests. It does not need to know which requests were sent before the
//! restart.

use super::Aggregator;
use crate::uplink::pack;
use crate::uplink::wanted::Wanted;
use crate::uplink::wire::{Batch, Down, Hello, Reads};

impl Aggregator {
    /// Returns the current request if the sender of this batch has not received it yet.
    pub fn asks(&mut self, batch: &Batch) -> Option<Down> {
        let now = self.detector.asked();
        let (agent, told) = self.asked.get(&batch.node).copied().unwrap_or_default();
        let is_known = self.nodes.contains_key(&batch.node);
        if now == 0 || !is_known || (agent == batch.agent && told == now) {
            return None;
        }
        self.asked.insert(batch.node.clone(), (batch.agent, now));
        let wants = self.detector.wants_of(&batch.node);
        (!wants.is_empty()).then(|| {
            Down::Wanted(Wanted {
                job: batch.job.clone(),
                agent: batch.agent,
                wants,
            })
        })
    }

    /// Returns the optional features that an accepted sidecar may use.
    pub fn reads(&self, hello: &Hello) -> Down {
        Down::Reads(Reads {
            job: hello.job.clone(),
            agent: hello.agent,
            dictionary: pack::DICTIONARY,
        })
    }

    /// Counts an unreadable message.
    pub fn note_unreadable(&mut self) {
        self.intake.note_unreadable();
    }

    /// Handles a new connection of a sidecar. Requests on the old connection may be lost, so they are sent again.
    pub fn asks_again(&mut self, hello: &Hello) {
        self.asked.remove(&hello.node);
    }
}

#[cfg(test)]
#[path = "asks_tests.rs"]
mod tests;
