//! What a job's report keeps of the preflight before it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{NodeRow, Noted, Problem};
use crate::event::Preflight;
use crate::id::NodeId;

/// The section of a job's report. `preflight.json` in the run directory has all of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Section {
    /// What it came to, as it was told. An empty mode: nobody told.
    #[serde(flatten)]
    pub told: Preflight,
    /// Nothing of it was measured.
    pub simulated: bool,
    /// What was measured: of many nodes those of which something was found.
    pub rows: BTreeMap<NodeId, NodeRow>,
    /// What was found, the worst first; at most 64.
    pub findings: Vec<Noted>,
    /// What could not be done; at most 64.
    pub problems: Vec<Problem>,
}
