//! The bench as a separate program; `paceline nccl-bench` is the same.

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
            // The output may be closed.
            let _ = error.print();
            ExitCode::from(if usage { 64 } else { 0 })
        }
    }
}
