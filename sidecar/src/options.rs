//! The command line of a sidecar: first the flags as text, then their interpretation.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use paceline_health::sim::telemetry::gpu::GpuScript;

use crate::aggregator::journal::segments;
use crate::remedy::RemedyOptions;
use crate::sink::doors::DoorOptions;
use crate::sink::http::HttpOptions;
use crate::source::step_log::StepPattern;

/// Flags of `paceline sidecar` and of `paceline-sidecar`.
#[derive(Args, Clone, Debug)]
pub struct SidecarOptions {
    /// The job's name: the same on all of its nodes.
    #[arg(long, env = "PACELINE_JOB")]
    pub job: String,
    /// This node's name [default: the host name].
    #[arg(long, env = "PACELINE_NODE")]
    pub node: Option<String>,
    /// Directory for journal, verdicts and report, if the aggregator runs here.
    #[arg(long, env = "PACELINE_RUN_DIR", required_unless_present = "relay")]
    pub run_dir: Option<PathBuf>,
    /// Size limit of the journal, such as 8GiB, if the aggregator runs here; near it, the oldest telemetry is
    /// deleted.
    #[arg(long, env = "PACELINE_JOURNAL_BYTES", value_name = "SIZE", default_value = "8GiB", value_parser = segments::parse_bytes)]
    pub journal_bytes: u64,
    /// Directory of the trainers' rings.
    #[arg(long, env = "PACELINE_RING_DIR")]
    pub ring_dir: Option<PathBuf>,
    /// Remove that directory at the end if its creator has exited. Set by the launcher.
    #[arg(long, hide = true, requires = "ring_dir")]
    pub inherit_ring_dir: bool,
    /// Run as a container of a trainer's pod: no control on stdin, only SIGTERM ends the sidecar, and rings of the
    /// pod's other containers are read.
    #[arg(long, hide = true, requires = "ring_dir", conflicts_with_all = ["tasks", "relay"])]
    pub pod: bool,
    /// In a pod: no progress, and no verdict block at the end.
    #[arg(long, hide = true, requires = "pod")]
    pub quiet: bool,
    /// In a pod: the status as JSON on stdout, a line a second, as a launcher reads it; lines for people by default.
    #[arg(long, hide = true, requires = "pod")]
    pub status_json: bool,
    /// Number of launchers of this node that share this sidecar, and control it through the ring directory.
    #[arg(long, hide = true, requires = "ring_dir", value_name = "N")]
    pub tasks: Option<u32>,
    /// HOST:PORT of the job's aggregator, or HOST: the port follows from the job's name then; this host's loopback by
    /// default. RELAY,RELAY,AGGREGATOR: through one of the relays, and directly when none answers.
    #[arg(long, env = "PACELINE_AGGREGATOR")]
    pub aggregator: Option<String>,
    /// Relay mode: accept the connections of other nodes at this address and forward them to the aggregator over one
    /// connection. No ranks are monitored.
    #[arg(long, value_name = "ADDR:PORT", requires = "aggregator")]
    pub relay: Option<SocketAddr>,
    /// File with the key that authenticates the job's nodes to each other, 32 bytes or more [default: a key of this
    /// user in the configuration directory, created when needed].
    #[arg(long, env = "PACELINE_KEY_FILE", value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Address and access control of the metrics page.
    #[command(flatten)]
    pub http: HttpOptions,
    /// Exports of metrics in addition to the page.
    #[command(flatten)]
    pub doors: DoorOptions,
    /// Simulate GPUs: `gpus=8 heat=gpu5@6s`. All their readings are marked as simulated.
    #[arg(long, value_parser = GpuScript::parse)]
    pub sim_gpus: Option<GpuScript>,
    /// Path of NVIDIA's management library (NVML); libnvidia-ml.so.1 of the system by default.
    #[arg(long, env = "PACELINE_NVML_LIB", value_name = "FILE")]
    pub nvml_lib: Option<PathBuf>,
    /// Kernel log, or a growing file in its format; /dev/kmsg by default, where NVIDIA's driver is loaded.
    #[arg(long, env = "PACELINE_KMSG", value_name = "FILE")]
    pub kmsg: Option<PathBuf>,
    /// Root of the host's `/proc` and `/sys`, for tests.
    #[arg(
        long,
        env = "PACELINE_HOST_ROOT",
        value_name = "DIR",
        default_value = "/",
        hide = true
    )]
    pub host_root: PathBuf,
    /// Address of NCCL's RAS service, or "off"; NCCL_RAS_ADDR, else localhost:28028 by default.
    #[arg(long, env = "PACELINE_RAS", value_name = "HOST:PORT")]
    pub ras: Option<String>,
    /// File with printed steps.
    #[arg(long, value_name = "FILE")]
    pub step_log: Option<PathBuf>,
    /// Pattern of a step's line in it [default: the formats of known frameworks].
    #[arg(long, env = "PACELINE_STEP_REGEX", value_name = "REGEX", value_parser = StepPattern::parse)]
    pub step_regex: Option<StepPattern>,
    /// Output of NCCL Inspector: a directory or a file.
    #[arg(long, env = "PACELINE_INSPECTOR", value_name = "PATH")]
    pub inspector: Option<PathBuf>,
    /// Events from before the start: the results of a preflight. Set by the launcher.
    #[arg(long, value_name = "FILE", hide = true)]
    pub told: Option<PathBuf>,
    /// CLOCK_MONOTONIC (ns) at which the simulated GPUs' time began; now by default.
    #[arg(long)]
    pub sim_origin_ns: Option<u64>,
    /// Send the events of an old journal again, marked as replayed.
    #[arg(long)]
    pub replay: Option<PathBuf>,
    /// Replace a value of the detector's policy: `straggler.tolerated_ratio=1.05`. May be given more than once.
    #[arg(long = "policy", value_name = "KEY=VALUE", value_parser = policy_value)]
    pub policy: Vec<(String, f64)>,
    /// A policy value from the command line, which a reload of files does not change. Set by the launcher.
    #[arg(long = "pinned", value_name = "KEY", hide = true)]
    pub pinned: Vec<String>,
    /// Allowed actions on findings, and receivers of notifications.
    #[command(flatten)]
    pub remedy: RemedyOptions,
}

impl SidecarOptions {
    /// Returns the configured address of the aggregator. An empty variable counts as unset.
    pub fn aggregator(&self) -> Option<&str> {
        self.aggregator
            .as_deref()
            .filter(|asked| !asked.trim().is_empty())
    }
}

fn policy_value(text: &str) -> Result<(String, f64), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    let value: f64 = value.parse().map_err(|error| format!("{value}: {error}"))?;
    paceline_health::Policy::default()
        .apply(key, value)
        .map_err(|error| error.to_string())?;
    Ok((key.to_owned(), value))
}
