//! What ranks that do not move were doing when they were asked.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::event::{Activity, WorkerActivity};
use crate::id::Rank;

/// Ranks that do the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StackGroup {
    /// Who they are, in order.
    pub ranks: Vec<Rank>,
    /// When the last of them was asked, seconds since the first frame.
    pub taken_s: f64,
    /// In words: `data.py:88 in next_batch, read of /data/x.bin (nfs4 at /data)`.
    pub says: Arc<str>,
    /// Their main threads.
    pub main: Activity,
    /// Their loader workers.
    pub workers: Vec<WorkerActivity>,
}
