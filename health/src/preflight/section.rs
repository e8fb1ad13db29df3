//! The preflight section of a job's report.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{NodeRow, Noted, Problem};
use crate::event::Preflight;
use crate::id::NodeId;

/// The section of a job's report. `preflight.json` in the run directory is complete.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Section {
    /// The result from the event. Empty mode: no event.
    #[serde(flatten)]
    pub told: Preflight,
    /// Nothing was measured, all is simulated.
    pub simulated: bool,
    /// The results: with many nodes, only those with findings.
    pub rows: BTreeMap<NodeId, NodeRow>,
    /// Findings, worst first; at most 64.
    pub findings: Vec<Noted>,
    /// Problems; at most 64.
    pub problems: Vec<Problem>,
}
