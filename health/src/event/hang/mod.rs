//! Events that are requested while ranks are stalled.

mod entered;
mod ras;
mod stacks;

pub use entered::*;
pub use ras::*;
pub use stacks::*;
