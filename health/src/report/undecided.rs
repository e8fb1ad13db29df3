//! A rank that looks slow without being a finding yet.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::Rank;

/// A rank that looks slow, and how far the test is from a decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Undecided {
    /// The rank.
    pub rank: Rank,
    /// Its self-time divided by that of its peers, since it began to look slow.
    pub slowdown_ratio: f64,
    /// Steps that are still needed for a decision, if they are like those so far.
    pub steps_needed: u64,
}

impl fmt::Display for Undecided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Undecided {
            rank,
            slowdown_ratio,
            steps_needed,
        } = self;
        write!(
            f,
            "rank {rank} looks slow ({slowdown_ratio:.2}x the self-time of its peers): not certain yet, needs \
             about {steps_needed} more steps",
        )
    }
}
