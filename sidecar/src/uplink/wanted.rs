//! The aggregator's requests to a sidecar to send each collective of some communicators, in place of sums.
//!
//! A request is sent once and not acknowledged. If it is lost with a link, it is sent again on the next one. If it is
//! never withdrawn, it ends at a step. An older sidecar ignores this message.

use paceline_health::event::Want;
use paceline_health::id::JobId;
use serde::{Deserialize, Serialize};

/// Maximum number of communicators that a sidecar accepts.
const MOST: usize = 64;

/// A request (see [`super::wire::Down::Wanted`]). It replaces the previous one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// The job.
    pub job: JobId,
    /// The incarnation that the request is addressed to.
    pub agent: u64,
    /// The requested communicators.
    pub wants: Vec<Want>,
}

impl Wanted {
    /// Returns the part of the request that a sidecar accepts.
    pub fn kept(mut self) -> Vec<Want> {
        self.wants.truncate(MOST);
        self.wants
    }
}
