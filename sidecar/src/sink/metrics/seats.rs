//! Makes the metrics' data on ranks and GPUs available to other outputs.

use paceline_health::event::{Attach, Phases};
use paceline_health::id::{GpuId, NodeId, Rank};

use serde::{Deserialize, Serialize};

use super::Metrics;
use super::gpu::gpus::Gpus;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct RankTally {
    pub node: Option<NodeId>,
    pub attach: Option<Attach>,
    pub wait_s: f64,
    pub last_step_unix_s: f64,
    pub up: bool,
    /// The last step. It is not stored in a snapshot, because the next step sets it again.
    #[serde(skip)]
    pub last: Option<LastStep>,
}

/// The place where a rank runs.
pub(in crate::sink) struct Seat<'a> {
    pub rank: Rank,
    pub node: Option<&'a NodeId>,
    pub gpu: Option<&'a GpuId>,
    /// True while the rank's process is alive.
    pub is_up: bool,
    /// The rank's last step. `None` if none was received since the aggregator started.
    pub last: Option<&'a LastStep>,
}

/// The last step received from a rank.
#[derive(Clone, Copy, Debug)]
pub(in crate::sink) struct LastStep {
    pub step: u64,
    pub dur_ns: u64,
    pub phases: Option<Phases>,
}

impl Metrics {
    /// Returns all ranks seen so far, in order.
    pub(in crate::sink) fn ranks(&self) -> impl Iterator<Item = Seat<'_>> {
        self.ranks.iter().map(|(rank, tally)| Seat {
            rank: *rank,
            node: tally.node.as_ref(),
            gpu: tally.attach.as_ref().and_then(|attach| attach.gpu.as_ref()),
            is_up: tally.up,
            last: tally.last.as_ref(),
        })
    }

    /// Returns true if every rank of the job has been seen.
    pub(in crate::sink) fn is_whole(&self) -> bool {
        let told = self.ranks.values().filter_map(|rank| rank.attach.as_ref());
        let world = told.map(|attach| attach.world_size).max().unwrap_or_default();
        world > 0 && self.ranks.len() >= world as usize
    }

    /// Returns the last readings of each GPU.
    pub(in crate::sink) fn gpus(&self) -> &Gpus {
        &self.gpus
    }
}
