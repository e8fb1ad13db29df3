//! What is counted, for tests that look at how NCCL is used. NCCL has no such function.

use std::sync::atomic::{AtomicU64, Ordering};

/// What is counted, in the order in which [`fakeNcclCounts`] writes it.
#[derive(Clone, Copy)]
pub enum Counted {
    /// Communicators that block.
    Blocking,
    /// Communicators that do not.
    NonBlocking,
    /// Threads that queue what a group of a communicator that does not block has asked for.
    GroupThread,
    /// Calls of ncclCommGetAsyncError.
    AsyncError,
}

static COUNTS: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

pub fn count(what: Counted) {
    COUNTS[what as usize].fetch_add(1, Ordering::Relaxed);
}

/// Writes what this copy of the library has counted, in the order of [`Counted`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fakeNcclCounts(to: *mut [u64; 4]) {
    let counts = COUNTS.each_ref().map(|count| count.load(Ordering::Relaxed));
    // SAFETY: the caller's pointer.
    unsafe { *to = counts };
}
