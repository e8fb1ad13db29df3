//! Defines the command line. `exit_codes` has the table of exit codes, and `reference` tests the generated pages in
//! docs/.

pub(crate) mod exit_codes;
#[cfg(test)]
mod reference;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::commands::explain::ExplainArgs;
use crate::commands::inject::InjectArgs;
use crate::config::PageArgs;
use crate::demo::{DemoArgs, DemoTrainerArgs};
use crate::output::Color;
use crate::report::ReportArgs;
use crate::run::RunArgs;

/// Finds slow ranks of a distributed training job: which rank, since when, why, and at what cost.
#[derive(Debug, Parser)]
#[command(
    name = "paceline",
    version,
    propagate_version = true,
    disable_help_subcommand = true
)]
#[command(
    after_help = "Start with `paceline demo`, then `paceline run -- torchrun ... train.py`; `paceline doctor` \
        shows what is missing here.\nExit codes: paceline help exit-codes."
)]
pub(crate) struct Cli {
    /// When to use colors.
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN")]
    pub(crate) color: Color,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a training command with a sidecar that monitors it.
    Run(RunArgs),
    /// Measure the nodes before the job starts: a baseline for each, and which one is bad.
    Preflight(crate::preflight::PreflightArgs),
    /// Monitor a running job in the terminal: slow ranks, causes, actions, and every rank.
    Top(crate::top::TopArgs),
    /// Show the report of a finished or running job.
    Report(ReportArgs),
    /// Explain why a running or ended job hangs: ranks without progress, their collectives, and the stacks of all ranks.
    Why(crate::commands::why::WhyArgs),
    /// Run the detector on a journal again.
    Replay(ReplayArgs),
    /// Simulate a job and run the detector on it.
    Simulate(SimulateArgs),
    /// Measure the detector's accuracy on simulated jobs with known faults.
    Evaluate(EvaluateArgs),
    /// List the GPUs of this machine and every signal that can be read from them.
    Gpus(GpusArgs),
    /// Measure collectives over NCCL or TCP: every rank's times, every result verified.
    NcclBench(Box<paceline_nccl_bench::BenchOptions>),
    /// Run a demonstration job: eight real processes on simulated GPUs, one of which overheats.
    Demo(DemoArgs),
    /// Inject a fault into a running job, to test detection and alerts.
    Inject(InjectArgs),
    /// Show the state of the NCCL plugin in this node's ranks; turn its GPU times on and off while they train.
    Profiler(crate::commands::profiler::ProfilerArgs),
    /// Explain an XID or a finding: meaning and action, offline.
    Explain(ExplainArgs),
    /// Show the effective configuration.
    Config(ConfigArgs),
    /// Check this machine in at most ten seconds: which sources a job can use, what is missing, what to do.
    Doctor(crate::doctor::DoctorArgs),
    /// Test the receivers of notifications; send the pending notices of an ended job.
    Notify(crate::commands::notify::NotifyArgs),
    /// Programs that a site's Slurm calls: prolog, epilog, health check; requeue and scrape targets.
    Slurm(crate::slurm::SlurmArgs),
    /// Inject Paceline into the pods of a Kubernetes job, without a webhook: prints the changed manifest.
    InjectManifest(crate::kube::manifest::ManifestArgs),
    /// Help of a command, or the table of exit codes.
    Help(crate::commands::help::HelpArgs),
    /// Print a shell completion script.
    Completions(crate::commands::help::CompletionsArgs),
    /// Copy Paceline's files into a directory that a trainer's container can read; for a pod's init container.
    #[command(hide = true)]
    Install(crate::kube::install::InstallArgs),
    /// The sidecar of one node; `run` starts it.
    #[command(hide = true)]
    Sidecar(paceline_sidecar::SidecarOptions),
    /// The job that `demo` runs: as many trainers as it has ranks, or one of them.
    #[command(hide = true)]
    DemoTrainer(DemoTrainerArgs),
}

/// Options that may also stand in the environment (PACELINE_JOB, ...) or in paceline.toml.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct SettingArgs {
    /// Name of the job; the same on every node [default: from torchrun or Slurm, else generated].
    #[arg(long, value_name = "NAME", help_heading = "The job")]
    pub(crate) job: Option<String>,
    /// Name of this node [default: SLURMD_NODENAME, else the host name].
    #[arg(long, value_name = "NAME", help_heading = "The job")]
    pub(crate) node: Option<String>,
    /// Directory for journal and report [default: ./paceline-JOB].
    #[arg(long, value_name = "DIR", help_heading = "The job")]
    pub(crate) run_dir: Option<String>,
    /// Size limit of the journal, such as 8GiB; near it, the oldest telemetry is deleted [default: 8GiB].
    #[arg(long, value_name = "SIZE", help_heading = "The job")]
    pub(crate) journal_bytes: Option<String>,
    /// Address of the job's aggregator, the same on all nodes; the node with that name or address runs it [default:
    /// on this host; without a port, one derived from the job]. RELAY:PORT,...,HOST[:PORT]: through relays.
    #[arg(long, value_name = "HOST[:PORT]", help_heading = "The job")]
    pub(crate) aggregator: Option<String>,
    /// File with the key that authenticates the job's nodes to each other, 32 bytes or more, mode 0600 [default: a
    /// key of this user, created when needed].
    #[arg(long, value_name = "FILE", help_heading = "The job")]
    pub(crate) key_file: Option<String>,
    #[command(flatten, next_help_heading = "Live page and metrics")]
    pub(crate) page: PageArgs,
    /// Simulate this node's GPUs instead of reading real ones, such as "gpus=8 heat=gpu3@60s".
    #[arg(long, value_name = "SCRIPT", help_heading = "Inputs")]
    pub(crate) sim_gpus: Option<String>,
    /// Path of NVIDIA's management library (NVML) [default: libnvidia-ml.so.1 of the system].
    #[arg(long, value_name = "FILE", help_heading = "Inputs")]
    pub(crate) nvml_lib: Option<String>,
    /// Kernel log, or a growing file in its format [default: /dev/kmsg, where NVIDIA's driver is loaded].
    #[arg(long, value_name = "FILE", help_heading = "Inputs")]
    pub(crate) kmsg: Option<String>,
    /// Address of NCCL's RAS service, queried when ranks stall; or "off" [default: NCCL_RAS_ADDR, else
    /// localhost:28028].
    #[arg(long, value_name = "HOST:PORT", help_heading = "Inputs")]
    pub(crate) ras: Option<String>,
    /// Read steps from the command's output, for trainers that cannot load the hook: "stdout", "stderr" or a
    /// log file [default: none].
    #[arg(long, value_name = "WHERE", help_heading = "Inputs")]
    pub(crate) step_log: Option<String>,
    /// Pattern of a step's line, such as "step (?P<step>\d+) took (?P<ms>[\d.]+)"; ms or seconds is optional
    /// [default: the formats of known frameworks].
    #[arg(long, value_name = "REGEX", help_heading = "Inputs")]
    pub(crate) step_regex: Option<String>,
    /// Output of NCCL Inspector (NCCL_INSPECTOR_DUMP_DIR): a directory or a file [default: none].
    #[arg(long, value_name = "PATH", help_heading = "Inputs")]
    pub(crate) inspector: Option<String>,
    /// Override a constant of the detector, such as impact.warning_ratio=0.05. May be repeated.
    #[arg(long, value_name = "KEY=VALUE", help_heading = "Detection and cost")]
    pub(crate) set: Vec<String>,
    /// Price of a GPU-hour, for all GPUs or for a model (H100=2.5). May be repeated.
    #[arg(long, value_name = "[MODEL=]PRICE", value_parser = price, allow_negative_numbers = true, help_heading = "Detection and cost")]
    pub(crate) gpu_hour_price: Vec<String>,
    /// No banner, no line for a finding while the job runs, no verdict block at the end.
    #[arg(long, short, help_heading = "Output")]
    pub(crate) quiet: bool,
    /// Print the report as one line of JSON on stdout at the end.
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
    /// At the end, count the job's end reason in a file for node_exporter's textfile collector [default: none].
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) textfile: Option<String>,
    /// While the job runs, write the metrics page into this file (*.prom) for node_exporter's textfile collector; it is removed
    /// at the end [default: none].
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) metrics_textfile: Option<String>,
    /// Push metrics to an OpenTelemetry receiver over HTTP: an address such as http://collector:4318, or "env" to use
    /// OTEL_EXPORTER_OTLP_* [default: nowhere].
    #[arg(long, value_name = "ENDPOINT", help_heading = "Output")]
    pub(crate) otlp: Option<String>,
    /// At the end of a Slurm job, write a summary line into its Comment, unless the Comment is already set.
    #[arg(long, help_heading = "Output")]
    pub(crate) slurm_comment: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    /// A journal, or the run directory that holds one.
    #[arg(value_name = "JOURNAL")]
    pub(crate) journal: PathBuf,
    /// Print the report as one line of JSON.
    #[arg(long, conflicts_with = "verdicts")]
    pub(crate) json: bool,
    /// Print every verdict when it was raised or changed, as the lines of verdicts.ndjson.
    #[arg(long)]
    pub(crate) verdicts: bool,
    /// Skip unreadable lines, and print how many.
    #[arg(long)]
    pub(crate) skip_broken: bool,
    /// Ignore phases: find slow ranks only by late arrival at collectives.
    #[arg(long)]
    pub(crate) hide_phases: bool,
    /// Override a constant of the detector, such as impact.warning_ratio=0.05. May be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Price of a GPU-hour, for all GPUs or for a model (H100=2.5). May be repeated.
    #[arg(long, value_name = "[MODEL=]PRICE", value_parser = price, allow_negative_numbers = true)]
    pub(crate) gpu_hour_price: Vec<String>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Faults: \"slow rank=3 factor=1.25 from=100 until=400 cause=thermal\" (or node=, rack=, rank=all; \
every=40 for=20; moves=50), \"silent rank=2 from=50\", \"heat gpu=3 from=60s\", \"link node=1 peer=2 factor=4\", \
\"gap node=1 from=20s for=10s\", \"loss share=0.1\"; also spikes, checkpoint-slow, warm-up-slow, regress, birth, skew, \
warm, hold, late, reorder, repeat. docs/simulate.md has all words of --world and --fault."
)]
pub(crate) struct SimulateArgs {
    /// Nodes [default: 1].
    #[arg(long, value_name = "N")]
    pub(crate) nodes: Option<u32>,
    /// GPUs, and so ranks, on each node [default: 8].
    #[arg(long, value_name = "N", visible_alias = "ranks-per-node")]
    pub(crate) gpus: Option<u32>,
    /// Optimizer steps [default: 1000].
    #[arg(long, value_name = "N")]
    pub(crate) steps: Option<u64>,
    /// The same seed gives the same job, byte for byte [default: 1].
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// A fault to simulate. May be repeated.
    #[arg(long, value_name = "FAULT")]
    pub(crate) fault: Vec<String>,
    /// More properties of the job, such as "tp=2 pp=4 micro=8 packed=0.11 checkpoint-every=500".
    #[arg(long, value_name = "WORDS")]
    pub(crate) world: Option<String>,
    /// Write the job's journal to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) journal: Option<PathBuf>,
    /// Print the report as one line of JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Override a constant of the detector, such as impact.warning_ratio=0.05. May be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Price of a GPU-hour, for all GPUs or for a model (H100=2.5). May be repeated.
    #[arg(long, value_name = "[MODEL=]PRICE", value_parser = price, allow_negative_numbers = true)]
    pub(crate) gpu_hour_price: Vec<String>,
    #[command(flatten)]
    pub(crate) load: crate::commands::simulate::ConnectArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The table shows each metric with its target and with the results of other rules on the same \
        samples. docs/evaluation.md explains how each is measured.\n\nExample: paceline evaluate --suite \
        quiet,healthy --seeds 5"
)]
pub(crate) struct EvaluateArgs {
    /// Only these suites, separated by commas; "list" shows them [default: all but smoke].
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) suite: Vec<String>,
    /// Seeds of each scenario.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seeds: u64,
    /// Print the table as one line of JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the table with its plots to this file, as one HTML page.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Compare with an older table, as printed by --json.
    #[arg(long, value_name = "OLD.json")]
    pub(crate) compare: Option<PathBuf>,
    /// Simulations that run at the same time [default: one per core].
    #[arg(long, value_name = "N")]
    pub(crate) jobs: Option<usize>,
    /// Use the tuning seeds: develop the detector with these, never with the scored ones.
    #[arg(long)]
    pub(crate) tuning: bool,
    /// Write every wrongly judged simulation to this file, with the command that repeats it.
    #[arg(long, value_name = "FILE")]
    pub(crate) failures: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "Exit codes: 0 if every GPU was read, 3 if at least one could not be read.")]
pub(crate) struct GpusArgs {
    /// NVIDIA's management library [default: libnvidia-ml.so.1 of the system].
    #[arg(long, env = "PACELINE_NVML_LIB", value_name = "FILE")]
    pub(crate) nvml_lib: Option<PathBuf>,
    /// Timeout for a GPU that does not answer, seconds.
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub(crate) seconds: u64,
    /// Print it as one line of JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    pub(crate) command: Option<ConfigCommand>,
    #[command(flatten)]
    pub(crate) settings: SettingArgs,
    /// Show where each value comes from.
    #[arg(long)]
    pub(crate) origin: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Change values of a running job, all or none.
    Set(ConfigSetArgs),
    /// Make a running job reload its configuration files.
    Reload(LiveArgs),
}

/// Options that select a run.
#[derive(Debug, Args)]
pub(crate) struct LiveArgs {
    /// The run's directory [default: that of the only run started from the current directory].
    #[arg(long, value_name = "DIR")]
    pub(crate) run_dir: Option<String>,
    /// The run's job.
    #[arg(long, value_name = "NAME")]
    pub(crate) job: Option<String>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Each change is recorded in the journal, so that a replay gives the same verdicts. Changes end \
        with the run; put permanent ones into paceline.toml.\n\nExample: paceline config set \
        impact.warning_ratio 0.05 \
observe.slow-link true"
)]
pub(crate) struct ConfigSetArgs {
    #[command(flatten)]
    pub(crate) live: LiveArgs,
    /// Names of settings, as in `paceline config`, and their new values.
    #[arg(required = true, num_args = 2.., value_name = "KEY VALUE", allow_negative_numbers = true)]
    pub(crate) pairs: Vec<String>,
}

/// Parses `[MODEL=]PRICE` into the policy change that sets this price.
fn price(text: &str) -> Result<String, String> {
    let (model, price) = match text.rsplit_once('=') {
        Some((model, price)) => (format!(".{}", model.trim()), price.trim()),
        None => (String::new(), text.trim()),
    };
    match price.parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => {}
        Ok(number) if number <= 0.0 => {
            return Err(format!(
                "a price is more than 0, and `{price}` is not: leave the option out where an hour costs nothing"
            ));
        }
        _ => return Err(format!("`{price}` is not a positive number")),
    }
    let key = format!("cost.gpu_hour_price{model}");
    if paceline_health::Policy::default().get(&key).is_none() {
        return Err("the model has no name".to_owned());
    }
    Ok(format!("{key}={price}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_command_begins_with_the_first_word_that_is_no_option() {
        let words = [
            "paceline", "run", "--job", "x", "torchrun", "--job", "y", "t.py", "--", "-v",
        ];
        let Command::Run(args) = Cli::try_parse_from(words).unwrap().command else {
            panic!("run")
        };
        assert_eq!(args.settings.job.as_deref(), Some("x"));
        assert_eq!(args.command, ["torchrun", "--job", "y", "t.py", "--", "-v"]);
        assert!(Cli::try_parse_from(["paceline", "run", "--jbo", "x", "--", "true"]).is_err());
    }

    #[test]
    fn a_price_below_zero_is_refused_with_the_reason() {
        for price in ["-2.5", "0", "H100=-1"] {
            let words = ["paceline", "simulate", "--gpu-hour-price", price];
            let refused = Cli::try_parse_from(words).unwrap_err().to_string();
            assert!(refused.contains("a price is more than 0"), "{refused}");
        }
    }
}
