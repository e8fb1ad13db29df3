//! The preflight checks the machines before the job starts.
//!
//! The nodes find each other (`rendezvous`). The first node leads all others through the phases (`coordinator`). Each
//! node, including the first, performs its tasks (`participant`) and takes part in the measurements (`measurement`),
//! over NCCL or TCP (`transport_choice`). Messages are JSON over sealed streams (`message`), with the time limits of a
//! `mode`. A simulated fleet goes through the same phases. `paceline_health::preflight` judges the results, also by
//! comparison with those of earlier preflights in the fabric's `passport`.

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
        /// The first node's address.
        first: String,
        /// The last failure.
        source: io::Error,
    },
    /// The peer at this address does not belong to the job.
    #[error("rendezvous: {first}: {source}")]
    Stranger {
        /// The peer's address.
        first: String,
        /// The error.
        source: SealError,
    },
    /// The first node rejected this one.
    #[error("rendezvous: the first node rejected this one: {why}")]
    Refused {
        /// The first node's reason.
        why: String,
    },
    /// The first node disconnected, or sent an invalid message.
    #[error("{phase}: the first node, {first}, was lost: {source}")]
    FirstLost {
        /// The first node's address.
        first: String,
        /// The phase.
        phase: Arc<str>,
        /// The error.
        source: SealError,
    },
    /// No listener could be opened.
    #[error("rendezvous: cannot listen: {0}")]
    Listen(io::Error),
}
