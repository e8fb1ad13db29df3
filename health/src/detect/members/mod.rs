//! Members of the job: ranks, nodes and their sidecars, what was lost of their data, and how they ended.

pub mod cursor_map;
mod delayed_frames;
pub mod endings;
mod gaps;
pub mod roster;
pub mod versions;
