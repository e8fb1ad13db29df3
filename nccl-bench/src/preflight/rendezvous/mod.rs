//! Rendezvous of the nodes of a preflight: the `meeting_place` from a list of hosts ([`hosts`]), Slurm, torchrun's
//! endpoint or a headless service, and the nodes `expected` by the first one.

mod expected;
pub mod hosts;
mod meeting_place;

pub use expected::Expected;
pub use meeting_place::{Asked, Place, RendezvousError, place};
