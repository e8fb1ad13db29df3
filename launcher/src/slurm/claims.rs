//! A job's own findings about a node. Its reports are the user's files, so they are read as that user, in a separate
//! process, and their contents are only a reason to check the node.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use paceline_health::Provenance;
use paceline_health::report::{Reason, Report, headline};
use paceline_health::verdict::{Severity, Subject, Verdict};
use paceline_sidecar::host::read_plain;
use serde::{Deserialize, Serialize};

use super::{bounded, scontrol, variable};
use crate::output;
use crate::report;

/// Time limit, since a shared file system may hang.
const LIMIT: Duration = Duration::from_secs(5);
/// Maximum size of a report.
const MOST_BYTES: u64 = 16 << 20;
/// Maximum number of claims about a node, and maximum length of each.
const MOST: usize = 8;
const MOST_WORDS: usize = 160;
/// Maximum number of runs whose end is reported.
const MOST_ENDS: usize = 64;
/// Maximum number of entries read from the job's directory.
const MOST_ENTRIES: usize = 10_000;

#[derive(Debug, Args)]
pub(super) struct SaidArgs {
    /// The job's number.
    #[arg(long, value_name = "JOB")]
    job: String,
    /// The node.
    #[arg(long, value_name = "NAME")]
    node: String,
    /// The job's directory.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// A job's own statements.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Said {
    /// About this node.
    pub(super) claims: Vec<String>,
    /// About the job, in one line.
    pub(super) summary: Option<String>,
    /// The ends of its runs.
    #[serde(default)]
    pub(super) ends: Vec<End>,
    /// Why there are none.
    #[serde(default)]
    pub(super) problem: Option<String>,
}

/// The end of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct End {
    /// Name of its directory.
    pub(super) run: String,
    /// The reason; `None`: its report has no end.
    pub(super) reason: Option<Reason>,
    /// The first by name of the nodes whose command ended.
    pub(super) first: Option<String>,
}

/// The statements of the job that has just ended on `node`, read as its user.
pub(super) fn of_job(node: &str) -> Said {
    read_as_user(node).unwrap_or_else(|problem| Said {
        problem: Some(format!("{problem:#}")),
        ..Said::default()
    })
}

fn read_as_user(node: &str) -> anyhow::Result<Said> {
    let need = |name: &'static str| variable(name).with_context(|| format!("{name} is not set"));
    let id = |name| -> anyhow::Result<u32> { need(name)?.parse().with_context(|| name) };
    let (uid, gid) = (id("SLURM_JOB_UID")?, id("SLURM_JOB_GID")?);
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args([
            "slurm",
            "said",
            "--job",
            &need("SLURM_JOB_ID")?,
            "--node",
            node,
            "--",
        ])
        .arg(need("SLURM_JOB_WORK_DIR")?)
        .env_clear()
        .current_dir("/");
    if rustix::process::geteuid().is_root() {
        // Without root's groups: the standard library drops them when it changes the user.
        command.uid(uid).gid(gid);
    }
    let ran = bounded::run(&mut command, LIMIT)?;
    anyhow::ensure!(ran.code == Some(0), "{}", ran.stderr.trim());
    let mut said: Said = serde_json::from_str(&ran.stdout)?;
    // The user may have manipulated the process's output.
    said.claims.truncate(MOST);
    said.ends.truncate(MOST_ENDS);
    let runs = said.ends.iter_mut().map(|end| &mut end.run);
    for text in said.claims.iter_mut().chain(&mut said.summary).chain(runs) {
        *text = scontrol::plain(text, MOST_WORDS);
    }
    Ok(said)
}

/// `paceline slurm said`: one line of JSON.
pub(super) fn said(args: &SaidArgs) -> anyhow::Result<ExitCode> {
    let mut said = Said::default();
    for path in reports(&args.dir, &args.job)? {
        let Ok(report) = read(&path) else { continue };
        let of_node = report
            .verdicts
            .iter()
            .filter(|verdict| blames(verdict, &args.node));
        said.claims.extend(of_node.map(sentence));
        said.summary = Some(summary(&report));
        said.ends.extend(end(&path, &report));
    }
    said.claims.truncate(MOST);
    // The latest: earlier ones were counted after earlier runs.
    said.ends.drain(..said.ends.len().saturating_sub(MOST_ENDS));
    output::print(&(serde_json::to_string(&said)? + "\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// Reports of the job's steps and restarts, the latest last: `paceline-7.0-r1/report.json` of job 7.
fn reports(dir: &Path, job: &str) -> anyhow::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir).with_context(|| dir.display().to_string())?;
    let start = format!("paceline-{job}");
    let is_of_job = |name: &str| {
        let rest = name.strip_prefix(&start);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '-']))
    };
    let names = entries
        .take(MOST_ENTRIES)
        .flatten()
        .map(|entry| entry.file_name());
    let of_job = names.filter(|name| name.to_str().is_some_and(is_of_job));
    let mut found: Vec<_> = of_job
        .map(|name| dir.join(name).join(report::FILE))
        .filter_map(|path| Some((fs::metadata(&path).ok()?.modified().ok()?, path)))
        .collect();
    found.sort();
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

fn read(path: &Path) -> anyhow::Result<Report> {
    Ok(serde_json::from_str(&read_plain(path, MOST_BYTES)?)?)
}

fn end(path: &Path, report: &Report) -> Option<End> {
    let run = path.parent()?.file_name()?.to_str()?.to_owned();
    let first = report
        .exits
        .iter()
        .map(|exit| exit.node.as_str().to_owned())
        .min();
    let reason = report.end.as_ref().map(|end| end.reason);
    Some(End { run, reason, first })
}

/// Only live findings that are severe enough.
fn blames(verdict: &Verdict, name: &str) -> bool {
    let node = match &verdict.subject {
        Subject::Node { node } | Subject::Rank { node, .. } | Subject::Gpu { node, .. } => node,
        _ => return false,
    };
    node.as_str() == name && verdict.provenance == Provenance::Live && verdict.severity >= Severity::Warning
}

fn sentence(verdict: &Verdict) -> String {
    let severity = paceline_health::text::humanize::severity(verdict.severity).to_lowercase();
    let cause = paceline_health::text::humanize::cause(verdict.cause);
    format!(
        "{severity} {} of {} ({cause})",
        verdict.finding,
        verdict.subject_text()
    )
}

/// The end of the run, and the most important finding.
fn summary(report: &Report) -> String {
    let end = report
        .end
        .as_ref()
        .map_or("end not seen", |end| end.reason.name());
    let mut text = format!("{end}, {} steps", report.steps);
    if let Some(end) = report.end.as_ref().filter(|end| end.reason != Reason::Success) {
        text += &format!(" ({})", headline(&end.says));
    }
    let worst = report.verdicts.iter().min_by_key(|verdict| verdict.weight());
    if let Some(verdict) = worst {
        text += &format!("; {}", sentence(verdict));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_of_this_job_only() {
        let dir = tempfile::tempdir().unwrap();
        for name in [
            "paceline-7.0",
            "paceline-7",
            "paceline-7.0-r1",
            "paceline-71.0",
            "paceline-x",
        ] {
            fs::create_dir(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join(report::FILE), "{}").unwrap();
        }
        let found = reports(dir.path(), "7").unwrap();
        let mut names: Vec<_> = found
            .iter()
            .map(|path| path.parent().unwrap().file_name().unwrap().to_str().unwrap())
            .collect();
        names.sort_unstable();
        assert_eq!(names, ["paceline-7", "paceline-7.0", "paceline-7.0-r1"]);
        assert!(reports(&dir.path().join("none"), "7").is_err());
    }
}
