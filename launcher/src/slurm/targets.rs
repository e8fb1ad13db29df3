//! `paceline slurm targets`: where the aggregators of live jobs serve their metrics, as Prometheus reads it from a file
//! (<https://prometheus.io/docs/prometheus/latest/configuration/configuration/#file_sd_config>).

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use paceline_nccl_bench::preflight::hosts;
use paceline_sidecar::sink::write_whole;
use serde::Serialize;

use super::{scontrol, variable};
use crate::output;
use crate::run::identity;

/// In the run directory: where its aggregator serves metrics.
const ADDRESS: &str = "metrics.addr";

#[derive(Debug, Args)]
#[command(
    after_help = "Metrics are served on loopback only, so each node lists the jobs whose aggregator it has, for a Prometheus \
(or an agent of one) that runs there."
)]
pub(super) struct TargetsArgs {
    /// Name of this node [default: SLURMD_NODENAME, else the host name].
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Write there, whole or not at all [default: print].
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Target {
    targets: [String; 1],
    labels: BTreeMap<&'static str, String>,
}

pub(super) fn command(args: &TargetsArgs) -> anyhow::Result<ExitCode> {
    let node = args.node.clone().unwrap_or_else(|| identity::node(&variable));
    // The name comes last: it may hold anything.
    let shown = scontrol::ask("squeue", &["-h", "-t", "R", "-w", &node, "-o", "%A|%u|%N|%Z|%j"])?;
    let jobs = shown
        .lines()
        .filter_map(Job::of)
        .filter(|job| job.is_led_by(&node));
    let found: Vec<Target> = jobs
        .flat_map(|job| {
            let runs = addresses(Path::new(job.dir), job.id);
            runs.into_iter()
                .map(move |(run, address)| target(&job, &run, address))
        })
        .collect();
    let text = serde_json::to_string_pretty(&found)? + "\n";
    match &args.out {
        Some(path) => write_whole(path, text.as_bytes()).with_context(|| path.display().to_string())?,
        None => output::print(&text)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A line of squeue.
#[derive(Clone, Copy)]
struct Job<'a> {
    id: &'a str,
    user: &'a str,
    nodes: &'a str,
    dir: &'a str,
    name: &'a str,
}

impl Job<'_> {
    fn of(line: &str) -> Option<Job<'_>> {
        let mut parts = line.splitn(5, '|');
        Some(Job {
            id: parts.next()?,
            user: parts.next()?,
            nodes: parts.next()?,
            dir: parts.next()?,
            name: parts.next()?,
        })
    }

    /// Whether the aggregator is there.
    fn is_led_by(&self, node: &str) -> bool {
        hosts::expand(self.nodes).is_ok_and(|nodes| nodes.first().is_some_and(|first| first == node))
    }
}

/// Of the job's runs, in its directory.
fn addresses(dir: &Path, job: &str) -> Vec<(String, SocketAddr)> {
    let start = format!("paceline-{job}");
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let of = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let rest = name.strip_prefix(&start)?;
        let is_of_job = rest.is_empty() || rest.starts_with(['.', '-']);
        let path = entry.path().join(ADDRESS);
        // An address is short: whatever else stands there is none.
        let is_file = fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_file() && meta.len() < 100);
        let text = (is_of_job && is_file).then(|| fs::read_to_string(path).ok())??;
        Some((
            name.strip_prefix("paceline-")?.to_owned(),
            text.trim().parse().ok()?,
        ))
    };
    entries.filter_map(of).collect()
}

fn target(job: &Job<'_>, run: &str, address: SocketAddr) -> Target {
    let labels = [
        ("slurm_job", job.id),
        ("user", job.user),
        ("job_name", job.name),
        ("run", run),
    ];
    Target {
        targets: [address.to_string()],
        labels: labels.map(|(name, value)| (name, value.to_owned())).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_prometheus_finds_a_job() {
        let job = Job::of("7|ada|n[3-4]|/home/ada|a|b").unwrap();
        assert_eq!((job.name, job.dir), ("a|b", "/home/ada"));
        assert!(job.is_led_by("n3") && !job.is_led_by("n4"));
        let target = target(&job, "7.0", "127.0.0.1:9000".parse().unwrap());
        let text = serde_json::to_string(&target).unwrap();
        assert_eq!(
            text,
            r#"{"targets":["127.0.0.1:9000"],"labels":{"job_name":"a|b","run":"7.0","slurm_job":"7","user":"ada"}}"#
        );
    }
}
