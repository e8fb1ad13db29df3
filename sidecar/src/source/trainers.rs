//! The trainers of this node, as they declared themselves: one source hears of them, another reads their processes.

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

    /// These live now, with their process ids.
    pub fn are(&self, now: BTreeMap<Rank, u32>) {
        *self.list() = now;
    }

    /// Those that lived when it was last said.
    pub fn now(&self) -> BTreeMap<Rank, u32> {
        self.list().clone()
    }
}
