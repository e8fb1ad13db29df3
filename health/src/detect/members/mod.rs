//! Members of the job: ranks, nodes and their sidecars. This includes which of their data was lost and how they ended.

pub mod cursor_map;
mod delayed_frames;
pub mod endings;
mod gaps;
pub mod roster;
pub mod versions;
