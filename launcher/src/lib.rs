//! `paceline`: starts the sidecar next to a training command, and reports what is in the job's journal.
//!
//! This crate is synchronous and, except for `evaluate` and `preflight serve`, single-threaded. It starts two
//! processes, forwards signals, waits, and reads files. `paceline-health` evaluates frames, and `paceline-sidecar`
//! transports them.

mod cli;
mod commands;
mod config;
mod demo;
mod doctor;
mod evaluate;
mod html;
mod journal;
mod kube;
mod notices;
mod output;
mod preflight;
mod report;
mod run;
mod slurm;
mod top;

use std::ffi::OsStr;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use crate::cli::exit_codes::{UNKNOWN, USAGE};
use crate::cli::{Cli, Command};
use crate::commands::{explain, gpus, help, inject, notify, profiler, replay, simulate};
use crate::config::lenient_settings;
use crate::output::{NoJob, Style, Usage, error};

/// Runs the whole program.
pub fn main() -> ExitCode {
    forget_empty_variables();
    run::outlive_file_limit();
    if lenient_settings::is_in_pod() {
        lenient_settings::unreadable_settings();
    } else {
        lenient_settings::unreadable_variables();
        lenient_settings::unreadable_site_file();
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(problem) => {
            let typed: Vec<_> = std::env::args_os().skip(1).collect();
            let problem = help::suggest(problem, &typed);
            // Ignore the error, because a closed stderr must not cause a different failure.
            let _ = problem.print();
            return if problem.use_stderr() {
                ExitCode::from(USAGE)
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    let color = cli.color;
    let outcome = match cli.command {
        Command::Run(args) => run::command(args, color),
        Command::Top(args) => top::command(&args, color),
        Command::Report(args) => report::command(&args, color),
        Command::Why(args) => commands::why::command(&args, color),
        Command::Replay(args) => replay::command(&args, color),
        Command::Simulate(args) => simulate::command(&args, color),
        Command::Evaluate(args) => evaluate::command(&args, color),
        Command::Explain(args) => explain::command(&args, color),
        Command::Inject(args) => inject::command(&args),
        Command::Profiler(args) => profiler::command(&args),
        Command::Gpus(args) => gpus::command(&args, color),
        Command::Demo(args) => demo::command(&args, color),
        Command::DemoTrainer(args) => demo::trainer(&args),
        Command::Config(args) => config::command(&args, color),
        Command::Slurm(args) => slurm::command(&args),
        Command::Doctor(args) => doctor::command(&args, color),
        Command::Help(args) => help::command(&args, color),
        Command::Completions(args) => help::completions(&args),
        Command::Notify(args) => notify::command(&args),
        Command::Preflight(args) => preflight::command(&args, color),
        Command::NcclBench(args) => return paceline_nccl_bench::main(&args),
        Command::InjectManifest(args) => kube::manifest::command(&args, color),
        Command::Install(args) => kube::install::command(&args),
        Command::Sidecar(args) if args.pod => return kube::beside::command(args, color),
        Command::Sidecar(args) => return paceline_sidecar::main(args, config::starter()),
    };
    outcome.unwrap_or_else(|problem| {
        let code = match () {
            () if problem.is::<Usage>() => USAGE,
            () if problem.is::<NoJob>() => UNKNOWN,
            () => 1,
        };
        error(Style::stderr(color), &problem);
        ExitCode::from(code)
    })
}

/// Returns the definition of the command line, for generators (`examples/pages.rs`).
#[must_use]
pub fn command_line() -> clap::Command {
    Cli::command()
}

/// Removes empty PACELINE_ variables. A site default that a user sets to an empty value counts as unset, and must not
/// stop the job.
fn forget_empty_variables() {
    let is_ours = |name: &OsStr| name.as_encoded_bytes().starts_with(b"PACELINE_");
    let empty = std::env::vars_os().filter(|(name, value)| is_ours(name) && value.is_empty());
    for (name, _) in empty.collect::<Vec<_>>() {
        // SAFETY: nothing else runs in this process yet.
        unsafe { std::env::remove_var(name) };
    }
}
