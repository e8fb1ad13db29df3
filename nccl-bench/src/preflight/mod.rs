//! The preflight: know the machines before the job starts.
//!
//! The nodes meet (`rendezvous`). The first node leads all others through the phases (`coordinator`); each node, itself
//! included, does what it is asked (`participant`) and takes part in the measurements (`measurement`), over NCCL or TCP
//! (`transport_choice`). They talk in JSON over sealed streams (`message`), within the time that a `mode` gives; a
//! simulated fleet goes through the same phases. What it means is judged by `paceline_health::preflight`, with what
//! earlier preflights left in the fabric's `passport`.

mod coordinator;
mod measurement;
mod message;
mod mode;
mod participant;
mod passport;
mod rendezvous;
mod transport_choice;

pub use crate::fabric::{SimError, SimFault};
pub use coordinator::{
    Brief, Fault, Fleet, Lead, Recall, RemoteFleet, SimFleet, Task, conduct, gather, lead,
};
pub use measurement::{Launch, rank_main};
pub use message::{Failed, Found, Opened};
pub use mode::{Limits, Mode};
pub use participant::{Machine, Me, Tools, attend};
pub use passport::{History, Passports, Stamp};
pub use rendezvous::{Asked, Expected, Place as MeetingPlace, RendezvousError, hosts, place};
pub use transport_choice::{Nccl, Team, TransportChoice};

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
