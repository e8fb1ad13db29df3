//! The bench as a separate program. It does the same as `paceline nccl-bench`.

use std::process::ExitCode;

use clap::Parser;
use paceline_nccl_bench::BenchOptions;

/// Measures a collective over NCCL or TCP: every rank's times, every result verified.
#[derive(Parser)]
#[command(name = "paceline-nccl-bench", version)]
struct Cli {
    #[command(flatten)]
    options: BenchOptions,
}

fn main() -> ExitCode {
    match Cli::try_parse() {
        Ok(cli) => paceline_nccl_bench::main(&cli.options),
        Err(error) => {
            let usage = error.use_stderr();
            // If the output is closed, the message is lost.
            let _ = error.print();
            ExitCode::from(if usage { 64 } else { 0 })
        }
    }
}
