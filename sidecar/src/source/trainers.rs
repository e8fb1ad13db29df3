//! The declared trainers of this node: one source finds them, another reads their processes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use paceline_health::id::Rank;

/// See the module. Clones share one list.
#[derive(Clone, Debug, Default)]
pub struct Trainers(Arc<Mutex<BTreeMap<Rank, u32>>>);

impl Trainers {
    fn list(&self) -> MutexGuard<'_, BTreeMap<Rank, u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the live trainers, with their process IDs.
    pub fn are(&self, now: BTreeMap<Rank, u32>) {
        *self.list() = now;
    }

    /// The live trainers at the last update.
    pub fn now(&self) -> BTreeMap<Rank, u32> {
        self.list().clone()
    }
}
