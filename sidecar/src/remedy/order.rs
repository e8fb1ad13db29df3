//! Orders from the aggregator to the nodes, sent down the link like other requests.

use paceline_health::id::JobId;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

/// See [`crate::uplink::wire::Down::Order`]. An order lost with a link is sent again on the next one; a node executes
/// each number once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The job.
    pub job: JobId,
    /// The addressed incarnation.
    pub agent: u64,
    /// Grows with each order of a job.
    pub number: u64,
    /// The action.
    pub what: What,
    /// The mark of the decision.
    pub mark: String,
    /// It expires after this time, milliseconds since it was issued.
    pub lasts_ms: u64,
}

/// Actions of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// Send this signal to the trainers.
    Signal {
        /// Its name: `USR1`.
        name: String,
    },
    /// Stop the command: SIGTERM, then SIGKILL if necessary.
    Stop {
        /// Time between the two, milliseconds.
        grace_ms: u64,
    },
}

/// A signal by its name, from those that a trainer may handle.
pub fn signal(name: &str) -> Option<Signal> {
    Some(match name.trim_start_matches("SIG") {
        "USR1" => Signal::USR1,
        "USR2" => Signal::USR2,
        "HUP" => Signal::HUP,
        "INT" => Signal::INT,
        "TERM" => Signal::TERM,
        "URG" => Signal::URG,
        "WINCH" => Signal::WINCH,
        _ => return None,
    })
}
