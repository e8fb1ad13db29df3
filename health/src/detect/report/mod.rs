//! Output of the detector: incidents, the report, and the notes on what could not be observed.

pub mod incidents;
pub mod journal_gaps;
pub mod notes;
mod record_claims;
mod summary;
