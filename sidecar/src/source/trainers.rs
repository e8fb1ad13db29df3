//! The declared trainers of this node. One source finds them, and others read their processes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use paceline_health::id::Rank;

/// The list of trainers; see the module. Clones share one list.
#[derive(Clone, Debug, Default)]
pub struct Trainers(Arc<Mutex<BTreeMap<Rank, u32>>>);

impl Trainers {
    fn list(&self) -> MutexGuard<'_, BTreeMap<Rank, u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the live trainers with their process IDs.
    pub fn are(&self, now: BTreeMap<Rank, u32>) {
        *self.list() = now;
    }

    /// Returns the live trainers, as of the last update.
    pub fn now(&self) -> BTreeMap<Rank, u32> {
        self.list().clone()
    }
}
