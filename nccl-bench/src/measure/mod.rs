//! What was measured, and how it is summed up. Every rank's times are kept: a mean hides the slow one.

mod result;
mod sweep;

pub use result::*;
pub use sweep::*;
