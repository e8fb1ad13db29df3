//! Measurements and their summary. Every rank's times are recorded, because a mean would hide a slow rank.

mod result;
mod sweep;

pub use result::*;
pub use sweep::*;
