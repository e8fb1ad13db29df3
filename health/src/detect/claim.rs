//! What a rule says, before it has a number and an action.

use serde::{Deserialize, Serialize};

use crate::event::Signal;
use crate::frame::Provenance;
use crate::time::Time;
use crate::verdict::{Cause, Evidence, Finding, Severity, Subject};

/// A finding on a subject that holds, has changed, or no longer holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Claim {
    pub finding: Finding,
    pub subject: Subject,
    /// When the rule was sure: its deadline or the time of the frame, never that of the call.
    pub at: Time,
    pub body: Body,
}

/// What is claimed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Body {
    /// It holds. Said again for an open incident, it replaces what was said before.
    Holds(Box<Detail>),
    /// It held.
    Over(Outcome),
}

/// What there is to say of an incident at its end. What is empty stays as it was last said.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    pub lost_rank_s: f64,
    pub slowdown_ratio: Option<f64>,
    pub impact_ratio: Option<f64>,
    pub evidence: Vec<Evidence>,
}

/// The substance of a claim.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Detail {
    pub severity: Severity,
    pub since: Time,
    pub since_step: Option<u64>,
    pub step: Option<u64>,
    pub cause: Cause,
    pub signals: Vec<Signal>,
    pub provenance: Provenance,
    pub slowdown_ratio: Option<f64>,
    pub impact_ratio: Option<f64>,
    pub lost_rank_s: f64,
    pub evidence: Vec<Evidence>,
    /// Evidence that is text.
    pub says: Option<std::sync::Arc<str>>,
}

/// It held.
pub fn over(at: Time, finding: Finding, subject: Subject, outcome: Outcome) -> Claim {
    Claim {
        finding,
        subject,
        at,
        body: Body::Over(outcome),
    }
}

/// A piece of evidence.
pub fn piece(what: &str, value: f64, peers: Option<f64>) -> Evidence {
    Evidence {
        what: what.into(),
        value,
        peers,
        entries: None,
    }
}
