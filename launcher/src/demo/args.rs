//! The command lines of `paceline demo` and of its trainers.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// End after this many seconds at the latest.
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(5..=600))]
    pub(crate) seconds: u64,
    /// Number of trainer processes.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(2..=64))]
    pub(crate) ranks: u32,
    /// The rank whose GPU overheats.
    #[arg(long, value_name = "RANK", default_value_t = 5)]
    pub(crate) heat_rank: u32,
    /// Directory for journal and report.
    #[arg(long, value_name = "DIR", default_value = "./paceline-demo")]
    pub(crate) run_dir: PathBuf,
    /// Print the report as one line of JSON on stdout at the end.
    #[arg(long)]
    pub(crate) json: bool,
    /// Keep the journals of earlier demos in the run directory.
    #[arg(long)]
    pub(crate) keep: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct DemoTrainerArgs {
    /// Ranks of the job.
    #[arg(long)]
    pub(crate) ranks: u32,
    /// The rank that this process is; without it, it starts them all.
    #[arg(long)]
    pub(crate) rank: Option<u32>,
    /// The simulated GPUs that the ranks train on.
    #[arg(long)]
    pub(crate) gpus: String,
    /// CLOCK_MONOTONIC (ns) at which their time begins.
    #[arg(long)]
    pub(crate) origin_ns: u64,
    /// Duration of the training.
    #[arg(long)]
    pub(crate) seconds: u64,
}
