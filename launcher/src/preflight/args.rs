//! The command line of `paceline preflight`, and what `paceline run` shares with it.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use paceline_nccl_bench::collective::Collective;
use paceline_nccl_bench::preflight::Mode;

/// `paceline preflight`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(
    after_help = "Start it on every node of the job (srun, pdsh, an init container); the first node coordinates. \
        Exit codes: 0 no problem, 1 a warning (only with --strict), 2 a node is unfit, 3 no result, 64 usage error."
)]
pub(crate) struct PreflightArgs {
    #[command(subcommand)]
    pub(crate) command: Option<PreflightCommand>,
    /// quick: within a minute; full: within three.
    #[arg(value_enum, default_value = "quick")]
    pub(crate) mode: Mode,
    #[command(flatten)]
    pub(crate) meeting: MeetingArgs,
    /// Name of the job; the same on every node [default: from Slurm or torchrun, else "preflight"].
    #[arg(long, env = "PACELINE_JOB", value_name = "NAME")]
    pub(crate) job: Option<String>,
    /// Name of this node [default: SLURMD_NODENAME, else the host name].
    #[arg(long, env = "PACELINE_NODE", value_name = "NAME")]
    pub(crate) node: Option<String>,
    /// Where preflight.json and preflight.html go [default: nowhere].
    #[arg(long, value_name = "DIR")]
    pub(crate) run_dir: Option<PathBuf>,
    /// Simulate a fleet instead, such as "nodes=64 slow-gpu=12.3x1.2" (also narrow-slot=5.1 half-nic=7 half-way=3-4
    /// delay=9 loss=2 absent=4 seed=1 gpus=8).
    #[arg(long, value_name = "SCRIPT")]
    pub(crate) sim: Option<String>,
    /// Exit with 1 on a warning.
    #[arg(long)]
    pub(crate) strict: bool,
    /// Print the report as one line of JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the report with its charts to this file, as one HTML page.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PreflightCommand {
    /// Show what earlier preflights at this site measured of a node, its GPUs and its paths to other nodes.
    History(HistoryArgs),
    /// Import the output of nccl-tests or paceline nccl-bench.
    Import(ImportArgs),
    /// Serve node health checks to NVIDIA's resiliency launcher before a rendezvous.
    Serve(ServeArgs),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Start it on every node, as the user of the job, and pass the socket to ft_launcher: \
--ft-node-health-check-endpoint unix:///PATH. The answer combines the run directory's last preflight result for \
this node with its current readings."
)]
pub(crate) struct ServeArgs {
    /// The Unix socket.
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: PathBuf,
    /// Where preflight.json is [default: only current readings count].
    #[arg(long, env = "PACELINE_RUN_DIR", value_name = "DIR")]
    pub(crate) run_dir: Option<PathBuf>,
    /// Name of this node [default: SLURMD_NODENAME, else the host name].
    #[arg(long, env = "PACELINE_NODE", value_name = "NAME")]
    pub(crate) node: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// The file: nccl-tests' text, or the JSON of -J.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Collective that was measured, if the file does not name it.
    #[arg(long, value_enum, value_name = "NAME")]
    pub(crate) collective: Option<Collective>,
    /// Print it as one line of JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct HistoryArgs {
    /// The node.
    #[arg(value_name = "NODE")]
    pub(crate) node: String,
    /// The site's passports.
    #[arg(long, env = "PACELINE_PASSPORTS", value_name = "DIR")]
    pub(crate) passports: PathBuf,
    /// Print it as one line of JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// The nodes that take part in a preflight, and what is required of them.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct MeetingArgs {
    /// Nodes; the first one coordinates: a,b or n[1-4] [default: Slurm's, torchrun's endpoint, else only this one].
    #[arg(long, value_name = "LIST")]
    pub(crate) nodes: Option<String>,
    /// File with the nodes, one per line.
    #[arg(long, value_name = "FILE", conflicts_with = "nodes")]
    pub(crate) nodes_file: Option<PathBuf>,
    /// Address of the first node, with --nnodes.
    #[arg(long, value_name = "HOST[:PORT]", conflicts_with_all = ["nodes", "nodes_file"])]
    pub(crate) rendezvous: Option<String>,
    /// A headless service of Kubernetes that resolves to all pods, with --nnodes.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["nodes", "nodes_file", "rendezvous"])]
    pub(crate) service: Option<String>,
    /// Number of nodes.
    #[arg(long, value_name = "N")]
    pub(crate) nnodes: Option<usize>,
    /// Port on which the first node listens [default: derived from the job].
    #[arg(long, env = "PACELINE_PREFLIGHT_PORT", value_name = "PORT")]
    pub(crate) port: Option<u16>,
    /// File with the job's key, the same on all nodes; only its owner may have access [default:
    /// ~/.config/paceline/key].
    #[arg(long, env = "PACELINE_KEY_FILE", value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// Bus bandwidth (GB/s) that all-reduce between nodes must reach.
    #[arg(long, value_name = "GBPS", value_parser = bandwidth)]
    pub(crate) min_busbw: Option<f64>,
    /// Number of GPUs of each node; if fewer can be measured, that is critical [default: as many as the node has].
    #[arg(long, value_name = "N")]
    pub(crate) gpus: Option<u32>,
    /// The site's directory of measurements, shared by all nodes; results are added to it and compared with it.
    #[arg(long, env = "PACELINE_PASSPORTS", value_name = "DIR")]
    pub(crate) passports: Option<PathBuf>,
}

/// What `paceline run` does when a preflight finds something that should not take part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Gate {
    /// Warn, and start.
    #[default]
    Warn,
    /// Exclude the bad nodes: they do not start; the others start if enough are left.
    Exclude,
    /// Do not start on any node.
    Fail,
}

impl Gate {
    /// Returns the name as on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Gate::Warn => "warn",
            Gate::Exclude => "exclude",
            Gate::Fail => "fail",
        }
    }
}

/// The preflight options of `paceline run`.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct GateArgs {
    /// Measure the nodes before the command starts: quick (within a minute) or full (within three).
    #[arg(long, value_enum, value_name = "MODE")]
    pub(crate) preflight: Option<Mode>,
    /// What to do if the preflight finds an unfit node.
    #[arg(
        long,
        value_enum,
        value_name = "POLICY",
        default_value = "warn",
        requires = "preflight"
    )]
    pub(crate) preflight_policy: Gate,
    /// Nodes of the preflight; the first one coordinates [default: Slurm's, torchrun's endpoint, else only this one].
    #[arg(long, value_name = "LIST", requires = "preflight")]
    pub(crate) preflight_nodes: Option<String>,
    /// Number of nodes that the preflight waits for [default: torchrun's minimum].
    #[arg(long, value_name = "N", requires = "preflight")]
    pub(crate) preflight_nnodes: Option<usize>,
    /// Bus bandwidth (GB/s) that all-reduce between nodes must reach in the preflight.
    #[arg(long, value_name = "GBPS", requires = "preflight", value_parser = bandwidth)]
    pub(crate) min_busbw: Option<f64>,
    /// The site's directory of measurements, shared by all nodes.
    #[arg(long, env = "PACELINE_PASSPORTS", value_name = "DIR")]
    pub(crate) passports: Option<PathBuf>,
}

/// Parses a bandwidth in GB/s, which must be positive and finite.
fn bandwidth(text: &str) -> Result<f64, String> {
    let number = text.parse().map_err(|_| "not a number".to_owned())?;
    if f64::is_finite(number) && number > 0.0 {
        Ok(number)
    } else {
        Err("must be more than 0".to_owned())
    }
}
