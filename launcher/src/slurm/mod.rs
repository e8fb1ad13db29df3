//! `paceline slurm`: the programs that a site's Slurm runs (prolog, epilog, health check, and around each task
//! [`task`]), and commands for users (requeue, targets).
//!
//! Most of this runs as root between users' jobs, so three rules apply: an unknown result changes nothing; the contents
//! of a user's files are only a reason to check; and every wait has a documented limit.

mod act;
mod audit;
mod bounded;
mod check;
mod claims;
pub(crate) mod comment;
mod listen;
mod node;
mod requeue;
mod scontrol;
mod targets;
mod task;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Subcommand};

/// `paceline slurm`.
#[derive(Debug, Args)]
pub(crate) struct SlurmArgs {
    #[command(subcommand)]
    command: SlurmCommand,
}

#[derive(Debug, Subcommand)]
enum SlurmCommand {
    /// Prolog: check the node before a job starts on it; a bad node is drained, and the job starts elsewhere.
    Prolog(CheckArgs),
    /// Epilog: check the node after a job; the job's findings about it are verified, never trusted.
    Epilog(EpilogArgs),
    /// HealthCheckProgram: check an idle node; a node that paceline drained is resumed once it is healthy.
    HealthCheck(HealthArgs),
    /// Requeue a job with some nodes excluded; all its options stay.
    Requeue(requeue::RequeueArgs),
    /// Print the metrics addresses of live jobs for Prometheus (file_sd).
    Targets(targets::TargetsArgs),
    /// TaskProlog: start the sidecar for a step's trainers, and print their environment variables.
    TaskProlog,
    /// TaskEpilog: let the sidecar finish.
    TaskEpilog,
    /// Waits for trainers of this step and node, and keeps their sidecar.
    #[command(hide = true)]
    Watch,
    /// Print the findings about a node from a job's reports; run as the job's user.
    #[command(hide = true)]
    Said(claims::SaidArgs),
    /// What can be read of this node now.
    #[command(hide = true)]
    Look(check::LookArgs),
}

/// The options that all checks have in common.
#[derive(Clone, Debug, Args)]
struct CheckArgs {
    /// Drain nodes; without it, the log only records what would be done.
    #[arg(long)]
    drain: bool,
    /// Also run work on the GPUs, as `paceline preflight quick` does, not only read them; the epilog always does if
    /// the job reported a finding.
    #[arg(long)]
    measure: bool,
    /// Drain no node while this many are drained by paceline: the check itself may be wrong. Of concurrent checks,
    /// those beyond the limit resume their nodes.
    #[arg(long, value_name = "N", default_value_t = 4)]
    most_drained: usize,
    /// Log file, one line per decision.
    #[arg(long, value_name = "FILE", default_value = "/var/log/paceline-slurm.ndjson")]
    log: PathBuf,
    /// Name of this node [default: SLURMD_NODENAME].
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
}

#[derive(Clone, Debug, Args)]
struct EpilogArgs {
    #[command(flatten)]
    check: CheckArgs,
    /// File for node_exporter's textfile collector that counts the end reasons of jobs whose first node this was: a
    /// name that ends in .prom, in the collector's directory.
    #[arg(long, value_name = "FILE")]
    textfile: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
struct HealthArgs {
    #[command(flatten)]
    check: CheckArgs,
    /// Resume a node that paceline drained, once nothing is found any more.
    #[arg(long)]
    resume: bool,
    /// Resume a node at most this many times a day; after that, a person must.
    #[arg(long, value_name = "N", default_value_t = 2)]
    most_resumed: usize,
    /// Directory that stores how often a node was resumed.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/paceline")]
    state: PathBuf,
}

/// Runs the subcommand.
pub(crate) fn command(args: &SlurmArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        SlurmCommand::Prolog(args) => node::prolog(args),
        SlurmCommand::Epilog(args) => node::epilog(args),
        SlurmCommand::HealthCheck(args) => node::health_check(args),
        SlurmCommand::Requeue(args) => requeue::command(args),
        SlurmCommand::Targets(args) => targets::command(args),
        SlurmCommand::TaskProlog => Ok(task::prolog()),
        SlurmCommand::TaskEpilog => Ok(task::epilog()),
        SlurmCommand::Watch => task::watch(),
        SlurmCommand::Said(args) => claims::said(args),
        SlurmCommand::Look(args) => check::look(args),
    }
}

/// Returns the value of an environment variable, if it is not empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl CheckArgs {
    fn node(&self) -> anyhow::Result<String> {
        let node = self.node.clone().or_else(|| variable("SLURMD_NODENAME"));
        let node =
            node.context("SLURMD_NODENAME is not set: slurmd sets it; else name the node with --node")?;
        anyhow::ensure!(
            scontrol::is_node_name(&node),
            "`{}` is not a single node name",
            scontrol::plain(&node, 80)
        );
        Ok(node)
    }
}
