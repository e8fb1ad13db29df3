//! What is asked for while ranks stand still.

mod entered;
mod ras;
mod stacks;

pub use entered::*;
pub use ras::*;
pub use stacks::*;
