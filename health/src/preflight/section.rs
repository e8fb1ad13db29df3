//! The preflight section of a job's report.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{NodeRow, Noted, Problem};
use crate::event::Preflight;
use crate::id::NodeId;

/// The section of a job's report. It is a summary; `preflight.json` in the run directory is complete.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Section {
    /// The result from the event. If there was no event, its mode is empty.
    #[serde(flatten)]
    pub told: Preflight,
    /// True if nothing was measured because everything is simulated.
    pub simulated: bool,
    /// The results by node. If there are many nodes, only those with findings are included.
    pub rows: BTreeMap<NodeId, NodeRow>,
    /// Findings, at most 64, worst first.
    pub findings: Vec<Noted>,
    /// Problems; at most 64.
    pub problems: Vec<Problem>,
}
