//! The command-line options.

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
    after_help = "Exit codes: 0 measured and correct, 2 wrong results, 3 not measured, 64 usage \
        error.\n\nExamples:\n  nccl-bench --transport tcp --ranks 4 -b 1K -e 64M -f 4     four ranks on this host\n  \
srun nccl-bench --master node001:29600 -b 8M -e 1G          one rank for each of Slurm's tasks\n  \
nccl-bench --transport tcp --rank 0 --peers 10.0.0.1:7000,10.0.0.2:7000"
)]
pub struct BenchOptions {
    /// Collective to measure.
    #[arg(value_enum, default_value = "all-reduce")]
    pub collective: Collective,
    /// Transport of the data.
    #[arg(long, value_enum, default_value = "nccl")]
    pub transport: Carrier,
    /// Smallest size, in bytes; K, M, G: powers of 1024.
    #[arg(short = 'b', long = "minbytes", value_name = "SIZE", default_value = "1K", value_parser = size::parse)]
    pub begin: u64,
    /// Largest size.
    #[arg(short = 'e', long = "maxbytes", value_name = "SIZE", default_value = "64M", value_parser = size::parse)]
    pub end: u64,
    /// Factor between sizes [default: 4].
    #[arg(short = 'f', long = "stepfactor", value_name = "FACTOR", conflicts_with = "step", value_parser = factor)]
    pub factor: Option<f64>,
    /// Increment between sizes, bytes.
    #[arg(short = 'i', long = "stepbytes", value_name = "SIZE", value_parser = size::parse)]
    pub step: Option<u64>,
    /// Timed iterations of each size.
    #[arg(short = 'n', long = "iters", value_name = "N", default_value_t = 20,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub iterations: u32,
    /// Warm-up iterations, not timed.
    #[arg(short = 'w', long = "warmup_iters", value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub warm_ups: u32,
    /// Iterations of each size whose every element is verified; 0: none.
    #[arg(short = 'c', long = "check", value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(0..=1_000))]
    pub checks: u32,
    /// Type of the elements.
    #[arg(short = 'd', long = "datatype", value_enum, default_value = "float")]
    pub dtype: Dtype,
    /// Root rank of a broadcast.
    #[arg(short = 'r', long = "root", value_name = "RANK", default_value_t = 0)]
    pub root: usize,
    /// Synchronize all ranks before each iteration.
    #[arg(long)]
    pub together: bool,
    /// Measure only out of place, never in place.
    #[arg(long)]
    pub out_of_place: bool,
    /// Number of GPUs of this host, each with one local rank; the same as --ranks.
    #[arg(short = 'g', long = "ngpus", value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=1_024))]
    pub gpus: Option<u32>,
    /// Reduction; only sum is supported.
    #[arg(short = 'o', long = "op", value_name = "OP", default_value = "sum", value_parser = ["sum"], hide_possible_values = true)]
    pub op: String,
    /// Number of ranks; without --rank, all are started on this host.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub ranks: Option<u32>,
    /// Rank of this process [default: RANK, OMPI_COMM_WORLD_RANK or SLURM_PROCID].
    #[arg(long, value_name = "RANK")]
    pub rank: Option<u32>,
    /// Address of rank 0 [default: MASTER_ADDR, and the port after MASTER_PORT].
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "peers")]
    pub master: Option<String>,
    /// Address of each rank, in rank order.
    #[arg(long, value_name = "HOST:PORT,...", value_delimiter = ',', requires = "rank")]
    pub peers: Vec<SocketAddr>,
    /// Name of the job; ranks of other jobs are rejected.
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub job: String,
    /// File with the key, the same on all hosts [default: PACELINE_KEY_FILE, else this user's key in the
    /// configuration directory, created when needed; none if all ranks are on loopback].
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Timeout for all ranks to join, seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub join_timeout: u64,
    /// Timeout for one size, seconds.
    #[arg(short = 'T', long, value_name = "SECONDS", default_value_t = 60,
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub timeout: u64,
    /// Algorithm of the tcp transport, instead of the one that was measured as fastest.
    #[arg(long, value_enum, value_name = "WAY")]
    pub algorithm: Option<Algorithm>,
    /// NCCL's library [default: torch's, else the system's].
    #[arg(long, value_name = "FILE")]
    pub nccl_lib: Option<PathBuf>,
    /// Allow several ranks per GPU (NCCL 2.30 and later).
    #[arg(long)]
    pub share_gpus: bool,
    /// Fabric for --transport sim, such as "nodes=2 gpus=8 half-nic=2" (also half-way=1-2 delay=1 absent=2
    /// slow-gpu=1.2x1.5 seed=1) [default: four nodes of eight GPUs, all healthy].
    #[arg(long, value_name = "SCRIPT")]
    pub sim: Option<String>,
    /// Print the result as one line of JSON, every rank's times included.
    #[arg(long)]
    pub json: bool,
    /// Also write the JSON to this file.
    #[arg(short = 'J', long, alias = "output_file", value_name = "FILE")]
    pub json_file: Option<PathBuf>,
    /// The listener of rank 0 is this process's standard input.
    #[arg(long, hide = true)]
    pub listener_on_stdin: bool,
    /// Run as one rank of a preflight, with commands on standard input.
    #[arg(long, hide = true)]
    pub preflight_rank: bool,
}

/// The name of a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Carrier {
    /// NVIDIA's library, one GPU for each rank.
    Nccl,
    /// Sockets, between hosts or on one host.
    Tcp,
    /// No transfer: simulated times of the fabric in --sim, for demonstrations.
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
