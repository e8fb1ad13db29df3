//! Where the nodes of a preflight meet, and which nodes the first one waits for: the `meeting_place` from a list of hosts
//! ([`hosts`]), Slurm, torchrun's endpoint or a headless service, and the nodes `expected` there.

mod expected;
pub mod hosts;
mod meeting_place;

pub use expected::Expected;
pub use meeting_place::{Asked, Place, RendezvousError, place};
