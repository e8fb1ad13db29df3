//! The life of a sidecar.

/// How far its life has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Not linked for the first time yet: nothing is read, the rings keep it.
    Waiting,
    /// The ordinary state.
    Watching,
    /// The end was told; what the trainers left is read, until then at the latest.
    Draining {
        /// CLOCK_MONOTONIC ns.
        until_ns: u64,
    },
    /// Goodbye was said; its acknowledgement is waited for, until then at the latest.
    Leaving {
        /// CLOCK_MONOTONIC ns.
        until_ns: u64,
    },
    /// Nothing is left to do.
    Gone,
}
