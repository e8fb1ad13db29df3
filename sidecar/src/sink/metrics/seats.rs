//! What the metrics know of ranks and GPUs, for those who show it in another way.

use paceline_health::id::{GpuId, NodeId, Rank};

use super::Metrics;
use super::gpus::Gpus;

/// Where a rank runs.
pub(in crate::sink) struct Seat<'a> {
    pub rank: Rank,
    pub node: Option<&'a NodeId>,
    pub gpu: Option<&'a GpuId>,
    /// Its process lives.
    pub is_up: bool,
}

impl Metrics {
    /// The ranks that were ever heard of, in order.
    pub(in crate::sink) fn ranks(&self) -> impl Iterator<Item = Seat<'_>> {
        self.ranks.iter().map(|(rank, tally)| Seat {
            rank: *rank,
            node: tally.node.as_ref(),
            gpu: tally.attach.as_ref().and_then(|attach| attach.gpu.as_ref()),
            is_up: tally.up,
        })
    }

    /// What was last read of each GPU.
    pub(in crate::sink) fn gpus(&self) -> &Gpus {
        &self.gpus
    }
}
