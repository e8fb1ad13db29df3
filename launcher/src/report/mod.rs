//! `paceline report`: shows the report of a job, as text or as JSON.

mod advice;
mod args;
pub(crate) mod block;
mod clock;
mod compare;
mod cost;
mod ending;
pub(crate) mod heading;
mod markdown;
pub(crate) mod page;
mod preflight;
mod profile;
mod remedies;
pub(crate) mod rollup;
#[cfg(test)]
pub(crate) mod samples;
mod times;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use paceline_health::Policy;
use paceline_health::report::{REPORT_VERSION, Report};
use paceline_health::verdict::{Finding, Verdict};
use paceline_sidecar::remedy::books;
use paceline_sidecar::safe_file;
use paceline_sidecar::sink::write_whole;
use serde::Serialize;

pub(crate) use self::args::ReportArgs;
use crate::journal::{self, Journal};
use crate::output::{self, Color, Style};

/// Name of the report in a run directory.
pub(crate) const FILE: &str = "report.json";

/// Shows a report, or creates it from a journal and shows it.
pub(crate) fn command(args: &ReportArgs, color: Color) -> anyhow::Result<ExitCode> {
    if let Some([a, b]) = args.compare.as_deref() {
        return compare::command(args, a, b, color);
    }
    if let Some(since) = args.since {
        return rollup::command(args, since, color);
    }
    // clap has ensured that there is a run.
    let run = args.run.as_deref().unwrap_or(Path::new("."));
    let report = find(run, args.skip_broken, Style::stderr(color))?;
    let policy = Policy::default();
    if let Some(file) = &args.html {
        let whole = page::page(&report, &policy);
        return put_page(&whole, file, || beside(run, page::FILE));
    }
    let text = if args.json {
        line(&report)?
    } else if args.md {
        markdown::render(&report, &policy)
    } else {
        block::render(&report, &policy, Style::stdout(color), &[])
    };
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a page to the given path, or to the usual one if none is given, and prints its path. `-` means stdout.
fn put_page(page: &str, file: &Option<PathBuf>, usual: impl FnOnce() -> PathBuf) -> anyhow::Result<ExitCode> {
    let path = match file {
        Some(file) if file == Path::new("-") => {
            output::print(page)?;
            return Ok(ExitCode::SUCCESS);
        }
        Some(file) => file.clone(),
        None => usual(),
    };
    write_whole(&path, page.as_bytes()).with_context(|| path.display().to_string())?;
    output::print(&format!("{}\n", path.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the path of the file `name` in the run directory, or next to the report.
fn beside(run: &Path, name: &str) -> PathBuf {
    if run.is_dir() {
        run.join(name)
    } else {
        run.with_file_name(name)
    }
}

/// Returns the findings in display order: active ones first, then by severity. Among equal ones, those with the largest
/// slowdown come first, then the earliest.
pub(crate) fn by_weight(report: &Report) -> Vec<&Verdict> {
    let mut verdicts: Vec<&Verdict> = report.verdicts.iter().collect();
    verdicts.sort_by_key(|verdict| verdict.weight());
    verdicts
}

/// Returns the report as the one line that every command prints with `--json`. It is the aggregator's report with the
/// advice added. It encodes every text exactly, but without terminal control characters.
pub(crate) fn line(report: &Report) -> serde_json::Result<String> {
    #[derive(Serialize)]
    struct Line<'a> {
        #[serde(flatten)]
        report: &'a Report,
        /// The advice, or `null` if no step was observed.
        advice: Option<advice::Advice>,
    }
    let advice = advice::of(report).ok();
    let json = serde_json::to_string(&Line { report, advice })?;
    Ok(format!("{}\n", output::escaped(&json)))
}

/// Returns the address of a finding's section in the runbook.
pub(crate) fn runbook(finding: Finding) -> String {
    format!(
        "{}/blob/main/docs/findings.md#{finding}",
        env!("CARGO_PKG_REPOSITORY")
    )
}

/// Reads `report.json`.
pub(crate) fn read(path: &Path) -> anyhow::Result<Report> {
    let place = || path.display().to_string();
    // Check the type first, because reading a pipe would block.
    let meta = fs::metadata(path).with_context(place)?;
    anyhow::ensure!(meta.is_file(), "{}: not a regular file", place());
    let text = fs::read_to_string(path).with_context(place)?;
    parse(&text).map_err(|problem| anyhow::anyhow!("{}{problem}", path.display()))
}

/// Parses a report. An error has its position and description.
fn parse(text: &str) -> Result<Report, String> {
    // Parse only the version first, so that a newer report is not rejected because of fields that this version does not
    // know.
    match serde_json::from_str::<Versioned>(text) {
        Ok(Versioned { schema_version }) if schema_version > REPORT_VERSION => {
            return Err(format!(
                ": report version {schema_version} is newer than {REPORT_VERSION}: update paceline"
            ));
        }
        Err(problem) if problem.is_data() => {
            return Err(": not a report of paceline: it has no schema_version".to_owned());
        }
        _ => {}
    }
    serde_json::from_str(text).map_err(|problem| {
        let (line, column) = (problem.line().max(1), problem.column().max(1));
        let message = problem.to_string();
        // Remove the position from the end of serde_json's message, because it comes first in ours.
        let message = message
            .rsplit_once(" at line ")
            .map_or(&*message, |(head, _)| head);
        format!(":{line}:{column}: {message}")
    })
}

/// Returns true if no version of Paceline wrote the file.
pub(crate) fn is_foreign(path: &Path) -> bool {
    // Open the file with care, because reading a pipe could block forever. The aggregator moves a pipe or a directory
    // out of its way.
    let text = safe_file::open(path).and_then(io::read_to_string);
    text.is_ok_and(|text| serde_json::from_str::<Versioned>(&text).is_err())
}

/// The only field that every version of a report has.
#[derive(serde::Deserialize)]
struct Versioned {
    schema_version: u32,
}

/// Writes `report.json` atomically, so that a reader sees either the old one or the new one.
pub(crate) fn write(run_dir: &Path, report: &Report) -> io::Result<PathBuf> {
    let path = run_dir.join(FILE);
    write_whole(&path, line(report)?.as_bytes())?;
    Ok(path)
}

/// Returns the report of a run directory, a report.json or a journal.
pub(crate) fn find(run: &Path, skip_broken: bool, style: Style) -> anyhow::Result<Report> {
    let fold = |journal: &Path| fold(journal, skip_broken, style);
    let wanted = || {
        format!(
            "{}: no run directory, report or journal (a run's own directory is paceline-JOB, where it was started)",
            run.display()
        )
    };
    let meta = fs::metadata(run).with_context(wanted)?;
    if meta.is_dir() {
        let (report, journal) = (run.join(FILE), run.join(journal::FILE));
        if report.exists() {
            return read(&report);
        }
        if !journal.exists() {
            anyhow::bail!("{}: holds neither {FILE} nor {}", run.display(), journal::FILE);
        }
        return fold(&journal);
    }
    // Try to read a report first. It contains a version, which a journal's lines do not.
    match read(run) {
        Ok(report) => Ok(report),
        Err(problem) if run.extension().is_some_and(|end| end == "json") => Err(problem),
        Err(_) => fold(run),
    }
}

fn fold(path: &Path, skip_broken: bool, style: Style) -> anyhow::Result<Report> {
    let (journal, known) = Journal::resume(path, skip_broken)?;
    let mut journal = journal.showing(style);
    let detector = journal.fold_on(known, |_, detector| {
        while detector.poll().is_some() {}
        anyhow::Ok(())
    })?;
    for warning in journal.warnings() {
        output::warning(style, warning);
    }
    let mut report = detector.report();
    report.remedies = path.parent().map(books::told_in).unwrap_or_default();
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_is_nobodys_result_and_holds_up_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        assert!(!is_foreign(&path));
        let problem = read(&path).unwrap_err().to_string();
        assert!(problem.ends_with("report.json: not a regular file"), "{problem}");
        fs::remove_file(&path).unwrap();
        fs::write(&path, "{}").unwrap();
        assert!(is_foreign(&path));
    }

    #[test]
    fn a_file_that_is_no_report_is_told_from_a_newer_and_from_a_broken_one() {
        for (text, expected) in [
            (
                r#"{"schema_version":9,"news":1}"#,
                ": report version 9 is newer than 1: update paceline",
            ),
            ("null", ": not a report of paceline: it has no schema_version"),
            (
                r#"{"accuracy":0.9}"#,
                ": not a report of paceline: it has no schema_version",
            ),
            (
                "{\"schema_version\":1,\n\"job\":7}",
                ":2:7: invalid type: integer `7`, expected a string",
            ),
            ("{", ":1:1: EOF while parsing an object"),
        ] {
            assert_eq!(parse(text).unwrap_err(), expected);
        }
    }
}
