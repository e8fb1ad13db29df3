//! The preflight: know the machines before the job starts.
//!
//! The first node gathers all others over sealed streams (`star`, `member`) and leads them through the phases
//! (`conduct`); a simulated fleet (`simulate`) goes through the same. What it means is judged by
//! `paceline_health::preflight`.

mod all_reduce;
mod conduct;
mod door;
mod expected;
mod fleet;
mod group;
pub mod hosts;
mod lead;
mod member;
mod message;
mod mode;
mod over;
mod passport;
mod probe;
mod rank;
mod ranks;
mod rendezvous;
mod simulate;
mod star;
mod tcp_info;
mod tools;

pub use crate::fabric::{SimError, SimFault};
pub use conduct::{Brief, Recall, conduct};
pub use expected::Expected;
pub use fleet::{Fault, Fleet, Task};
pub use lead::{Lead, lead};
pub use member::{Me, attend};
pub use message::{Failed, Found, Opened};
pub use mode::{Limits, Mode};
pub use over::{Nccl, Over, Team};
pub use passport::{History, Passports, Stamp};
pub use rank::main as rank_main;
pub use ranks::Launch;
pub use rendezvous::{Asked, Place as MeetingPlace, RendezvousError, place};
pub use simulate::SimFleet;
pub use star::{Star, gather};
pub use tools::{Machine, Tools};

use std::io;
use std::sync::Arc;

use paceline_seal::SealError;

/// Why a node could not take part.
#[derive(Debug, thiserror::Error)]
pub enum PreflightError {
    /// The first node was never reached.
    #[error("rendezvous: the first node, {first}, was not reached in time: {source}")]
    FirstAbsent {
        /// Its address.
        first: String,
        /// The last failure.
        source: io::Error,
    },
    /// What answers there is not of this job.
    #[error("rendezvous: {first}: {source}")]
    Stranger {
        /// Its address.
        first: String,
        /// What was wrong.
        source: SealError,
    },
    /// The first node did not take this one.
    #[error("rendezvous: the first node rejected this one: {why}")]
    Refused {
        /// Its reason.
        why: String,
    },
    /// The first node went away, or said what cannot be understood.
    #[error("{phase}: the first node, {first}, was lost: {source}")]
    FirstLost {
        /// Its address.
        first: String,
        /// In which phase.
        phase: Arc<str>,
        /// What happened.
        source: SealError,
    },
    /// No port, no network.
    #[error("rendezvous: cannot listen: {0}")]
    Listen(io::Error),
}
