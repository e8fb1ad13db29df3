//! The sidecar as a program of its own; `paceline sidecar` is the same.

use std::process::ExitCode;

use clap::Parser;
use paceline_sidecar::{SidecarOptions, Starter};
use rustix::process::Signal;

/// Monitors the ranks of one node and reports to the job's aggregator.
#[derive(Parser)]
#[command(name = "paceline-sidecar", version)]
struct Cli {
    #[command(flatten)]
    options: SidecarOptions,
}

fn main() -> ExitCode {
    // Above `ulimit -f` a write fails and does not end us.
    // SAFETY: the action does nothing. Where it cannot be set things are as they were.
    let _ = unsafe { signal_hook::low_level::register(Signal::XFSZ.as_raw(), || ()) };
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
