//! Logs one line for each decision, including refusals: the check, the findings, and the action or why there was none.

use std::io::Write;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use paceline_sidecar::safe_file;
use serde::Serialize;

use crate::output;

/// A decision about a node, as it is logged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Decision {
    /// The check that decided: prolog, epilog or health-check.
    pub(super) by: &'static str,
    /// The name of the node.
    pub(super) node: String,
    /// The job before or after the check, and its user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) job: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) user: Option<String>,
    /// The action. `none`, `drain`, `resume` and `refuse` mean what they say. `yield` means that the node was drained,
    /// and then resumed to stay within the budget.
    pub(super) done: &'static str,
    /// The reason for the action, or for not acting.
    pub(super) why: String,
    /// The findings of the check about the node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) found: Vec<String>,
    /// The job's own findings about the node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) said: Vec<String>,
    /// How the job ended, according to its report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ended: Option<String>,
}

#[derive(Serialize)]
struct Line<'a> {
    unix_s: u64,
    #[serde(flatten)]
    decision: &'a Decision,
}

/// Writes a decision to the log and to stderr. An unwritable log is ignored.
pub(super) fn keep(decision: &Decision, log: &Path) {
    let unix_s = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |span| span.as_secs());
    let line = serde_json::to_string(&Line { unix_s, decision }).unwrap_or_default() + "\n";
    let written = safe_file::append_shared(log).and_then(|mut file| file.write_all(line.as_bytes()));
    if let Err(problem) = written {
        output::say(format_args!("paceline: {}: {problem}", log.display()));
    }
    let Decision {
        by, node, done, why, ..
    } = decision;
    output::say(format_args!("paceline: {by} on {node}: {done}: {why}"));
}
