//! Who takes part in the job: ranks, nodes and their sidecars, what of them was lost, and how they ended.

pub mod endings;
mod gaps;
mod late;
pub mod roster;
pub mod rounds;
pub mod versions;
