//! A sum over the collectives or messages of one communicator in one step.

/// Counts, bytes and nanoseconds of these collectives or messages.
#[derive(Debug, Default)]
pub(super) struct Sum {
    pub(super) enqueued: u32,
    timed: u32,
    pub(super) bytes: u64,
    pub(super) dur_ns: u64,
}

impl Sum {
    /// Adds an enqueued collective or message.
    pub(super) fn enqueued(&mut self, bytes: u64) {
        self.enqueued += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Adds the GPU's time of a collective or message.
    pub(super) fn timed(&mut self, duration_ns: u64) {
        self.timed += 1;
        self.dur_ns = self.dur_ns.saturating_add(duration_ns);
    }

    /// Returns true if all of them are timed.
    pub(super) fn is_timed(&self) -> bool {
        self.timed == self.enqueued
    }
}
