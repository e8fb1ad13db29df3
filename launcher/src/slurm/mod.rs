//! `paceline slurm`: what a site's Slurm calls: prolog, epilog, health check, and around each task [`task`]; and what its
//! people call: requeue, targets.
//!
//! Most of it runs as root between other people's jobs, so three rules hold: what could not be told changes nothing; what a
//! user's files say is only a reason to look; and nothing here waits longer than it says.

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
    /// Prolog: look at the node before a job starts on it; one that is bad is drained, and the job starts elsewhere.
    Prolog(CheckArgs),
    /// Epilog: look at the node after a job; what the job said of it is looked at more closely, never believed.
    Epilog(EpilogArgs),
    /// HealthCheckProgram: look at an idle node; one that paceline has drained comes back when it is well.
    HealthCheck(HealthArgs),
    /// Put a job back into the queue, away from some nodes; all its options stay.
    Requeue(requeue::RequeueArgs),
    /// Print the metrics addresses of live jobs for Prometheus (file_sd).
    Targets(targets::TargetsArgs),
    /// TaskProlog: has a step's trainers watched, and says what they are to find in their environment.
    TaskProlog,
    /// TaskEpilog: gives the watch its last seconds.
    TaskEpilog,
    /// Waits for trainers of this step and node, and keeps their sidecar.
    #[command(hide = true)]
    Watch,
    /// What a job's reports say of a node; run as the job's user.
    #[command(hide = true)]
    Said(claims::SaidArgs),
    /// What can be read of this node now.
    #[command(hide = true)]
    Look(check::LookArgs),
}

/// What all checks share.
#[derive(Clone, Debug, Args)]
struct CheckArgs {
    /// Drain nodes; without it only the log says what would be done.
    #[arg(long)]
    drain: bool,
    /// Let GPUs work as well, as `paceline preflight quick` does, not only read them; the epilog does so whenever the job
    /// has said something.
    #[arg(long)]
    measure: bool,
    /// Drain none while so many nodes are drained by paceline: then it may be the check that is bad. Of checks at the same
    /// time, those that come too late give their nodes back.
    #[arg(long, value_name = "N", default_value_t = 4)]
    most_drained: usize,
    /// One line for each decision goes there.
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
    /// Count there how the jobs ended whose first node this was, for node_exporter's textfile collector: a name that ends in
    /// .prom, in the collector's folder.
    #[arg(long, value_name = "FILE")]
    textfile: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
struct HealthArgs {
    #[command(flatten)]
    check: CheckArgs,
    /// Give a node back that paceline has drained, when nothing is found any more.
    #[arg(long)]
    resume: bool,
    /// Give a node back at most so many times a day: then a person should look at it.
    #[arg(long, value_name = "N", default_value_t = 2)]
    most_resumed: usize,
    /// Where it is kept how often a node was given back.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/paceline")]
    state: PathBuf,
}

/// Runs one of them.
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

/// A variable that is not empty.
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
            "`{}` is not the name of one node",
            scontrol::plain(&node, 80)
        );
        Ok(node)
    }
}
