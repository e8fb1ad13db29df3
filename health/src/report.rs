//! The report: `report.json`, and what every command prints with `--json`.

mod times;
mod undecided;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use self::times::{Part, PartTimes, RankTimes, Times, Usual};
pub use self::undecided::Undecided;
use crate::event::{GpuSignal, Signal, TroubleKind};
use crate::history::History;
use crate::id::{JobId, NodeId, Rank};
use crate::preflight::Section;
use crate::remedy::Remedies;
use crate::verdict::{Subject, Verdict};

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
    /// What a preflight found before the job began; `None`: there was none.
    #[serde(default)]
    pub preflight: Option<Section>,
    /// Why the job ended; `None`: it has not, as far as is known.
    #[serde(default)]
    pub end: Option<Ending>,
    /// What was decided of findings about which something may be done, and what came of it. It follows from no journal: a
    /// replay has none.
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

/// Why a job ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// Of what kind the reason is.
    pub reason: Reason,
    /// Where it began, if it began on a node.
    pub node: Option<NodeId>,
    /// With which rank, if it is known.
    pub rank: Option<Rank>,
    /// Exit code of the command there.
    pub code: Option<i32>,
    /// Which of the words that were said it rests on; `None`: on the code alone.
    pub kind: Option<TroubleKind>,
    /// What was said: last lines of an exception, the name of a signal, the scheduler's own words.
    pub says: Arc<str>,
    /// For whom a collective waited in vain, as far as the detector had named it.
    #[serde(default)]
    pub missing: Option<Subject>,
    /// All that was said of the end, in the order of the journal, as far as there is room.
    #[serde(default)]
    pub heard: Vec<Heard>,
}

/// What is the matter, of what was said of an end: after a traceback the first line of the exception, whose message may have
/// more of them that only advise; else the last line.
pub fn headline(says: &str) -> &str {
    let lines: Vec<&str> = says.lines().collect();
    let last_frame = lines.iter().rposition(|line| line.starts_with("  File \""));
    let after = last_frame.and_then(|at| lines[at..].iter().find(|line| !line.starts_with(' ')));
    after.or(lines.last()).copied().unwrap_or_default()
}

/// What a node or a rank said of the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heard {
    /// The node.
    pub node: NodeId,
    /// The rank that met it; `None`: the node.
    pub rank: Option<Rank>,
    /// Of what kind it is.
    pub kind: TroubleKind,
    /// Its [`headline`].
    pub says: Arc<str>,
}

impl Ending {
    /// Every command ended with zero.
    pub fn success() -> Ending {
        Ending {
            reason: Reason::Success,
            node: None,
            rank: None,
            code: Some(0),
            kind: None,
            says: Arc::from(""),
            missing: None,
            heard: Vec::new(),
        }
    }

    /// What a command's code tells, when nobody said anything: 128 + n for a signal, as a shell gives it.
    pub fn of_code(node: &NodeId, code: i32) -> Ending {
        const SIGINT: i32 = 2;
        const SIGKILL: i32 = 9;
        const SIGTERM: i32 = 15;
        let (reason, says) = match code - 128 {
            _ if code == 0 => return Ending::success(),
            signal @ (SIGTERM | SIGINT) => (Reason::Stopped, format!("signal {signal}")),
            SIGKILL => (Reason::Killed, "SIGKILL, and nobody said why".to_owned()),
            signal @ 1..=64 => (Reason::Crashed, format!("signal {signal}")),
            _ => (Reason::Error, format!("code {code}, and nothing was said of it")),
        };
        Ending {
            reason,
            node: Some(node.clone()),
            code: Some(code),
            says: Arc::from(says),
            ..Ending::success()
        }
    }
}

/// Kinds of ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// Every command ended with zero.
    Success,
    /// An error of a trainer.
    Error,
    /// Too little memory, of a host, a control group or a GPU.
    OutOfMemory,
    /// A collective took longer than the trainer waits.
    CollectiveTimeout,
    /// Asked to end by a signal from outside, as a scheduler does at a time limit.
    Stopped,
    /// SIGKILL, and nobody said why.
    Killed,
    /// Any other signal, as SIGSEGV.
    Crashed,
    /// A node of which nothing was heard any more, or that the scheduler gave up.
    NodeLost,
    /// The scheduler ended it: its time was over.
    TimeLimit,
    /// The scheduler ended it: somebody cancelled it, or its batch script ended.
    Cancelled,
    /// The scheduler ended it: another needed its place.
    Preempted,
    /// The scheduler ended it to start it again.
    Requeued,
}

impl Reason {
    /// All of them.
    pub const ALL: [Reason; 12] = [
        Reason::Success,
        Reason::Error,
        Reason::OutOfMemory,
        Reason::CollectiveTimeout,
        Reason::Stopped,
        Reason::Killed,
        Reason::Crashed,
        Reason::NodeLost,
        Reason::TimeLimit,
        Reason::Cancelled,
        Reason::Preempted,
        Reason::Requeued,
    ];

    /// Its name, as it stands in the report and in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Reason::Success => "success",
            Reason::Error => "error",
            Reason::OutOfMemory => "out-of-memory",
            Reason::CollectiveTimeout => "collective-timeout",
            Reason::Stopped => "stopped",
            Reason::Killed => "killed",
            Reason::Crashed => "crashed",
            Reason::NodeLost => "node-lost",
            Reason::TimeLimit => "time-limit",
            Reason::Cancelled => "cancelled",
            Reason::Preempted => "preempted",
            Reason::Requeued => "requeued",
        }
    }
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
    /// GPU-hours lost by what they were lost to: a cause (`thermal`), else the finding (`straggler`), or one of [`OVERHEADS`]. A
    /// `stall` is a step far longer than those around it, a `periodic-pause` one that comes back; no finding explains either.
    pub by_cause: BTreeMap<Arc<str>, f64>,
    /// Share of the time up to the last step, as far as it was heard of, that made progress at the speed the job would have
    /// with nothing wrong, 0 to 1; `None` before the first steady step.
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
