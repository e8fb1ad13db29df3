//! Orders from the aggregator to the nodes. They are sent over the link like other requests.

use paceline_health::id::JobId;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

/// An order (see [`crate::uplink::wire::Down::Order`]). If it is lost with a link, it is sent again on the next one. A
/// node executes each number only once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The job.
    pub job: JobId,
    /// The incarnation that the order is addressed to.
    pub agent: u64,
    /// The order's number, which grows with each order of a job.
    pub number: u64,
    /// The action.
    pub what: What,
    /// The decision's mark.
    pub mark: String,
    /// How long the order is valid after it was issued, milliseconds.
    pub lasts_ms: u64,
}

/// Actions that a node can execute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// Send this signal to the trainers.
    Signal {
        /// The signal's name, such as `USR1`.
        name: String,
    },
    /// Stop the command: SIGTERM, then SIGKILL if necessary.
    Stop {
        /// The time between the two signals, milliseconds.
        grace_ms: u64,
    },
}

/// Returns a signal by its name, if it is one that a trainer may handle.
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
