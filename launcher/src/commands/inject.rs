//! `paceline inject`: injects faults into a running job, to test what Paceline reports about them.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use paceline_sidecar::aggregator::control::{Answer, Request, request};
use paceline_sidecar::aggregator::inject::Injection;

use crate::cli::LiveArgs;
use crate::config;
use crate::output::{self, Usage};

/// `paceline inject`.
#[derive(Debug, Args)]
#[command(
    after_help = "Faults: \"slow rank=3 factor=1.5 for=60\", \"silent rank=3 for=60\", \"xid rank=3 code=79 GPU has \
fallen off the bus.\", \"ecc rank=3\", \"throttle rank=3\", \"link rank=3\"; for= is in seconds [default: \
120].\n\nThe aggregator alters the telemetry of that rank or its GPU before it journals it, and marks it as \
injected: no verdict based on it may trigger an action, and the trainer is not affected. A job on real GPUs is \
refused without --yes-really."
)]
pub(crate) struct InjectArgs {
    #[command(flatten)]
    live: LiveArgs,
    /// Faults to inject, all or none.
    #[arg(value_name = "FAULT")]
    faults: Vec<String>,
    /// File with faults, one per line.
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,
    /// Inject even if the job trains on real GPUs.
    #[arg(long)]
    yes_really: bool,
}

/// Injects the faults.
pub(crate) fn command(args: &InjectArgs) -> anyhow::Result<ExitCode> {
    let mut faults = Vec::new();
    for text in &args.faults {
        faults.push(text.parse::<Injection>().map_err(Usage)?);
    }
    if let Some(path) = &args.script {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let lines = (1..).zip(text.lines());
        for (number, line) in lines.filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#')) {
            let place = |why| Usage(format!("{}, line {number}: {why}", path.display()));
            faults.push(line.parse::<Injection>().map_err(place)?);
        }
    }
    if faults.is_empty() {
        return Err(Usage("nothing to inject: name a fault, such as \"slow rank=3\"".to_owned()).into());
    }
    let dir = config::live_run_dir(&args.live)?;
    let told: String = faults
        .iter()
        .map(|fault| format!("injected: {fault}\n"))
        .collect();
    let ask = Request::Inject {
        faults,
        force: args.yes_really,
    };
    match request(&dir, &ask)? {
        Answer::Refused(why) => Err(Usage(format!("{}: nothing was injected: {why}", dir.display())).into()),
        Answer::Injected(_) | Answer::Changed(_) => {
            output::print(&told)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
