//! `paceline preflight serve`: answers a launcher that requests a node's health before its rendezvous.
//!
//! NVIDIA's resiliency launcher (`ft_launcher --ft-node-health-check-endpoint`) sends requests by gRPC on a Unix socket
//! (<https://nvidia.github.io/nvidia-resiliency-ext/fault_tolerance/services.html>). It does so before every
//! rendezvous, so the response must be fast. The response has the last preflight's findings about this node, and the
//! node's current readings. The server measures nothing, because other ranks may still be running on a restart.

mod grpc;
mod http2;

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use paceline_health::id::NodeId;
use paceline_health::preflight::{Judge, Outcome, PREFLIGHT_SCHEMA, PreflightTable, Report, Wanted};
use paceline_nccl_bench::preflight::Tools;
use paceline_nccl_bench::transport::Deadline;
use serde::Serialize;

use super::args::ServeArgs;
use super::{CRITICAL, FILE, show, work};
use crate::output;
use crate::run::identity;

/// Time limit for reading the node. It is short because the client is waiting.
const LIMIT: Duration = Duration::from_secs(3);

/// The result of the check, which is sent as JSON in the response's `output`.
#[derive(Debug, PartialEq, Serialize)]
struct Health {
    schema_version: u32,
    node: String,
    /// One entry for each reason to exclude the node. Empty if there is no reason.
    failed_checks: Vec<String>,
    fail_count: usize,
    /// One note for each thing that could not be checked.
    notes: Vec<String>,
}

/// Serves until the process ends.
pub(super) fn command(args: &ServeArgs) -> anyhow::Result<ExitCode> {
    let around = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let node = args.node.clone().unwrap_or_else(|| identity::node(&around));
    let listener = listen(&args.socket).with_context(|| args.socket.display().to_string())?;
    let clinic = Arc::new(Clinic {
        node: NodeId::from(&*node),
        run_dir: args.run_dir.clone(),
        tools: Box::new(work::machine()),
        busy: Mutex::new(()),
    });
    output::say(format_args!(
        "paceline: {node} answers at unix://{}",
        args.socket.display()
    ));
    grpc::serve(&listener, move || clinic.answer())
}

/// The current readings of a node.
#[derive(Debug)]
pub(crate) struct NodeRead {
    /// The reasons to exclude the node.
    pub(crate) bad: Vec<String>,
    /// One note for each thing that could not be checked.
    pub(crate) notes: Vec<String>,
    /// Number of the node's GPUs.
    pub(crate) gpus: u32,
}

/// Reads this node without putting any load on it.
pub(crate) fn read_node(node: &NodeId) -> Result<NodeRead, String> {
    read_by(&work::machine(), node)
}

fn read_by(tools: &dyn Tools, node: &NodeId) -> Result<NodeRead, String> {
    let found = tools
        .snapshot(node, &Deadline::new("snapshot", LIMIT))
        .map_err(|failed| format!("the node cannot be read: {}", failed.what))?;
    let (table, wanted) = (PreflightTable::default(), Wanted::default());
    let judged = Judge::new(&table, &[], &wanted).judge(&[], &found.facts);
    let bad = judged.findings.iter().filter(|noted| noted.condemns());
    Ok(NodeRead {
        bad: bad.map(show::sentence).collect(),
        notes: found.notes,
        gpus: found.gpus,
    })
}

/// Checks this node.
struct Clinic {
    node: NodeId,
    run_dir: Option<PathBuf>,
    tools: Box<dyn Tools>,
    /// Locked during a check, so that only one runs at a time.
    busy: Mutex<()>,
}

impl Clinic {
    fn answer(&self) -> grpc::Answer {
        let health = self.examine();
        let is_well = health.fail_count == 0;
        grpc::Answer {
            success: is_well,
            exit_code: if is_well { 0 } else { CRITICAL.into() },
            output: serde_json::to_string(&health).unwrap_or_default(),
            error: health.failed_checks.join("; "),
        }
    }

    fn examine(&self) -> Health {
        let _one = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut failed_checks, mut notes) = (Vec::new(), Vec::new());
        match self.last() {
            // Do not use a simulated result, because it must exclude no node.
            Ok(Some(report)) if report.simulated => notes.push("the preflight was simulated".to_owned()),
            Ok(Some(report)) => {
                if report.bad_nodes().contains(&self.node) {
                    failed_checks.extend(self.accused(&report));
                } else if report.outcome == Outcome::Unknown {
                    notes.push("the preflight had nothing to compare with".to_owned());
                }
            }
            Ok(None) => notes.push("no preflight was done".to_owned()),
            Err(problem) => notes.push(format!("the preflight cannot be read: {problem:#}")),
        }
        match read_by(&*self.tools, &self.node) {
            Ok(found) => {
                notes.extend(found.notes);
                failed_checks.extend(found.bad);
            }
            Err(problem) => notes.push(problem),
        }
        failed_checks.sort();
        failed_checks.dedup();
        Health {
            schema_version: 1,
            node: self.node.to_string(),
            fail_count: failed_checks.len(),
            failed_checks,
            notes,
        }
    }

    /// Returns the last preflight of the run directory, if there was one.
    fn last(&self) -> anyhow::Result<Option<Report>> {
        let Some(dir) = &self.run_dir else {
            return Ok(None);
        };
        let text = match fs::read_to_string(dir.join(FILE)) {
            Err(problem) if problem.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text?,
        };
        let report: Report = serde_json::from_str(&text)?;
        anyhow::ensure!(
            report.schema_version <= PREFLIGHT_SCHEMA,
            "its version {} is newer than {PREFLIGHT_SCHEMA}",
            report.schema_version
        );
        Ok(Some(report))
    }

    /// Returns the reasons for which the preflight would exclude this node.
    fn accused(&self, report: &Report) -> Vec<String> {
        let of_it = report.findings.iter();
        let of_it = of_it.filter(|noted| noted.place.node() == Some(&self.node) && noted.condemns());
        let lost = report.problems.iter();
        let lost = lost.filter(|problem| problem.lost && problem.node.as_ref() == Some(&self.node));
        of_it
            .map(show::sentence)
            .chain(lost.map(|problem| problem.what.to_string()))
            .collect()
    }
}

/// Listens on a socket that only this user can access. Replaces the socket of a killed process, but not one on which a
/// process still listens.
fn listen(path: &Path) -> io::Result<UnixListener> {
    let is_socket = |path: &Path| {
        use std::os::unix::fs::FileTypeExt;
        fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
    };
    if is_socket(path) && UnixStream::connect(path).is_err() {
        fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
