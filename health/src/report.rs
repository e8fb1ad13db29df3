//! The report: `report.json`, and what every command prints with `--json`.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::event::Signal;
use crate::id::{JobId, NodeId};
use crate::verdict::Verdict;

/// Version of [`Report`].
pub const REPORT_VERSION: u32 = 1;

/// The whole of what is known of a job, so far or at its end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`REPORT_VERSION`].
    pub schema_version: u32,
    /// The job's name.
    pub job: JobId,
    /// Ranks in the job as they declared it; zero when none attached.
    pub world_size: u32,
    /// The last step that every live rank finished.
    pub steps: u64,
    /// Median duration of an ordinary step so far, seconds.
    pub median_step_s: Option<f64>,
    /// First frame to last.
    pub duration_s: f64,
    /// Exit codes of the launched commands by node.
    pub exits: Vec<NodeExit>,
    /// How much of the job was seen.
    pub coverage: Coverage,
    /// One entry per incident, in its last state, in the order in which they were raised.
    pub verdicts: Vec<Verdict>,
}

/// How a node's command ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeExit {
    /// The node.
    pub node: NodeId,
    /// Exit code, 128 + n for a signal.
    pub code: i32,
}

/// How much was seen: absence of data is never health.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Coverage {
    /// Steps received over steps expected of the ranks that attached, 0 to 1; `None` when no rank attached.
    pub steps_ratio: Option<f64>,
    /// Ranks that declared themselves.
    pub ranks_seen: u32,
    /// Ranks that there should be, as far as anyone said.
    pub ranks_expected: u32,
    /// The signals that came.
    pub signals: Vec<Signal>,
    /// Frames lost on the way.
    pub frames_lost: u64,
    /// Records that trainers dropped because a ring was full.
    pub ring_dropped: u64,
    /// Records in rings that were torn.
    pub ring_torn: u64,
    /// Frames that could not be written to the journal.
    pub journal_lost: u64,
    /// Times in which a node was not watched.
    pub gaps: Vec<Gap>,
    /// What limits the verdicts, in words.
    pub notes: Vec<Arc<str>>,
}

/// A time in which a node was not watched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gap {
    /// The node.
    pub node: NodeId,
    /// Its beginning, seconds since the first frame.
    pub from_s: f64,
    /// Its end; `None`: it lasts.
    pub to_s: Option<f64>,
    /// Why.
    pub why: Arc<str>,
}
