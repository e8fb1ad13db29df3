//! Faults of a world. `parse` reads their text form, for example `slow rank=3 factor=1.25 from=100 until=400`.
//!
//! Plain numbers for `from` and `until` are steps, numbers with a unit are times since the first frame.

pub(crate) mod costs;
pub(crate) mod drag;
mod parse;
pub mod truth;

use serde::{Deserialize, Serialize};

use super::spec::shape::{Target, When};
use crate::verdict::Cause;

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Fault {
    /// Ranks are slower: `slow rank=3 factor=1.25 from=100 until=400 cause=thermal`. Instead of a rank, the target can
    /// be `node=1`, `rack=0` or `rank=all`. Self-time is multiplied by the factor, and the counters of the cause change
    /// as on real machines. With `cause=nvlink` and `cause=network` the factor applies to the transfers of the rank or
    /// node instead.
    Slow {
        /// Its first target.
        on: Target,
        /// The factor by which self-time or transfer time is multiplied.
        factor: f64,
        /// Its time range.
        when: When,
        /// The cause. With `unknown`, no counter shows it.
        cause: Cause,
        /// The micro-batch that contains the delay, from 0. With `None`, the delay is spread over all work.
        #[serde(default)]
        micro: Option<u32>,
    },
    /// A rank has occasional slow steps: `spikes rank=2 share=0.05 factor=3`.
    Spikes {
        /// The rank, or `None` for all ranks.
        rank: Option<u32>,
        /// Share of slow steps.
        share: f64,
        /// The factor by which they are slower.
        factor: f64,
    },
    /// A rank stalls during its compute: `silent rank=2 from=50`, forever or `for=10s`. With `rank=all` the collective
    /// itself never ends, and no rank is behind.
    Silent {
        /// The rank, or `None` for all ranks.
        rank: Option<u32>,
        /// The step that it does not finish.
        from: u64,
        /// Duration of the stall, in seconds. `None` if it lasts forever.
        for_s: Option<f64>,
    },
    /// A GPU heats up, throttles and slows its rank: `heat gpu=3 from=60s until=300s`.
    Heat {
        /// The GPU, counted over all nodes.
        gpu: u32,
        /// When it begins to heat up.
        from_s: f64,
        /// When it begins to cool down.
        until_s: Option<f64>,
    },
    /// A GPU runs hot without being slow: `warm gpu=3 from=60s`.
    Warm {
        /// The GPU, counted over all nodes.
        gpu: u32,
        /// When it begins to warm up.
        from_s: f64,
        /// When it begins to cool down.
        until_s: Option<f64>,
    },
    /// Transfers between two nodes take longer, or between one and all others: `link node=1 peer=2 factor=4`.
    Link {
        /// The first node.
        node: u32,
        /// The second node, or `None` for all other nodes.
        peer: Option<u32>,
        /// The factor by which transfer time is multiplied.
        factor: f64,
        /// Its time range.
        when: When,
    },
    /// A rank writes its checkpoints slowly, but is otherwise as fast as its peers: `checkpoint-slow rank=2 factor=3`.
    CheckpointSlow {
        /// The rank.
        rank: u32,
        /// The factor by which its checkpoints take longer.
        factor: f64,
        /// Its time range.
        when: When,
    },
    /// A rank warms up slowly, but is then as fast as its peers: `warm-up-slow rank=2 factor=3`, or `rank=all`.
    WarmUpSlow {
        /// The rank, or `None` for all ranks.
        rank: Option<u32>,
        /// The factor by which its first steps take longer.
        factor: f64,
    },
    /// The job itself becomes slower, equally on all ranks: `regress factor=1.1 from=500`. If it begins with the first
    /// step after a restart, it looks like a changed program.
    Regress {
        /// The factor by which self-time is multiplied.
        factor: f64,
        /// First slow step.
        from: u64,
    },
    /// Every rank is slow from the first step on, and only a baseline reveals it: `birth factor=1.2`.
    Birth {
        /// The factor by which self-time is multiplied.
        factor: f64,
    },
    /// A node has another driver than the others: `skew node=1`.
    Skew {
        /// The node.
        node: u32,
    },
    /// A node's sidecar disappears, and later a new one starts: `gap node=1 from=20s for=10s`. The steps in between are
    /// lost, or stay in their rings with `steps=kept`.
    Gap {
        /// The node.
        node: u32,
        /// When the sidecar disappears.
        from_s: f64,
        /// Time until the new sidecar starts, in seconds. `None` if none starts.
        for_s: Option<f64>,
        /// True if the steps stay in their rings.
        kept: bool,
    },
    /// A node's link stalls, and its data arrives in one burst afterwards: `hold node=1 from=20s for=10s`.
    Hold {
        /// The node.
        node: u32,
        /// When the link stalls.
        from_s: f64,
        /// Duration, seconds.
        for_s: f64,
    },
    /// All data of a rank arrives late: `late rank=3 by=5s`.
    Late {
        /// The rank.
        rank: u32,
        /// Delay, seconds.
        by_s: f64,
    },
    /// Steps, readings and beats are lost in transit: `loss share=0.1`.
    Loss {
        /// Share of the frames.
        share: f64,
    },
    /// Frames are reordered, by up to a second: `reorder share=0.1`.
    Reorder {
        /// Share of the frames.
        share: f64,
    },
    /// Frames are duplicated: `repeat share=0.1`.
    Repeat {
        /// Share of the frames.
        share: f64,
    },
}

impl Fault {
    /// Returns its target as key and number: rank, GPU, node or rack.
    pub(super) fn names(&self) -> Option<(&'static str, u32)> {
        match *self {
            Fault::Slow { on, .. } => on.names(),
            Fault::Spikes { rank, .. } | Fault::Silent { rank, .. } | Fault::WarmUpSlow { rank, .. } => {
                rank.map(|rank| ("rank", rank))
            }
            Fault::Late { rank, .. } | Fault::CheckpointSlow { rank, .. } => Some(("rank", rank)),
            Fault::Heat { gpu, .. } | Fault::Warm { gpu, .. } => Some(("gpu", gpu)),
            Fault::Gap { node, .. }
            | Fault::Hold { node, .. }
            | Fault::Link { node, .. }
            | Fault::Skew { node } => Some(("node", node)),
            Fault::Regress { .. }
            | Fault::Birth { .. }
            | Fault::Loss { .. }
            | Fault::Reorder { .. }
            | Fault::Repeat { .. } => None,
        }
    }

    /// Returns the factor by which the affected work is slower, and the affected share of the work.
    pub(super) fn magnitude(&self) -> (f64, f64) {
        match *self {
            Fault::Slow { factor, .. }
            | Fault::Link { factor, .. }
            | Fault::CheckpointSlow { factor, .. }
            | Fault::WarmUpSlow { factor, .. }
            | Fault::Regress { factor, .. }
            | Fault::Birth { factor } => (factor, 0.0),
            Fault::Spikes { share, factor, .. } => (factor, share),
            Fault::Loss { share } | Fault::Reorder { share } | Fault::Repeat { share } => (1.0, share),
            _ => (1.0, 0.0),
        }
    }

    /// Returns true if the fault can change the duration of a step.
    pub(super) fn is_felt(&self) -> bool {
        matches!(
            self,
            Fault::Slow { .. }
                | Fault::Spikes { .. }
                | Fault::Silent { .. }
                | Fault::Heat { .. }
                | Fault::Link { .. }
                | Fault::CheckpointSlow { .. }
                | Fault::WarmUpSlow { .. }
                | Fault::Regress { .. }
                | Fault::Birth { .. }
        )
    }

    /// Returns true if the fault slows transfers instead of a rank's own work.
    pub(super) fn is_of_transfer(&self) -> bool {
        match self {
            Fault::Slow { cause, .. } => matches!(cause, Cause::Nvlink | Cause::Network),
            Fault::Link { .. } => true,
            _ => false,
        }
    }

    /// Returns true if the fault affects only communication, and no rank's own work.
    pub(super) fn is_of_all(&self) -> bool {
        self.is_of_transfer() || matches!(self, Fault::Silent { rank: None, .. })
    }

    /// Returns true if only host counters reveal the cause.
    pub(super) fn needs_host(&self) -> bool {
        match self {
            Fault::Slow { cause, .. } => {
                matches!(cause, Cause::DataLoading | Cause::CpuContention | Cause::Network)
            }
            Fault::Link { .. } => true,
            _ => false,
        }
    }
}
