//! Reads a job's own findings about a node. The job's reports are the user's files. Therefore they are read as that
//! user in a separate process, and their contents are only a reason to check the node.

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

/// Time limit for reading, since a shared file system may hang.
const LIMIT: Duration = Duration::from_secs(5);
/// Maximum size of a report in bytes.
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

/// What a job says about a node and about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Said {
    /// The findings about this node.
    pub(super) claims: Vec<String>,
    /// A summary of the job, in one line.
    pub(super) summary: Option<String>,
    /// How the job's runs ended.
    #[serde(default)]
    pub(super) ends: Vec<End>,
    /// Why nothing could be read, if that is the case.
    #[serde(default)]
    pub(super) problem: Option<String>,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct End {
    /// The name of the run's directory.
    pub(super) run: String,
    /// The reason of the end, or `None` if the report has no end.
    pub(super) reason: Option<Reason>,
    /// The first node, by name, of those whose command has ended.
    pub(super) first: Option<String>,
}

/// Reads what the job that has just ended on `node` says, as the job's user.
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
        // This also drops root's groups, because the standard library does so when it changes the user.
        command.uid(uid).gid(gid);
    }
    let ran = bounded::run(&mut command, LIMIT)?;
    anyhow::ensure!(ran.code == Some(0), "{}", ran.stderr.trim());
    let mut said: Said = serde_json::from_str(&ran.stdout)?;
    // Limit the output again, because the user may have manipulated the process.
    said.claims.truncate(MOST);
    said.ends.truncate(MOST_ENDS);
    let runs = said.ends.iter_mut().map(|end| &mut end.run);
    for text in said.claims.iter_mut().chain(&mut said.summary).chain(runs) {
        *text = scontrol::plain(text, MOST_WORDS);
    }
    Ok(said)
}

/// Runs `paceline slurm said`, which prints one line of JSON.
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
    // Keep the latest ends. Earlier ones were counted after earlier runs.
    said.ends.drain(..said.ends.len().saturating_sub(MOST_ENDS));
    output::print(&(serde_json::to_string(&said)? + "\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the reports of the job's steps and restarts, the latest last. An example is `paceline-7.0-r1/report.json` of
/// job 7.
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

/// Returns true if the finding is about the node `name`, live, and severe enough.
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

/// Returns the end of the run and the most important finding.
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
