//! Parallel layout, communicators, and the collectives in them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::FunctionSum;
use crate::id::Rank;

/// A position on one axis of the layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Axis {
    /// Index, from 0.
    pub index: u32,
    /// Size of the axis.
    pub size: u32,
}

impl Default for Axis {
    fn default() -> Axis {
        Axis { index: 0, size: 1 }
    }
}

/// See [`super::Event::Layout`]. Gives a rank's position on each axis of parallelism. An unused axis has size one. `ep`
/// divides the experts among ranks that are otherwise data-parallel, so `dp` counts these ranks too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Global rank.
    pub rank: Rank,
    /// Restart count of the rank's epoch.
    pub restart: u32,
    /// Data parallel: the replica.
    pub dp: Axis,
    /// Tensor parallel.
    pub tp: Axis,
    /// Pipeline parallel: the stage.
    pub pp: Axis,
    /// Expert parallel.
    pub ep: Axis,
    /// Context (sequence) parallel.
    pub cp: Axis,
    /// Micro-batches per step in the pipeline. Zero if not declared.
    pub micro_batches: u32,
}

/// See [`super::Event::Group`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// Global rank.
    pub rank: Rank,
    /// Restart count of the rank's epoch.
    pub restart: u32,
    /// The communicator: the same number on all of its members.
    pub comm: u64,
    /// Ranks in it.
    pub size: u32,
    /// The framework's name for it. Empty if not known.
    pub name: Arc<str>,
}

/// See [`super::Event::Comm`]. Contains sums over the collectives of one step, measured by the rank's own clock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comm {
    /// Global rank.
    pub rank: Rank,
    /// Restart count of the rank's epoch.
    pub restart: u32,
    /// The step in which they ran.
    pub step: u64,
    /// The communicator.
    pub comm: u64,
    /// Collectives (and sends and receives) in it.
    pub collectives: u32,
    /// Bytes of payload.
    pub bytes: u64,
    /// Time in them: waiting for peers plus transfer.
    pub dur_ns: u64,
    /// The part of `dur_ns` that compute does not hide. If collectives overlap with compute, this is the exposed part
    /// of the step's last one. For the messages of a pipeline, it is the exposed part of the receives. `None` means
    /// unknown. In that case, all of `dur_ns` counts if timed on the host. If timed by the GPU, one collective's share
    /// counts, for all members of the communicator.
    #[serde(default)]
    pub exposed_ns: Option<u64>,
    /// How many of `collectives` cannot measure the transfer by their shortest time, because members leave them at
    /// different times (rooted, point to point) or because they are too short (under 8 KiB).
    #[serde(default)]
    pub unfit: u32,
    /// True if timed by the GPU (the NCCL plugin) instead of the host.
    #[serde(default)]
    pub gpu: bool,
    /// Sums by function, each function once. Empty if not known, as from older sidecars and sources other than the
    /// plugin.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub functions: Vec<FunctionSum>,
}
