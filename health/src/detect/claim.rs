//! The result of a rule, before it has a number and an action.

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
    /// The time at which the rule became certain: its deadline or the time of the frame, never the time of the call.
    pub at: Time,
    pub body: Body,
}

/// What is claimed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Body {
    /// The finding holds. For an open incident, this replaces the previous detail.
    Holds(Box<Detail>),
    /// The finding no longer holds.
    Over(Outcome),
}

/// Final figures of an incident. Fields that are empty leave the last value in place.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    pub lost_rank_s: f64,
    pub slowdown_ratio: Option<f64>,
    pub impact_ratio: Option<f64>,
    pub evidence: Vec<Evidence>,
}

/// Details of a claim that holds.
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
    /// The evidence as text.
    pub says: Option<std::sync::Arc<str>>,
}

/// Creates the claim that a finding no longer holds.
pub fn over(at: Time, finding: Finding, subject: Subject, outcome: Outcome) -> Claim {
    Claim {
        finding,
        subject,
        at,
        body: Body::Over(outcome),
    }
}

/// Creates a piece of evidence.
pub fn piece(what: &str, value: f64, peers: Option<f64>) -> Evidence {
    Evidence {
        what: what.into(),
        value,
        peers,
        entries: None,
    }
}
