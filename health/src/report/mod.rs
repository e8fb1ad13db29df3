//! The report, which is written to `report.json` and is the output of commands with `--json`.

mod ending;
pub mod history;
mod stacks;
pub mod step_snapshot;
mod times;
mod undecided;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use self::ending::{Ending, Heard, Reason, headline, user_frame};
use self::history::History;
pub use self::stacks::StackGroup;
pub use self::times::{Part, PartTimes, RankTimes, Times, Usual};
pub use self::undecided::Undecided;
use crate::event::{GpuSignal, Signal};
use crate::id::{JobId, NodeId};
use crate::preflight::Section;
use crate::remedy::Remedies;
use crate::verdict::Verdict;

/// Version of [`Report`].
pub const REPORT_VERSION: u32 = 1;

/// Everything known about a job, so far or at its end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`REPORT_VERSION`].
    pub schema_version: u32,
    /// The job's name.
    pub job: JobId,
    /// Declared number of ranks. Zero if no rank attached.
    pub world_size: u32,
    /// The last step that every live rank finished.
    pub steps: u64,
    /// Median duration of an ordinary step so far, seconds.
    pub median_step_s: Option<f64>,
    /// Durations of steps and their parts so far.
    #[serde(default)]
    pub times: Times,
    /// Time from the first frame to the last.
    pub duration_s: f64,
    /// End of the last compared step, seconds since the first frame. `None` if no step was compared.
    #[serde(default)]
    pub last_step_s: Option<f64>,
    /// Exit codes of the launched commands by node.
    pub exits: Vec<NodeExit>,
    /// How complete the observations are.
    pub coverage: Coverage,
    /// The rank that looks slow without being a finding yet, or `None` if there is none.
    #[serde(default)]
    pub undecided: Option<Undecided>,
    /// Cost and losses of the job so far.
    #[serde(default)]
    pub cost: Cost,
    /// The latest verdict of each incident, in the order in which incidents were raised.
    pub verdicts: Vec<Verdict>,
    /// Activity of stalled ranks, the smallest group first. Empty if no rank is stalled or there is no data.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stacks: Vec<StackGroup>,
    /// Results of a preflight before the job began, or `None` if there was none.
    #[serde(default)]
    pub preflight: Option<Section>,
    /// Why the job ended. `None` if it is not known to have ended.
    #[serde(default)]
    pub end: Option<Ending>,
    /// Decisions on remedies and their results. They are not in the journal, so a replay has none.
    #[serde(default, skip_serializing_if = "Remedies::is_empty")]
    pub remedies: Remedies,
    /// Wall clock at the start of the first sidecar, milliseconds since 1970, for people only.
    #[serde(default)]
    pub began_unix_ms: Option<u64>,
    /// Installed versions by name: `driver`, `nccl`, `framework`, `paceline`; the most frequent version comes first.
    #[serde(default)]
    pub versions: BTreeMap<Arc<str>, Vec<Installed>>,
    /// Means over all GPUs since the first step, by signal. Signals without readings are omitted.
    #[serde(default)]
    pub gpu_means: BTreeMap<GpuSignal, f64>,
    /// All steps in compact form. `None` if no step was compared.
    #[serde(default)]
    pub history: Option<History>,
}

/// An installed version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Installed {
    /// The version that nodes report.
    pub version: Arc<str>,
    /// Number of nodes with it.
    pub nodes: u32,
}

/// How a node's command ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeExit {
    /// The node.
    pub node: NodeId,
    /// The exit code, which is 128 + n if signal n ended the command.
    pub code: i32,
}

/// How complete the observations are. Missing data never counts as healthy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Coverage {
    /// Steps received over steps expected of the ranks that attached, 0 to 1; `None` if no rank attached.
    pub steps_ratio: Option<f64>,
    /// Ranks that attached.
    pub ranks_seen: u32,
    /// Expected ranks, as far as known.
    pub ranks_expected: u32,
    /// The signals received.
    pub signals: Vec<Signal>,
    /// Frames lost in transit.
    pub frames_lost: u64,
    /// Records that trainers dropped because a ring was full.
    pub ring_dropped: u64,
    /// Torn records in rings.
    pub ring_torn: u64,
    /// Frames that could not be written to the journal.
    pub journal_lost: u64,
    /// Intervals in which a node was not monitored.
    pub gaps: Vec<Gap>,
    /// What limits the verdicts, in words.
    pub notes: Vec<Arc<str>>,
}

/// An interval in which a node was not monitored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gap {
    /// The node.
    pub node: NodeId,
    /// Its beginning, seconds since the first frame.
    pub from_s: f64,
    /// Its end, or `None` if it continues.
    pub to_s: Option<f64>,
    /// The reason.
    pub why: Arc<str>,
}

/// Keys of [`Cost::by_cause`] that are not findings.
pub const OVERHEADS: [&str; 5] = ["checkpoint", "warm-up", "restart", "stall", "periodic-pause"];

/// Cost of the job so far, and its losses by cause.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// GPU-hours (rank-hours without GPUs) since the first rank attached.
    pub gpu_hours: f64,
    /// How many of these GPU-hours were lost to the causes below.
    pub lost_gpu_hours: f64,
    /// Lost GPU-hours by cause (such as `thermal`) if known, else by finding (such as `straggler`), or by one of
    /// [`OVERHEADS`]. A `stall` is a step far longer than those around it. A `periodic-pause` is such a step that
    /// recurs. No finding explains either of them.
    pub by_cause: BTreeMap<Arc<str>, f64>,
    /// The time that the job's progress would have taken without problems, as a share (0 to 1) of the time up to the
    /// last known step. `None` before the first steady step.
    pub goodput_ratio: Option<f64>,
    /// Median of the latest ordinary steps, seconds. `None` before the first steady step.
    #[serde(default)]
    pub step_s: Option<f64>,
    /// What `step_s` would be without the current problems.
    pub what_if_step_s: Option<f64>,
    /// Price of a GPU-hour, averaged over the job's GPUs. `None` if no price is configured.
    pub gpu_hour_price: Option<f64>,
    /// Cost of the losses in the currency of the price.
    pub lost_cost: Option<f64>,
}
