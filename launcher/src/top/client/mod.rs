//! The client of an aggregator: selects the job, finds its aggregator's address, polls it, and reads its responses.

pub(super) mod choose;
pub(super) mod link;
pub(super) mod place;
pub(super) mod response;
