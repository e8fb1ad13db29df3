//! What the detector hands out: incidents, the report and the notes on what it could not see.

pub mod away;
mod book;
pub mod incidents;
pub mod notes;
mod summary;
