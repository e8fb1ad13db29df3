//! How a job ended, and what was said of it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::event::{TroubleKind, is_own_code};
use crate::id::{NodeId, Rank};
use crate::verdict::Subject;

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
    /// The rank that a collective waited for until it timed out, as far as the detector had named it.
    #[serde(default)]
    pub missing: Option<Subject>,
    /// All that was said of the end, in the order of the journal, as far as there is room.
    #[serde(default)]
    pub heard: Vec<Heard>,
}

/// What is the matter, of what was said of an end: after a traceback the first line of the exception, whose message may
/// have more of them that only advise; else the last line.
pub fn headline(says: &str) -> &str {
    let lines: Vec<&str> = says.lines().collect();
    let last_frame = lines.iter().rposition(|line| line.starts_with("  File \""));
    let after = last_frame.and_then(|at| lines[at..].iter().find(|line| !line.starts_with(' ')));
    after.or(lines.last()).copied().unwrap_or_default()
}

/// The innermost frame of a traceback that is the user's own code, as `train.py:42, in step`; `None`: it has none.
pub fn user_frame(says: &str) -> Option<String> {
    let mut frames = says.lines().rev();
    frames.find_map(|line| {
        let (path, rest) = line.strip_prefix("  File \"")?.split_once("\", line ")?;
        if !is_own_code(path) {
            return None;
        }
        let (number, function) = rest.split_once(", in ").unwrap_or((rest, ""));
        let file = path.rsplit('/').next().unwrap_or(path);
        let function = if function.is_empty() {
            String::new()
        } else {
            format!(", in {function}")
        };
        Some(format!("{file}:{number}{function}"))
    })
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

    /// Every command ended with zero, and no rank said anything else.
    pub fn is_in_order(&self) -> bool {
        self.reason == Reason::Success && self.hidden().is_none()
    }

    /// What a rank or node said of an end of its own though every command ended with zero.
    pub fn hidden(&self) -> Option<&Heard> {
        use TroubleKind as T;
        let is_failure = |heard: &&Heard| {
            matches!(
                heard.kind,
                T::Error
                    | T::Exit
                    | T::OomKill
                    | T::GpuMemory
                    | T::HostMemory
                    | T::CollectiveTimeout
                    | T::CollectiveMismatch
            )
        };
        let mut heard = self.heard.iter();
        heard.find(|heard| self.reason == Reason::Success && is_failure(heard))
    }

    /// What a command's code tells, when nobody said anything: 128 + n for a signal, as a shell gives it.
    pub fn of_code(node: &NodeId, code: i32) -> Ending {
        const SIGINT: i32 = 2;
        const SIGKILL: i32 = 9;
        const SIGTERM: i32 = 15;
        let (reason, says) = match code.saturating_sub(128) {
            _ if code == 0 => return Ending::success(),
            signal @ (SIGTERM | SIGINT) => (Reason::Stopped, format!("signal {signal}")),
            SIGKILL => (Reason::Killed, "SIGKILL, by an unknown sender".to_owned()),
            signal @ 1..=64 => (Reason::Crashed, format!("signal {signal}")),
            _ => (
                Reason::Error,
                format!("code {code}; no exception and no signal was recorded"),
            ),
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
    /// SIGKILL, by an unknown sender.
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
