//! `paceline preflight`: measures the machines before the job starts. This module also has the gate of `paceline run
//! --preflight`.

mod args;
mod endpoint;
mod gate;
mod history;
mod page;
mod past;
mod serve;
pub(crate) mod show;
mod work;

use std::process::ExitCode;

use anyhow::Context as _;
use paceline_health::preflight::{Outcome, Report};
use paceline_sidecar::safe_file;

use args::ImportArgs;
pub(crate) use args::{GateArgs, MeetingArgs, PreflightArgs, PreflightCommand};
pub(crate) use gate::{Start, Way, gate};
pub(crate) use serve::read_node;
use work::Wish;

use crate::output::{self, Color, Style, Usage};
use crate::run::identity;

/// Exit codes of a check with findings.
const WARNING: u8 = 1;
const CRITICAL: u8 = 2;
const UNKNOWN: u8 = 3;

/// Names of the file in the run directory, and of the HTML page next to it.
pub(crate) const FILE: &str = "preflight.json";
const PAGE: &str = "preflight.html";

/// Runs a standalone preflight.
pub(crate) fn command(args: &PreflightArgs, color: Color) -> anyhow::Result<ExitCode> {
    match &args.command {
        Some(PreflightCommand::History(args)) => return history::command(args, color),
        Some(PreflightCommand::Import(args)) => return import(args),
        Some(PreflightCommand::Serve(args)) => return serve::command(args),
        None => {}
    }
    if let Some(path) = &args.html {
        output::check_writable("--html", path)?;
    }
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let job = args
        .job
        .clone()
        .unwrap_or_else(|| identity::known_job(&variable).unwrap_or_else(|| "preflight".into()));
    let wish = Wish {
        mode: args.mode,
        meeting: args.meeting.clone(),
        job,
        node: args.node.clone().unwrap_or_else(|| identity::node(&variable)),
        run_dir: args.run_dir.clone(),
        command: Vec::new(),
    };
    let done = match &args.sim {
        Some(script) => work::simulate(script, &wish, color),
        None => work::run(&wish, color),
    };
    let report = match done {
        Ok(report) => report,
        Err(problem) if problem.is::<Usage>() => return Err(problem),
        Err(problem) => {
            output::error(Style::stderr(color), &problem);
            return Ok(ExitCode::from(UNKNOWN));
        }
    };
    if let Some(path) = &args.html {
        // Only warn about the failure, because the results are printed anyway.
        if let Err(problem) = safe_file::write_named(path, page::page(&report).as_bytes()) {
            output::warning(
                Style::stderr(color),
                format_args!("{}: {problem}", path.display()),
            );
        }
    }
    if args.json {
        output::print(&(serde_json::to_string(&report)? + "\n"))?;
    } else {
        output::show(&show::render(&report, Style::stdout(color)))?;
    }
    Ok(exit_code(&report, args.strict))
}

/// Runs `paceline preflight import FILE`.
fn import(args: &ImportArgs) -> anyhow::Result<ExitCode> {
    let read = paceline_nccl_bench::import::file(&args.file, args.collective);
    let report = read.with_context(|| args.file.display().to_string())?;
    let text = if args.json {
        serde_json::to_string(&report)? + "\n"
    } else {
        paceline_nccl_bench::render(&report)
    };
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn exit_code(report: &Report, strict: bool) -> ExitCode {
    match report.outcome {
        Outcome::Ok => ExitCode::SUCCESS,
        Outcome::Warning if strict => ExitCode::from(WARNING),
        Outcome::Warning => ExitCode::SUCCESS,
        Outcome::Unknown => ExitCode::from(UNKNOWN),
        Outcome::Critical => ExitCode::from(CRITICAL),
    }
}

/// Converts a problem to a usage error.
fn usage(problem: impl std::fmt::Display) -> anyhow::Error {
    anyhow::Error::new(Usage(problem.to_string()))
}
