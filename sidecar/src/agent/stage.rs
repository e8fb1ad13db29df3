//! The stages of a sidecar.

/// A stage of the sidecar's lifecycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Before the first link: nothing is read, records stay in the rings.
    Waiting,
    /// Normal operation.
    Watching,
    /// The end was announced; reads the trainers' remaining records until this deadline.
    Draining {
        /// CLOCK_MONOTONIC ns.
        until_ns: u64,
    },
    /// The goodbye was sent; waits for its acknowledgement until this deadline.
    Leaving {
        /// CLOCK_MONOTONIC ns.
        until_ns: u64,
    },
    /// Nothing is left to do.
    Gone,
}
