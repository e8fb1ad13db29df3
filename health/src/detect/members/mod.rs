//! Who takes part in the job: ranks, nodes and their sidecars, what of them was lost, and how they ended.

pub mod cursor_map;
mod delayed_frames;
pub mod endings;
mod gaps;
pub mod roster;
pub mod versions;
