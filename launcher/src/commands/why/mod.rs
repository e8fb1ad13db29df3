//! `paceline why`: shows why a job hangs, which ranks make no progress, and what every rank is doing.

mod flight_recorder;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::Context as _;
use clap::Args;
use paceline_health::Policy;
use paceline_health::event::{Activity, ThreadState};
use paceline_health::flight_recorder::Comparison;
use paceline_health::report::{Report, StackGroup};
use paceline_health::text::humanize::{count, span};
use paceline_health::text::sanitize;
use paceline_health::verdict::{Finding, State, Verdict};
use serde::Serialize;

use crate::output::{self, Color, Paint, Style};
use crate::report::{self, block, by_weight};

/// Findings of ranks that make no progress.
const HANGS: [Finding; 4] = [
    Finding::RankSilent,
    Finding::JobHang,
    Finding::RankDied,
    Finding::RanksMissing,
];
/// Maximum number of findings shown in full.
const MAX_FINDINGS: usize = 4;
/// Maximum number of characters of a file or function name.
const MAX_NAME: usize = 160;

/// `paceline why`.
#[derive(Debug, Args)]
#[command(
    after_help = "Ranks that have not moved for five seconds are asked for their stacks. It works while the job runs, \
from a second terminal on rank 0's node, and after it.\n\nExample: paceline why ./paceline-llama"
)]
pub(crate) struct WhyArgs {
    /// A run directory, a report.json or a journal [default: the newest ./paceline-*].
    #[arg(value_name = "RUN", env = "PACELINE_RUN_DIR")]
    run: Option<PathBuf>,
    /// A directory with dumps of PyTorch's flight recorder, one per rank, of any job; without RUN these alone are
    /// explained. Nothing in them is executed [default: those in the run directory].
    #[arg(long, value_name = "DIR")]
    flight_recorder: Option<PathBuf>,
    /// Print it as one line of JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Why<'a> {
    /// The job's name, or `None` if no run was given.
    job: Option<&'a str>,
    findings: Vec<&'a Verdict>,
    stacks: &'a [StackGroup],
    flight_recorder: Option<Comparison>,
}

/// Prints the explanation.
pub(crate) fn command(args: &WhyArgs, color: Color) -> anyhow::Result<ExitCode> {
    let (stdout, stderr) = (Style::stdout(color), Style::stderr(color));
    let run = match (&args.run, &args.flight_recorder) {
        (Some(run), _) => Some(run.clone()),
        (None, Some(_)) => None,
        (None, None) => Some(newest(Path::new("."))?),
    };
    let report = run
        .as_ref()
        .map(|run| report::find(run, false, stderr))
        .transpose()?;
    let recorded = match (&args.flight_recorder, &run) {
        (Some(dir), _) => Some(flight_recorder::of_directory(dir, stderr)?),
        (None, Some(run)) => {
            // For a report or a journal, use the dumps in the same directory.
            let beside = run.with_file_name("");
            flight_recorder::of_run(if run.is_dir() { run } else { &beside }, stderr)
        }
        (None, None) => None,
    };
    let findings = report.as_ref().map(hangs).unwrap_or_default();
    let text = if args.json {
        let why = Why {
            job: report.as_ref().map(|report| report.job.as_str()),
            findings,
            stacks: report.as_ref().map(|report| &*report.stacks).unwrap_or_default(),
            flight_recorder: recorded,
        };
        format!("{}\n", output::escaped(&serde_json::to_string(&why)?))
    } else {
        let mut text = String::new();
        if let Some(report) = &report {
            text += &block::findings(report, &findings, &Policy::default(), stdout);
            // If there are dumps, do not say that nothing was found: they show why PyTorch's watchdog ended the job.
            if findings.is_empty() && recorded.is_none() {
                text += &nothing(report);
            }
            text += &stacks(&report.stacks, report.duration_s, stdout);
        }
        if let Some(compared) = &recorded {
            text += &flight_recorder::text(compared, stdout);
        }
        text
    };
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the hang findings that are active, or were active when the job ended.
fn hangs(report: &Report) -> Vec<&Verdict> {
    let all = by_weight(report).into_iter();
    let hangs = all.filter(|verdict| HANGS.contains(&verdict.finding) && verdict.state == State::Raised);
    hangs.take(MAX_FINDINGS).collect()
}

/// Returns the text to print if no finding names a rank.
fn nothing(report: &Report) -> String {
    let steps = count(report.steps, "step");
    if !report.stacks.is_empty() {
        return format!(" No rank is named yet, after {steps}: these have not moved for seconds.\n");
    }
    let slow = report
        .verdicts
        .iter()
        .any(|verdict| verdict.state == State::Raised);
    let hint = if slow {
        "; paceline report shows what slows it down"
    } else {
        ""
    };
    format!(" No rank is stuck, after {steps}{hint}.\n")
}

/// Returns the newest run in this directory.
fn newest(place: &Path) -> anyhow::Result<PathBuf> {
    let entries = fs::read_dir(place).with_context(|| place.display().to_string())?;
    let runs = entries.filter_map(|entry| {
        let path = entry.ok()?.path();
        let is_run = path.file_name()?.to_str()?.starts_with("paceline-") && path.is_dir();
        let journal = fs::metadata(path.join(crate::journal::FILE)).ok()?;
        is_run.then_some((journal.modified().unwrap_or(SystemTime::UNIX_EPOCH), path))
    });
    let newest = runs.max().map(|(_, path)| path);
    newest
        .context("no run in this directory: name its run directory (paceline-JOB, where the job was started)")
}

fn stacks(groups: &[StackGroup], now_s: f64, style: Style) -> String {
    let mut text = String::new();
    if !groups.is_empty() {
        text += &format!(
            "\n {}\n",
            style.paint(Paint::Strong, "stacks, innermost frame first")
        );
    }
    for group in groups {
        let ranks: Vec<String> = group.ranks.iter().take(16).map(ToString::to_string).collect();
        let more = group.ranks.len() - ranks.len();
        let more = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        let whose = if group.ranks.len() == 1 { "rank" } else { "ranks" };
        let ago = span((now_s - group.taken_s).max(0.0));
        text += &format!("   {whose} {}{more}, {ago} ago\n", ranks.join(", "));
        text += &frames(&group.main, style);
        for worker in &group.workers {
            text += &format!("     {}\n", count(worker.count.into(), "worker"));
            text += &frames(&worker.activity, style);
        }
    }
    text
}

fn frames(activity: &Activity, style: Style) -> String {
    let mut text = String::new();
    let name = |name: &str| sanitize::clip(name, MAX_NAME);
    let state = match activity.state {
        ThreadState::Running => "running",
        ThreadState::Sleeping => "",
        ThreadState::Disk => "in an uninterruptible sleep",
        ThreadState::Stopped | ThreadState::Traced => "stopped",
        ThreadState::Zombie => "has ended",
        ThreadState::Unknown => "",
    };
    let facts = [state, &*activity.waits_in, &*activity.missing];
    let facts: Vec<String> = facts
        .into_iter()
        .filter(|fact| !fact.is_empty())
        .map(name)
        .collect();
    if !facts.is_empty() {
        text += &format!("       {}\n", style.paint(Paint::Faint, facts.join(", ")));
    }
    for (index, frame) in activity.frames.iter().enumerate() {
        let line = format!("{} ({}:{})", name(&frame.function), name(&frame.file), frame.line);
        let is_own = activity.own == Some(index as u8);
        let paint = if is_own { Paint::Strong } else { Paint::Faint };
        let mark = if is_own { style.glyph("›", ">") } else { " " };
        text += &format!("     {mark} {}\n", style.paint(paint, line));
    }
    text
}
