//! The report: `report.json`, and what every command prints with `--json`.

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
    /// How long steps and their parts took so far.
    #[serde(default)]
    pub times: Times,
    /// First frame to last.
    pub duration_s: f64,
    /// When the last step that was compared had ended, seconds since the first frame; `None`: none was.
    #[serde(default)]
    pub last_step_s: Option<f64>,
    /// Exit codes of the launched commands by node.
    pub exits: Vec<NodeExit>,
    /// How much of the job was seen.
    pub coverage: Coverage,
    /// The rank that looks slow and is not named yet; `None`: there is none.
    #[serde(default)]
    pub undecided: Option<Undecided>,
    /// What the job took and lost so far.
    #[serde(default)]
    pub cost: Cost,
    /// One entry per incident, in its last state, in the order in which they were raised.
    pub verdicts: Vec<Verdict>,
    /// What ranks that do not move are doing, the smallest group first; empty: all move, or none has been asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stacks: Vec<StackGroup>,
    /// What a preflight found before the job began; `None`: there was none.
    #[serde(default)]
    pub preflight: Option<Section>,
    /// Why the job ended; `None`: it has not, as far as is known.
    #[serde(default)]
    pub end: Option<Ending>,
    /// What was decided of findings about which something may be done, and what came of it. It follows from no journal:
    /// a replay has none.
    #[serde(default, skip_serializing_if = "Remedies::is_empty")]
    pub remedies: Remedies,
    /// Wall clock at the start of the first sidecar, milliseconds since 1970, for people only.
    #[serde(default)]
    pub began_unix_ms: Option<u64>,
    /// What is installed, by name: `driver`, `nccl`, `framework`, `paceline`; what most nodes have comes first.
    #[serde(default)]
    pub versions: BTreeMap<Arc<str>, Vec<Installed>>,
    /// Means over all GPUs since the first step, by signal; what was not read is not there.
    #[serde(default)]
    pub gpu_means: BTreeMap<GpuSignal, f64>,
    /// All steps in little; `None`: none was compared.
    #[serde(default)]
    pub history: Option<History>,
}

/// A version that nodes have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Installed {
    /// As the node says it.
    pub version: Arc<str>,
    /// How many nodes have it.
    pub nodes: u32,
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

/// Of [`Cost::by_cause`] what is no finding.
pub const OVERHEADS: [&str; 5] = ["checkpoint", "warm-up", "restart", "stall", "periodic-pause"];

/// What the job took so far, and what of it was lost to what.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// GPU-hours (rank-hours without GPUs) from the first attached rank on.
    pub gpu_hours: f64,
    /// Of these, lost to anything below.
    pub lost_gpu_hours: f64,
    /// GPU-hours lost by what they were lost to: a cause (`thermal`), else the finding (`straggler`), or one of
    /// [`OVERHEADS`]. A `stall` is a step far longer than those around it, a `periodic-pause` one that comes back; no
    /// finding explains either.
    pub by_cause: BTreeMap<Arc<str>, f64>,
    /// Share of the time up to the last step, as far as it was heard of, that made progress at the speed the job would
    /// have with nothing wrong, 0 to 1; `None` before the first steady step.
    pub goodput_ratio: Option<f64>,
    /// Median of the latest ordinary steps, seconds; `None`: as above.
    #[serde(default)]
    pub step_s: Option<f64>,
    /// The same if everything that is wrong now were not.
    pub what_if_step_s: Option<f64>,
    /// Price of a GPU-hour, averaged over the job's GPUs; `None`: not given.
    pub gpu_hour_price: Option<f64>,
    /// What was lost, in the currency of the price.
    pub lost_cost: Option<f64>,
}
