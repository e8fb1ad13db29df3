//! What the aggregator asks of a sidecar: each collective of some communicators, where otherwise sums are told.
//!
//! It is said once and not acknowledged. What was lost with a link is said again on the next one; what nobody takes back
//! ends by itself, at a step. A sidecar that does not know this message takes it for noise.

use paceline_health::event::Want;
use paceline_health::id::JobId;
use serde::{Deserialize, Serialize};

/// Most that a sidecar takes.
const MOST: usize = 64;

/// See [`super::wire::Down::Wanted`]: in place of what was said before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// The job.
    pub job: JobId,
    /// The incarnation that is asked.
    pub agent: u64,
    /// What is wanted of it.
    pub wants: Vec<Want>,
}

impl Wanted {
    /// What a sidecar keeps of it.
    pub fn kept(mut self) -> Vec<Want> {
        self.wants.truncate(MOST);
        self.wants
    }
}
