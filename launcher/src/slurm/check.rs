//! Checks the hardware by reading and, if requested, under load. Each check runs in a process of its own, because a
//! driver that hangs must not hang slurmd.

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::Args;
use paceline_health::id::NodeId;
use paceline_health::preflight::{Outcome, Report};
use serde::{Deserialize, Serialize};

use super::bounded;
use crate::output;
use crate::preflight;

/// Time limit for reading. Reading itself takes at most three seconds, and the rest is for a machine under load.
const READ: Duration = Duration::from_secs(10);
/// Time limit for a quick preflight of one node, including all of the preflight's own time limits.
const MEASURE: Duration = Duration::from_secs(90);

/// The health of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Health {
    /// The node's GPUs were read, and none is bad.
    Well,
    /// The reasons to exclude the node.
    Ill(Vec<String>),
    /// What could not be checked.
    Unknown(Vec<String>),
}

#[derive(Debug, Args)]
pub(super) struct LookArgs {
    /// Name of this node.
    #[arg(long, value_name = "NAME")]
    node: String,
}

/// Reads the node in this process, and prints one line of JSON.
pub(super) fn look(args: &LookArgs) -> anyhow::Result<ExitCode> {
    let node = NodeId::from(args.node.as_str());
    let health = match preflight::read_node(&node) {
        Ok(looked) if !looked.bad.is_empty() => Health::Ill(looked.bad),
        Ok(looked) if looked.notes.is_empty() && looked.gpus > 0 => Health::Well,
        Ok(looked) if looked.gpus == 0 && looked.notes.is_empty() => {
            Health::Unknown(vec!["none of its GPUs can be read".to_owned()])
        }
        Ok(looked) => Health::Unknown(looked.notes),
        Err(problem) => Health::Unknown(vec![problem]),
    };
    output::print(&(serde_json::to_string(&health)? + "\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// Reads the node in a child process.
pub(super) fn read(node: &str) -> Health {
    let ran = match bounded::run(ours().args(["slurm", "look", "--node", node]), READ) {
        Ok(ran) => ran,
        Err(failed) => return Health::Unknown(vec![failed.to_string()]),
    };
    serde_json::from_str(&ran.stdout).unwrap_or_else(|_| {
        let said = ran.stderr.lines().last().unwrap_or("no output");
        Health::Unknown(vec![format!("the node could not be read: {said}")])
    })
}

/// Measures the node alone with a quick preflight, which also reads it.
pub(super) fn measure(node: &str) -> Health {
    let words = [
        "preflight",
        "quick",
        "--json",
        "--job",
        "paceline-node-check",
        "--nodes",
        node,
        "--node",
        node,
    ];
    let ran = match bounded::run(ours().args(words), MEASURE) {
        Ok(ran) => ran,
        Err(failed) => return Health::Unknown(vec![failed.to_string()]),
    };
    match serde_json::from_str::<Report>(&ran.stdout) {
        Ok(report) => of_preflight(&report, &node.into()),
        Err(_) => {
            let said = ran.stderr.lines().last().unwrap_or("no output");
            Health::Unknown(vec![format!("the preflight returned no report: {said}")])
        }
    }
}

fn of_preflight(report: &Report, node: &NodeId) -> Health {
    let of_it = report
        .findings
        .iter()
        .filter(|noted| noted.place.node() == Some(node));
    let bad: Vec<String> = of_it
        .filter(|noted| noted.condemns())
        .map(preflight::show::sentence)
        .collect();
    match report.outcome {
        _ if report.simulated => Health::Unknown(vec!["the preflight was simulated".to_owned()]),
        _ if !bad.is_empty() => Health::Ill(bad),
        Outcome::Ok | Outcome::Warning => Health::Well,
        Outcome::Unknown | Outcome::Critical => {
            Health::Unknown(vec!["the preflight had nothing to compare with".to_owned()])
        }
    }
}

/// Returns a command that starts this program, with variables that slurmd omits from the environment.
fn ours() -> Command {
    let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("/proc/self/exe"));
    let mut command = Command::new(program);
    // Set HOME, because the preflight creates its own key there. No other node needs this key, because none takes part.
    if std::env::var_os("HOME").is_none() && rustix::process::geteuid().is_root() {
        command.env("HOME", "/root");
    }
    command
}
