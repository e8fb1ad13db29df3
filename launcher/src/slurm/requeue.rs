//! `paceline slurm requeue`: requeues the same job with all its options, excluding bad nodes.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;

use super::{scontrol, variable};
use crate::output::{self, Usage};

/// Time to wait until the job is in the queue again, when the exclusion is accepted. Ending the job takes up to its
/// KillWait.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Args)]
#[command(
    after_help = "Slurm keeps the job's number, options and place in accounting; only its list of excluded nodes grows. The \
job must allow it (sbatch --requeue, or JobRequeue=1).\n\nExample: paceline slurm requeue 4711 --exclude n[3,7]"
)]
pub(super) struct RequeueArgs {
    /// The job [default: SLURM_JOB_ID].
    #[arg(value_name = "JOB")]
    job: Option<String>,
    /// Nodes to exclude, such as n3 or n[3,7], in addition to those already excluded.
    #[arg(long, value_name = "NODES")]
    exclude: String,
    /// Print what would be done, and exit.
    #[arg(long)]
    dry_run: bool,
}

pub(super) fn command(args: &RequeueArgs) -> anyhow::Result<ExitCode> {
    let job = args.job.clone().or_else(|| variable("SLURM_JOB_ID"));
    let job = job.ok_or_else(|| Usage("no job: SLURM_JOB_ID is not set".to_owned()))?;
    if args.exclude.trim().is_empty() {
        return Err(Usage("--exclude: no node".to_owned()).into());
    }
    paceline_nccl_bench::preflight::hosts::expand(&args.exclude)
        .map_err(|problem| Usage(format!("--exclude {}: {problem}", args.exclude)))?;
    let shown = scontrol::ask("scontrol", &["show", "job", &job])?;
    let nodes = excluded(&shown, &args.exclude);
    if args.dry_run {
        output::print(&format!(
            "scontrol requeue {job}\nscontrol update jobid={job} excnodelist={nodes}\n"
        ))?;
        return Ok(ExitCode::SUCCESS);
    }
    // Ignore SIGTERM, because inside the job the requeue ends us too, before the exclusion is set.
    // SAFETY: no handler is installed; the signal is only ignored.
    unsafe { libc::signal(libc::SIGTERM, libc::SIG_IGN) };
    let is_pending = scontrol::field(&shown, "JobState") == Some("PENDING");
    if !is_pending {
        scontrol::ask("scontrol", &["requeue", &job])?;
    }
    exclude(&job, &nodes).with_context(|| format!("job {job} was requeued, and may start on any node"))?;
    output::say(format_args!("paceline: job {job} is requeued, without {nodes}"));
    Ok(ExitCode::SUCCESS)
}

/// Sets the list of excluded nodes. The list may change only while the job is pending.
fn exclude(job: &str, nodes: &str) -> anyhow::Result<()> {
    let began = Instant::now();
    let (id, list) = (format!("jobid={job}"), format!("excnodelist={nodes}"));
    loop {
        match scontrol::ask("scontrol", &["update", &id, &list]) {
            Ok(_) => return Ok(()),
            Err(_) if began.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(200)),
            Err(problem) => return Err(problem),
        }
    }
}

/// Returns the nodes that the job already excludes together with the new ones.
fn excluded(shown: &str, new: &str) -> String {
    match scontrol::field(shown, "ExcNodeList") {
        None | Some("(null)" | "") => new.to_owned(),
        Some(old) => format!("{old},{new}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_excluded_stays_so() {
        assert_eq!(excluded("ReqNodeList=(null) ExcNodeList=(null)\n", "n3"), "n3");
        assert_eq!(
            excluded("ReqNodeList=(null) ExcNodeList=n[1-2]\n", "n3"),
            "n[1-2],n3"
        );
    }
}
