//! Activity of stalled ranks at the time of the query.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::event::{Activity, WorkerActivity};
use crate::id::Rank;

/// Ranks with the same activity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StackGroup {
    /// The ranks, in order.
    pub ranks: Vec<Rank>,
    /// Time of the latest query, seconds since the first frame.
    pub taken_s: f64,
    /// Summary, for example `data.py:88 in next_batch, read of /data/x.bin (nfs4 at /data)`.
    pub says: Arc<str>,
    /// Their main threads.
    pub main: Activity,
    /// Their loader workers.
    pub workers: Vec<WorkerActivity>,
}
