//! What the aggregator tells the nodes to do: it travels down the link, as what is wanted of them does.

use paceline_health::id::JobId;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

/// See [`crate::uplink::wire::Down::Order`]. What was lost with a link is said again on the next one, so it has a number: a
/// node does it once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The job.
    pub job: JobId,
    /// The incarnation that is told.
    pub agent: u64,
    /// Grows with each order of a job.
    pub number: u64,
    /// What is to be done.
    pub what: What,
    /// On whose behalf: the mark of the decision.
    pub mark: String,
    /// It is void after this, milliseconds from when it was said.
    pub lasts_ms: u64,
}

/// What a node can do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// Send this signal to the trainers.
    Signal {
        /// Its name: `USR1`.
        name: String,
    },
    /// End the command: SIGTERM, and SIGKILL when it does not.
    Stop {
        /// Between the two, milliseconds.
        grace_ms: u64,
    },
}

/// A signal by its name, of those that a trainer may be told to listen for.
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
