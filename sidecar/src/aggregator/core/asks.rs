//! What the detector wants to know more exactly, for the node that has just spoken. It follows from the journal, so an
//! aggregator that was started again asks the same; what it asked before is in nobody's journal and needs not be.

use super::Aggregator;
use crate::uplink::pack;
use crate::uplink::wanted::Wanted;
use crate::uplink::wire::{Batch, Down, Hello, Reads};

impl Aggregator {
    /// What is asked of the sender of a batch, if that is something new to it.
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

    /// What a sidecar that is welcome may do beside what every version does.
    pub fn reads(&self, hello: &Hello) -> Down {
        Down::Reads(Reads {
            job: hello.job.clone(),
            agent: hello.agent,
            dictionary: pack::DICTIONARY,
        })
    }

    /// A message came of which nothing can be read.
    pub fn note_unreadable(&mut self) {
        self.intake.note_unreadable();
    }

    /// A link was made anew: what was asked on the old one may be lost.
    pub fn asks_again(&mut self, hello: &Hello) {
        self.asked.remove(&hello.node);
    }
}

#[cfg(test)]
#[path = "asks_tests.rs"]
mod tests;
