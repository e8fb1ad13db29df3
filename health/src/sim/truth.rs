//! What is really wrong in a world, kept beside the frames: what a verdict is measured against.

use serde::{Deserialize, Serialize};

use super::fault::Fault;
use crate::id::{GpuId, NodeId, Rank};

/// A fault has begun when it makes its rank's step this much longer.
const FELT: f64 = 1.01;

/// The truth about one fault, so far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Truth {
    /// The fault.
    pub fault: Fault,
    /// The rank that suffers from it; `None`: all, or none at all.
    pub rank: Option<Rank>,
    /// Its GPU.
    pub gpu: Option<GpuId>,
    /// Its node, or the node whose telemetry suffers.
    pub node: Option<NodeId>,
    /// The first step in which a rank was at least 1 % slower for it.
    pub since_step: Option<u64>,
    /// The last such step.
    pub last_step: Option<u64>,
    /// GPU-seconds that the whole job lost to it: what each step took beyond the same step without this one fault,
    /// times the ranks. With several faults at once the shares need not add up to the whole.
    pub lost_gpu_s: f64,
}

impl Truth {
    /// The step was felt by a rank: it worked `work` seconds instead of `without`.
    pub(super) fn feel(&mut self, step: u64, work: f64, without: f64) {
        if work > without * FELT {
            self.since_step.get_or_insert(step);
            self.last_step = Some(step);
        }
    }
}
