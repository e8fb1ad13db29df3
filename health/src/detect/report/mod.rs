//! Output of the detector: incidents, the report, and the notes on what it could not see.

pub mod incidents;
pub mod journal_gaps;
pub mod notes;
mod record_claims;
mod summary;
