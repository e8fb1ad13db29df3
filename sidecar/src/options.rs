//! The command line of a sidecar, in two stages: what was typed, and what it means.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use paceline_health::sim::telemetry::gpu::GpuScript;

use crate::aggregator::segments;
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
    /// This node's name; the host's by default.
    #[arg(long, env = "PACELINE_NODE")]
    pub node: Option<String>,
    /// Where journal, verdicts and report go, should the aggregator run here.
    #[arg(long, env = "PACELINE_RUN_DIR", required_unless_present = "relay")]
    pub run_dir: Option<PathBuf>,
    /// Room for the journal, such as 8GiB, should the aggregator run here: when it comes near, the oldest telemetry goes.
    #[arg(long, env = "PACELINE_JOURNAL_BYTES", value_name = "SIZE", default_value = "8GiB", value_parser = segments::parse_bytes)]
    pub journal_bytes: u64,
    /// Where the trainers put their rings.
    #[arg(long, env = "PACELINE_RING_DIR")]
    pub ring_dir: Option<PathBuf>,
    /// Remove that directory at the end, should whoever made it be gone by then. The launcher asks for it.
    #[arg(long, hide = true, requires = "ring_dir")]
    pub inherit_ring_dir: bool,
    /// Beside a trainer in a pod: nobody speaks on stdin, only SIGTERM ends it, and rings of the pod's other containers are
    /// read. What a pod's container calls.
    #[arg(long, hide = true, requires = "ring_dir", conflicts_with_all = ["tasks", "relay"])]
    pub pod: bool,
    /// In a pod: no progress, and no verdict block at the end.
    #[arg(long, hide = true, requires = "pod")]
    pub quiet: bool,
    /// In a pod: the status as JSON on stdout, a line a second, as a launcher reads it; lines for people by default.
    #[arg(long, hide = true, requires = "pod")]
    pub status_json: bool,
    /// So many launchers of this node share this sidecar, and say what they have to say in the ring directory.
    #[arg(long, hide = true, requires = "ring_dir", value_name = "N")]
    pub tasks: Option<u32>,
    /// HOST:PORT of the job's aggregator, or HOST: the port follows from the job's name then; this host's loopback by
    /// default. RELAY,RELAY,AGGREGATOR: through one of the relays, and directly when none answers.
    #[arg(long, env = "PACELINE_AGGREGATOR")]
    pub aggregator: Option<String>,
    /// Watch nothing: take the links of other nodes at this address and carry them on to the aggregator over one.
    #[arg(long, value_name = "ADDR:PORT", requires = "aggregator")]
    pub relay: Option<SocketAddr>,
    /// A file that holds the key by which the job's nodes know each other, at least 32 bytes; a key of this user's own,
    /// made at need in the configuration folder, by default.
    #[arg(long, env = "PACELINE_KEY_FILE", value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Where the metrics page is, and for whom.
    #[command(flatten)]
    pub http: HttpOptions,
    /// By which ways metrics leave, beside the page.
    #[command(flatten)]
    pub doors: DoorOptions,
    /// Simulate GPUs: `gpus=8 heat=gpu5@6s`. Everything said of them is marked as simulated.
    #[arg(long, value_parser = GpuScript::parse)]
    pub sim_gpus: Option<GpuScript>,
    /// NVIDIA's management library, through which GPUs are read; libnvidia-ml.so.1 of the system by default.
    #[arg(long, env = "PACELINE_NVML_LIB", value_name = "FILE")]
    pub nvml_lib: Option<PathBuf>,
    /// The kernel's log, or a file like it that grows; /dev/kmsg by default, where NVIDIA's driver is loaded.
    #[arg(long, env = "PACELINE_KMSG", value_name = "FILE")]
    pub kmsg: Option<PathBuf>,
    /// Where `/proc` and `/sys` of the host are, for tests.
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
    /// A file into which steps are printed.
    #[arg(long, value_name = "FILE")]
    pub step_log: Option<PathBuf>,
    /// How a step's line in it looks; lines that known frameworks print by default.
    #[arg(long, env = "PACELINE_STEP_REGEX", value_name = "REGEX", value_parser = StepPattern::parse)]
    pub step_regex: Option<StepPattern>,
    /// Files that NCCL Inspector writes: a directory or a file.
    #[arg(long, env = "PACELINE_INSPECTOR", value_name = "PATH")]
    pub inspector: Option<PathBuf>,
    /// Events that are known before the watch begins: what a preflight found. The launcher asks for it.
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
    /// A value that was given on the command line: what files say of it later changes nothing. The launcher asks for it.
    #[arg(long = "pinned", value_name = "KEY", hide = true)]
    pub pinned: Vec<String>,
    /// What may be done about findings, and who is told.
    #[command(flatten)]
    pub remedy: RemedyOptions,
}

impl SidecarOptions {
    /// Where the aggregator is, if anybody said so: a variable that is empty says nothing.
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
