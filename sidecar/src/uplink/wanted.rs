//! Requests of the aggregator to a sidecar: each collective of some communicators instead of sums.
//!
//! A request is sent once and not acknowledged. One that is lost with a link is sent again on the next one; one that is
//! never withdrawn ends at a step. An older sidecar ignores this message.

use paceline_health::event::Want;
use paceline_health::id::JobId;
use serde::{Deserialize, Serialize};

/// Maximum number that a sidecar accepts.
const MOST: usize = 64;

/// See [`super::wire::Down::Wanted`]: replaces the previous request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// The job.
    pub job: JobId,
    /// The addressed incarnation.
    pub agent: u64,
    /// The requested communicators.
    pub wants: Vec<Want>,
}

impl Wanted {
    /// The part that a sidecar accepts.
    pub fn kept(mut self) -> Vec<Want> {
        self.wants.truncate(MOST);
        self.wants
    }
}
