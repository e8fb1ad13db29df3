//! The command line, as it is written and as it is meant.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::size::{self, Step};
use crate::collective::Collective;
use crate::dtype::Dtype;
use crate::transport::tcp::schedule::Algorithm;

/// Measures a collective on all ranks. Names of options are nccl-tests' where it has them.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Exit codes: 0 measured and right, 2 wrong results, 3 not measured, 64 a mistake in the \
command line.\n\nExamples:\n  nccl-bench --transport tcp --ranks 4 -b 1K -e 64M -f 4     four ranks on this host\n  \
srun nccl-bench --master node001:29600 -b 8M -e 1G          one rank for each of Slurm's tasks\n  \
nccl-bench --transport tcp --rank 0 --peers 10.0.0.1:7000,10.0.0.2:7000"
)]
pub struct BenchOptions {
    /// What to measure.
    #[arg(value_enum, default_value = "all-reduce")]
    pub collective: Collective,
    /// What carries it.
    #[arg(long, value_enum, default_value = "nccl")]
    pub transport: Carrier,
    /// Smallest size, in bytes; K, M, G: powers of 1024.
    #[arg(short = 'b', long = "minbytes", value_name = "SIZE", default_value = "1K", value_parser = size::parse)]
    pub begin: u64,
    /// Largest size.
    #[arg(short = 'e', long = "maxbytes", value_name = "SIZE", default_value = "64M", value_parser = size::parse)]
    pub end: u64,
    /// Each size is so many times the one before it [default: 4].
    #[arg(short = 'f', long = "stepfactor", value_name = "FACTOR", conflicts_with = "step", value_parser = factor)]
    pub factor: Option<f64>,
    /// Each size is so many bytes more than the one before it.
    #[arg(short = 'i', long = "stepbytes", value_name = "SIZE", value_parser = size::parse)]
    pub step: Option<u64>,
    /// Timed iterations of each size.
    #[arg(short = 'n', long = "iters", value_name = "N", default_value_t = 20,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub iterations: u32,
    /// Iterations before them that are not timed.
    #[arg(short = 'w', long = "warmup_iters", value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub warm_ups: u32,
    /// Iterations after them of which every element is verified; 0: none.
    #[arg(short = 'c', long = "check", value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(0..=1_000))]
    pub checks: u32,
    /// Type of the elements.
    #[arg(short = 'd', long = "datatype", value_enum, default_value = "float")]
    pub dtype: Dtype,
    /// Whose buffer a broadcast sends.
    #[arg(short = 'r', long = "root", value_name = "RANK", default_value_t = 0)]
    pub root: usize,
    /// Begin each iteration together on all ranks, instead of one right after the other.
    #[arg(long)]
    pub together: bool,
    /// Two buffers only, never the one for input and output.
    #[arg(long)]
    pub out_of_place: bool,
    /// GPUs of this host, each with a rank that is started here; the same as --ranks.
    #[arg(short = 'g', long = "ngpus", value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=1_024))]
    pub gpus: Option<u32>,
    /// What reductions do: there is only the sum.
    #[arg(short = 'o', long = "op", value_name = "OP", default_value = "sum", value_parser = ["sum"], hide_possible_values = true)]
    pub op: String,
    /// How many ranks; without --rank they are all started here.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub ranks: Option<u32>,
    /// Which of them this is [default: RANK, OMPI_COMM_WORLD_RANK or SLURM_PROCID].
    #[arg(long, value_name = "RANK")]
    pub rank: Option<u32>,
    /// Where rank 0 listens [default: MASTER_ADDR, and the port after MASTER_PORT].
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "peers")]
    pub master: Option<String>,
    /// Where each rank listens, in the order of ranks.
    #[arg(long, value_name = "HOST:PORT,...", value_delimiter = ',', requires = "rank")]
    pub peers: Vec<SocketAddr>,
    /// Name of the job: ranks of another are turned away.
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub job: String,
    /// A file with a key that all hosts have; each rank must know it [default: PACELINE_KEY_FILE, else the user's own,
    /// made once in the configuration folder; none where all ranks are on loopback].
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// For the ranks to find each other.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub join_timeout: u64,
    /// For one size.
    #[arg(short = 'T', long, value_name = "SECONDS", default_value_t = 60,
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub timeout: u64,
    /// How tcp does it, instead of what was fastest when it was measured.
    #[arg(long, value_enum, value_name = "WAY")]
    pub algorithm: Option<Algorithm>,
    /// NCCL's library [default: torch's, else the system's].
    #[arg(long, value_name = "FILE")]
    pub nccl_lib: Option<PathBuf>,
    /// Ranks past the number of GPUs share them (NCCL 2.30 and later).
    #[arg(long)]
    pub share_gpus: bool,
    /// What --transport sim simulates, such as "nodes=2 gpus=8 half-nic=2" (also half-way=1-2 delay=1 absent=2
    /// slow-gpu=1.2x1.5 seed=1) [default: four nodes of eight GPUs, all well].
    #[arg(long, value_name = "SCRIPT")]
    pub sim: Option<String>,
    /// Print the result as one line of JSON, every rank's times included.
    #[arg(long)]
    pub json: bool,
    /// Also write that there.
    #[arg(short = 'J', long, alias = "output_file", value_name = "FILE")]
    pub json_file: Option<PathBuf>,
    /// The listener of rank 0 is this process's standard input.
    #[arg(long, hide = true)]
    pub listener_on_stdin: bool,
    /// One rank of a preflight, told what to do on its standard input.
    #[arg(long, hide = true)]
    pub preflight_rank: bool,
}

/// The name of a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Carrier {
    /// NVIDIA's library, one GPU for each rank.
    Nccl,
    /// Sockets, between hosts or on one.
    Tcp,
    /// Nothing: times of a fabric that --sim describes. For demonstrations.
    Sim,
}

impl BenchOptions {
    pub(super) fn step(&self) -> Step {
        match (self.step, self.factor) {
            (Some(bytes), _) => Step::Bytes(bytes),
            (None, factor) => Step::Factor(factor.unwrap_or(4.0)),
        }
    }

    pub(super) fn join_limit(&self) -> Duration {
        Duration::from_secs(self.join_timeout)
    }
}

fn factor(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(factor) if factor > 1.0 && factor.is_finite() => Ok(factor),
        _ => Err(format!("`{text}` is not a number above 1")),
    }
}
