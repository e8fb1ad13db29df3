//! What is asked for while ranks stand still.

mod ras;
mod stacks;

pub use ras::*;
pub use stacks::*;
