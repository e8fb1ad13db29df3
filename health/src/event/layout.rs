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

/// See [`super::Event::Layout`]: a position on each axis of parallelism. An unused axis has size one. `ep` divides the
/// experts among ranks that are otherwise data-parallel, so `dp` counts these ranks too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Global rank.
    pub rank: Rank,
    /// Its epoch.
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
    /// Micro-batches per step in the pipeline; zero: not declared.
    pub micro_batches: u32,
}

/// See [`super::Event::Group`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// Global rank.
    pub rank: Rank,
    /// Its epoch.
    pub restart: u32,
    /// The communicator: the same number on all of its members.
    pub comm: u64,
    /// Ranks in it.
    pub size: u32,
    /// The framework's name for it; empty: not known.
    pub name: Arc<str>,
}

/// See [`super::Event::Comm`]: sums over the collectives of one step, by the rank's own clock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comm {
    /// Global rank.
    pub rank: Rank,
    /// Its epoch.
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
    /// The part of `dur_ns` that compute does not hide; of collectives that overlap with compute, that of the last one
    /// of the step; of a pipeline's messages, that of the receives. `None`: unknown; then all of `dur_ns` counts if
    /// timed on the host, and one collective's share, for all members of the communicator, if timed by the GPU.
    #[serde(default)]
    pub exposed_ns: Option<u64>,
    /// Of `collectives`, those that members leave at different times (rooted, point to point) or that are too short
    /// (under 8 KiB): the shortest time in these does not measure the transfer.
    #[serde(default)]
    pub unfit: u32,
    /// Timed by the GPU (the NCCL plugin) instead of the host.
    #[serde(default)]
    pub gpu: bool,
    /// The same by function, each function once. Empty: not known; from older sidecars and sources other than the
    /// plugin.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub functions: Vec<FunctionSum>,
}
