//! `paceline demo`: runs the whole pipeline on a machine with no GPU and no Python. The processes, the all-reduce, the
//! rings, the sidecar and the aggregator are real. Only the GPUs are simulated, and every verdict based on them says
//! so.

mod allreduce;
mod args;
mod job;
mod live;
mod model;
mod trainer;

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use paceline_health::sim::GpuScript;
use paceline_sidecar::safe_file;

use crate::cli::SettingArgs;
use crate::output::{self, Color, Paint, Style, Usage};
use crate::{config, journal, run};

pub(crate) use args::{DemoArgs, DemoTrainerArgs};

/// Time at which the GPU begins to overheat, in seconds.
const HEAT_AT_S: f64 = 6.0;
/// Files that a demo writes into its run directory.
const FILES: [&str; 8] = [
    journal::FILE,
    "journal.origin",
    "journal.owner",
    "verdicts.ndjson",
    "report.json",
    "report.html",
    "metrics.addr",
    "sidecar.log",
];

/// Runs the demo.
pub(crate) fn command(args: &DemoArgs, color: Color) -> anyhow::Result<ExitCode> {
    if args.heat_rank >= args.ranks {
        return Err(Usage(format!(
            "--heat-rank {}: there are {} ranks",
            args.heat_rank, args.ranks
        ))
        .into());
    }
    let style = Style::stderr(color);
    let script = GpuScript::healthy(args.ranks, 1).with_heat(args.heat_rank, HEAT_AT_S, f64::INFINITY);
    if !args.keep {
        remove_earlier(&args.run_dir);
    }
    let settings = config::load(&SettingArgs {
        // A unique name, so that two demos on a host do not collide.
        job: Some(format!("demo-{:08x}", run::chance() as u32)),
        run_dir: Some(args.run_dir.display().to_string()),
        sim_gpus: Some(script.to_string()),
        json: args.json,
        ..SettingArgs::default()
    })?;
    let settings = config::Settings {
        quiet: false,
        aggregator: None,
        ..settings
    };
    let mut plan = run::Plan::new(settings, Vec::new(), style);
    plan.command = trainers(args, &script, plan.origin_ns)?;
    introduce(args, style);
    let mut live = live::Live::new(style, &script, args.run_dir.join(journal::FILE));
    let outcome = run::launch(&plan, &mut live)?;
    run::tell(&plan, &outcome);
    if outcome.code == 0 {
        Ok(ExitCode::SUCCESS)
    } else {
        anyhow::bail!("the demo's trainers failed")
    }
}

/// `paceline demo-trainer`.
pub(crate) fn trainer(args: &DemoTrainerArgs) -> anyhow::Result<ExitCode> {
    match args.rank {
        Some(rank) => trainer::run(args, rank).map(|()| ExitCode::SUCCESS),
        None => job::run(args).map(ExitCode::from),
    }
}

fn trainers(args: &DemoArgs, script: &GpuScript, origin_ns: u64) -> anyhow::Result<Vec<OsString>> {
    let mut command = vec![std::env::current_exe()?.into_os_string()];
    let words = [
        "demo-trainer".to_owned(),
        format!("--ranks={}", args.ranks),
        format!("--gpus={script}"),
        format!("--origin-ns={origin_ns}"),
        format!("--seconds={}", args.seconds),
    ];
    command.extend(words.map(OsString::from));
    Ok(command)
}

fn introduce(args: &DemoArgs, style: Style) {
    output::say(format_args!(
        "{} {} real trainer processes on simulated GPUs; that of rank {} begins to overheat after {HEAT_AT_S:.0} s.",
        style.paint(Paint::Strong, "paceline demo:"),
        args.ranks,
        args.heat_rank,
    ));
}

/// Removes the files of an earlier demo, and nothing else.
fn remove_earlier(run_dir: &Path) {
    // Remove nothing from another user's directory, because its links could point to our files. It is refused later.
    if safe_file::check_dir(run_dir).is_err() {
        return;
    }
    for name in FILES {
        // Ignore errors: the file may be missing or not ours to remove. The aggregator renames an old journal itself.
        let _ = fs::remove_file(run_dir.join(name));
    }
}
