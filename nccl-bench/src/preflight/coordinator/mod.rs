//! The first node's side of a preflight. It gathers the other nodes (`remote_fleet`, where `admission` decides which
//! may take part), leads them through the phases (`lead`, `phases`) and reports. The phases access nodes through a
//! `fleet`, which has either remote nodes or simulated ones (`simulated_fleet`).

mod admission;
mod fleet;
mod lead;
mod phases;
mod remote_fleet;
mod simulated_fleet;

pub use fleet::{Fault, Fleet, Task};
pub use lead::{Lead, lead};
pub use phases::{Brief, Recall, conduct};
pub use remote_fleet::{RemoteFleet, gather};
pub use simulated_fleet::SimFleet;
