//! `paceline preflight`: know the machines before the job starts; and the gate that `paceline run --preflight` has.

mod args;
mod gate;
mod history;
mod show;
mod work;

use std::process::ExitCode;

use paceline_health::preflight::{Outcome, Report};

pub(crate) use args::{GateArgs, MeetingArgs, PreflightArgs, PreflightCommand};
pub(crate) use gate::{Way, gate};
use work::Wish;

use crate::output::{self, Color, Style, Usage};
use crate::run::identity;

/// Exit codes of a check.
const WARNING: u8 = 1;
const CRITICAL: u8 = 2;
const UNKNOWN: u8 = 3;

/// The file in the run directory.
pub(crate) const FILE: &str = "preflight.json";

/// Runs a preflight alone.
pub(crate) fn command(args: &PreflightArgs, color: Color) -> anyhow::Result<ExitCode> {
    if let Some(PreflightCommand::History(args)) = &args.command {
        return history::command(args, color);
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
    let report = match &args.sim {
        Some(script) => work::simulate(script, &wish, color)?,
        None => work::run(&wish, color)?,
    };
    if args.json {
        output::print(&(serde_json::to_string(&report)? + "\n"))?;
    } else {
        output::print(&show::render(&report, Style::stdout(color)))?;
    }
    Ok(exit_code(&report, args.strict))
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

/// A mistake in how it was asked for.
fn usage(problem: impl std::fmt::Display) -> anyhow::Error {
    anyhow::Error::new(Usage(problem.to_string()))
}
