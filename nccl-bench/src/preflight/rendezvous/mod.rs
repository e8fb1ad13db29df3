//! Rendezvous of the nodes of a preflight. The `meeting_place` comes from a list of hosts ([`hosts`]), Slurm,
//! torchrun's endpoint or a headless service. The first node waits for the nodes in `expected`.

mod expected;
pub mod hosts;
mod meeting_place;

pub use expected::Expected;
pub use meeting_place::{Asked, Place, RendezvousError, place};
