//! The stages of a sidecar.

/// A stage of the sidecar's lifecycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Before the first link. Nothing is read, and records stay in the rings.
    Waiting,
    /// Normal operation.
    Watching,
    /// The end was announced. The trainers' remaining records are read until this deadline.
    Draining {
        /// Deadline, CLOCK_MONOTONIC in nanoseconds.
        until_ns: u64,
    },
    /// The goodbye was sent. The sidecar waits for its acknowledgement until this deadline.
    Leaving {
        /// Deadline, CLOCK_MONOTONIC in nanoseconds.
        until_ns: u64,
    },
    /// The sidecar has nothing left to do.
    Gone,
}
