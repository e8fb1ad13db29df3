//! The sidecar as a separate binary; `paceline sidecar` is the same.

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
    // With this handler, a write beyond `ulimit -f` fails instead of killing the process.
    // SAFETY: the handler does nothing. If it cannot be installed, nothing changes.
    let _ = unsafe { signal_hook::low_level::register(Signal::XFSZ.as_raw(), || ()) };
    match Cli::try_parse() {
        Ok(cli) => paceline_sidecar::main(cli.options, Starter::default()),
        Err(error) => {
            let usage = error.use_stderr();
            // Ignore the result, because the output may be closed.
            let _ = error.print();
            ExitCode::from(if usage { 64 } else { 0 })
        }
    }
}
