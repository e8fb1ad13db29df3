//! `paceline report`: what is known of a job, for people and as JSON.

pub(crate) mod block;
mod cost;
mod evidence;
pub(crate) mod words;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use paceline_health::Policy;
use paceline_health::report::{REPORT_VERSION, Report};

use crate::cli::ReportArgs;
use crate::journal::{self, Journal};
use crate::output::{self, Color, Style};

/// Name of the report in a run directory.
pub(crate) const FILE: &str = "report.json";

/// Shows a report, or the one that a journal leads to.
pub(crate) fn command(args: &ReportArgs, color: Color) -> anyhow::Result<ExitCode> {
    let report = find(&args.run, Style::stderr(color))?;
    let text = if args.json {
        line(&report)?
    } else {
        block::render(&report, &Policy::default(), Style::stdout(color), None)
    };
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The report as the one line that every command prints with `--json`.
pub(crate) fn line(report: &Report) -> serde_json::Result<String> {
    Ok(serde_json::to_string(report)? + "\n")
}

/// Reads `report.json`.
pub(crate) fn read(path: &Path) -> anyhow::Result<Report> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let report: Report = serde_json::from_str(&text).map_err(|problem| {
        let place = format!(
            "{}:{}:{}",
            path.display(),
            problem.line().max(1),
            problem.column().max(1)
        );
        anyhow::anyhow!("{place}: {problem}")
    })?;
    if report.schema_version > REPORT_VERSION {
        let found = report.schema_version;
        anyhow::bail!(
            "{}: report version {found} is newer than {REPORT_VERSION}: update paceline",
            path.display()
        );
    }
    Ok(report)
}

/// Writes `report.json` so that a reader sees the old one or the new one, never half.
pub(crate) fn write(run_dir: &Path, report: &Report) -> io::Result<PathBuf> {
    let path = run_dir.join(FILE);
    let temporary = run_dir.join(format!(".{FILE}.{}", std::process::id()));
    fs::write(&temporary, line(report)?)?;
    fs::rename(&temporary, &path).inspect_err(|_| {
        let _ = fs::remove_file(&temporary);
    })?;
    Ok(path)
}

fn find(run: &Path, style: Style) -> anyhow::Result<Report> {
    let meta = fs::metadata(run).with_context(|| run.display().to_string())?;
    if meta.is_dir() {
        let (report, journal) = (run.join(FILE), run.join(journal::FILE));
        if report.exists() {
            return read(&report);
        }
        if !journal.exists() {
            anyhow::bail!("{}: holds neither {FILE} nor {}", run.display(), journal::FILE);
        }
        return fold(&journal, style);
    }
    // A report names its own version; a journal's lines do not.
    match read(run) {
        Ok(report) => Ok(report),
        Err(problem) if run.extension().is_some_and(|end| end == "json") => Err(problem),
        Err(_) => fold(run, style),
    }
}

fn fold(path: &Path, style: Style) -> anyhow::Result<Report> {
    let mut journal = Journal::open(path, false)?;
    let detector = journal.fold(Policy::default(), |_, detector| {
        while detector.poll().is_some() {}
        anyhow::Ok(())
    })?;
    for warning in journal.warnings() {
        output::warning(style, warning);
    }
    Ok(detector.report())
}
