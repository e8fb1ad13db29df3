//! Measurement and its summary. Every rank's times are recorded: a mean hides the slow one.

mod result;
mod sweep;

pub use result::*;
pub use sweep::*;
