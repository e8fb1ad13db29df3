//! Counters for tests that check how NCCL is used. NCCL has no such function.

use std::sync::atomic::{AtomicU64, Ordering};

/// The counters, in the order in which [`fakeNcclCounts`] writes them.
#[derive(Clone, Copy)]
pub enum Counted {
    /// Number of blocking communicators.
    Blocking,
    /// Number of nonblocking communicators.
    NonBlocking,
    /// Number of threads that queue the operations of a group of a nonblocking communicator.
    GroupThread,
    /// Number of calls of ncclCommGetAsyncError.
    AsyncError,
}

static COUNTS: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

pub fn count(what: Counted) {
    COUNTS[what as usize].fetch_add(1, Ordering::Relaxed);
}

/// Writes the counters of this copy of the library, in the order of [`Counted`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fakeNcclCounts(to: *mut [u64; 4]) {
    let counts = COUNTS.each_ref().map(|count| count.load(Ordering::Relaxed));
    // SAFETY: the pointer is the caller's.
    unsafe { *to = counts };
}
