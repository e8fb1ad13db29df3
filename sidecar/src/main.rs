//! The sidecar as a program of its own; `paceline sidecar` is the same.

use std::process::ExitCode;

use clap::Parser;
use paceline_sidecar::{SidecarOptions, Starter};

/// Watches the ranks of one node and tells the job's aggregator.
#[derive(Parser)]
#[command(name = "paceline-sidecar", version)]
struct Cli {
    #[command(flatten)]
    options: SidecarOptions,
}

fn main() -> ExitCode {
    match Cli::try_parse() {
        Ok(cli) => paceline_sidecar::main(cli.options, Starter::default()),
        Err(error) => {
            let usage = error.use_stderr();
            // Where it should go nobody may listen.
            let _ = error.print();
            ExitCode::from(if usage { 64 } else { 0 })
        }
    }
}
