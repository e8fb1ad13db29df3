//! How a job ended, and the messages about it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::event::{TroubleKind, is_own_code};
use crate::id::{NodeId, Rank};
use crate::verdict::Subject;

/// Why a job ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// The reason.
    pub reason: Reason,
    /// The node where the problem began, if any.
    pub node: Option<NodeId>,
    /// The rank, if known.
    pub rank: Option<Rank>,
    /// Exit code of that node's command.
    pub code: Option<i32>,
    /// The kind of problem that the reason is based on, or `None` if it is based only on the exit code.
    pub kind: Option<TroubleKind>,
    /// The message: the last lines of an exception, the name of a signal, or the scheduler's message.
    pub says: Arc<str>,
    /// The rank that a collective waited for until its timeout, if the detector had identified it.
    #[serde(default)]
    pub missing: Option<Subject>,
    /// All messages about the end, in the order of the journal, up to a limit.
    #[serde(default)]
    pub heard: Vec<Heard>,
}

/// Returns the most informative line of a message. After a traceback, this is the first line of the exception, because
/// further lines may only be advice. Otherwise, it is the last line.
pub fn headline(says: &str) -> &str {
    let lines: Vec<&str> = says.lines().collect();
    let last_frame = lines.iter().rposition(|line| line.starts_with("  File \""));
    let after = last_frame.and_then(|at| lines[at..].iter().find(|line| !line.starts_with(' ')));
    after.or(lines.last()).copied().unwrap_or_default()
}

/// Returns the innermost frame of a traceback in the user's own code, in the form `train.py:42, in step`. Returns
/// `None` if there is no such frame.
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

/// A message of a node or rank about the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heard {
    /// The node.
    pub node: NodeId,
    /// The rank, or `None` if the message is from the node.
    pub rank: Option<Rank>,
    /// The kind of problem.
    pub kind: TroubleKind,
    /// Its [`headline`].
    pub says: Arc<str>,
}

impl Ending {
    /// Returns the ending of a job in which all commands exited with zero.
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

    /// Returns true if all commands exited with zero and no rank or node reported a failure.
    pub fn is_in_order(&self) -> bool {
        self.reason == Reason::Success && self.hidden().is_none()
    }

    /// Returns a failure that a rank or node reported although all commands exited with zero.
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

    /// Returns the ending according to an exit code, without any message. As in a shell, the code is 128 + n if signal
    /// n ended the command.
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

/// Reasons why a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// All commands exited with zero.
    Success,
    /// A trainer had an error.
    Error,
    /// A host, a control group or a GPU was out of memory.
    OutOfMemory,
    /// A collective took longer than the trainer's timeout.
    CollectiveTimeout,
    /// A signal from outside asked the job to end, for example from a scheduler at a time limit.
    Stopped,
    /// The job was ended by SIGKILL from an unknown sender.
    Killed,
    /// The job was ended by another signal, such as SIGSEGV.
    Crashed,
    /// A node became unreachable, or the scheduler declared it failed.
    NodeLost,
    /// The scheduler ended the job at its time limit.
    TimeLimit,
    /// The scheduler ended the job because it was canceled or because its batch script ended.
    Cancelled,
    /// The scheduler ended the job because another job needed its nodes.
    Preempted,
    /// The scheduler ended the job to requeue it.
    Requeued,
}

impl Reason {
    /// All reasons.
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

    /// Returns its name in the report and in metrics.
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
