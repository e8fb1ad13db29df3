//! `paceline slurm targets`: prints the metrics addresses of live jobs' aggregators for Prometheus
//! (<https://prometheus.io/docs/prometheus/latest/configuration/configuration/#file_sd_config>).

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use paceline_nccl_bench::preflight::hosts;
use paceline_sidecar::sink::files::metrics_said;
use paceline_sidecar::sink::write_whole;
use serde::Serialize;

use super::{listen, scontrol, variable};
use crate::output;
use crate::run::identity;

#[derive(Debug, Args)]
#[command(
    after_help = "Metrics are served on loopback only, so each node lists the jobs whose aggregator it has, for a Prometheus \
(or an agent of one) that runs there."
)]
pub(super) struct TargetsArgs {
    /// Name of this node [default: SLURMD_NODENAME, else the host name].
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Output file, replaced atomically [default: stdout].
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Serve them over HTTP for Prometheus' http_sd_configs until the program ends: a port on loopback, or an address
    /// and a port.
    #[arg(long, value_name = "[ADDR:]PORT", value_parser = listen::parse, conflicts_with = "out")]
    listen: Option<SocketAddr>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Target {
    targets: [String; 1],
    labels: BTreeMap<&'static str, String>,
}

pub(super) fn command(args: &TargetsArgs) -> anyhow::Result<ExitCode> {
    let node = args.node.clone().unwrap_or_else(|| identity::node(&variable));
    if let Some(place) = args.listen {
        let listener = TcpListener::bind(place).with_context(|| place.to_string())?;
        output::print(&format!("http://{}/\n", listener.local_addr()?))?;
        listen::serve(&listener, || found(&node));
    }
    let text = found(&node)?;
    match &args.out {
        Some(path) => write_whole(path, text.as_bytes()).with_context(|| path.display().to_string())?,
        None => output::print(&text)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the targets in Prometheus's format.
fn found(node: &str) -> anyhow::Result<String> {
    // End each record with a random mark, because directory and name are the user's and may contain anything, including
    // newlines.
    let end = format!("|{:016x}", identity::chance());
    let wanted = format!("%A|%u|%N|%Z|%j{end}");
    let shown = scontrol::ask("squeue", &["-h", "-t", "R", "-w", node, "-o", &wanted])?;
    let jobs = records(&shown, &end)
        .filter_map(Job::of)
        .filter(|job| job.is_led_by(node));
    let found: Vec<Target> = jobs
        .flat_map(|job| {
            let runs = addresses(Path::new(job.dir), job.id);
            runs.into_iter()
                .map(move |(run, address)| target(&job, &run, address))
        })
        .collect();
    Ok(serde_json::to_string_pretty(&found)? + "\n")
}

fn records<'a>(shown: &'a str, end: &'a str) -> impl Iterator<Item = &'a str> {
    // Remove the newline with which each record except the first begins.
    let records = shown
        .split(end)
        .map(|record| record.strip_prefix('\n').unwrap_or(record));
    records.filter(|record| !record.is_empty())
}

/// A job, as squeue prints it.
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

    /// Returns true if the job's aggregator runs on `node`.
    fn is_led_by(&self, node: &str) -> bool {
        hosts::expand(self.nodes).is_ok_and(|nodes| nodes.first().is_some_and(|first| first == node))
    }
}

/// Returns the addresses of the job's runs, from the files in its directory.
fn addresses(dir: &Path, job: &str) -> Vec<(String, SocketAddr)> {
    let start = format!("paceline-{job}");
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let of = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let rest = name.strip_prefix(&start)?;
        let is_of_job = rest.is_empty() || rest.starts_with(['.', '-']);
        let said = is_of_job.then(|| metrics_said(&entry.path()))??;
        // Do not check that the address is served. We may be in another network namespace, and Prometheus finds out.
        let address = of_this_node(said)?;
        Some((name.strip_prefix("paceline-")?.to_owned(), address))
    };
    entries.filter_map(of).collect()
}

/// Returns the address if it is one of this node. Other addresses are not used, because the file is the user's and may
/// contain anything.
fn of_this_node(address: SocketAddr) -> Option<SocketAddr> {
    if address.ip().is_unspecified() {
        return Some((Ipv4Addr::LOCALHOST, address.port()).into());
    }
    // Try to bind the address, which succeeds only for addresses of this node.
    UdpSocket::bind((address.ip(), 0)).is_ok().then_some(address)
}

fn target(job: &Job<'_>, run: &str, address: SocketAddr) -> Target {
    let labels = [
        ("slurm_job", job.id),
        ("user", job.user),
        ("job_name", job.name),
        ("run", run),
    ];
    let plain = |value: &str| value.replace(char::is_control, " ");
    Target {
        targets: [address.to_string()],
        labels: labels.map(|(name, value)| (name, plain(value))).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_adds_no_job_and_an_address_is_of_this_node() {
        let shown = "7|ada|n3|/home/ada|a\n8|root|n3|/home/ada/evil|x|s\n9|bob|n3|/home/bob|b|s\n";
        let jobs: Vec<Job<'_>> = records(shown, "|s").filter_map(Job::of).collect();
        let told: Vec<_> = jobs.iter().map(|job| (job.id, job.user)).collect();
        assert_eq!(told, [("7", "ada"), ("9", "bob")]);
        let target = target(&jobs[0], "7", "127.0.0.1:1".parse().unwrap());
        assert_eq!(target.labels["job_name"], "a 8|root|n3|/home/ada/evil|x");
        for (address, wanted) in [
            ("127.0.0.1:9000", Some("127.0.0.1:9000")),
            ("0.0.0.0:9000", Some("127.0.0.1:9000")),
            // This address is reserved for documentation (RFC 5737).
            ("192.0.2.7:80", None),
        ] {
            let found = of_this_node(address.parse().unwrap()).map(|found| found.to_string());
            assert_eq!(found.as_deref(), wanted, "{address}");
        }
    }

    #[test]
    fn only_addresses_of_the_job_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let run = |name: &str, address: &str| {
            let run = dir.path().join(name);
            fs::create_dir(&run).unwrap();
            fs::write(run.join("metrics.addr"), address).unwrap();
        };
        let page = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = page.local_addr().unwrap();
        run("paceline-7", &format!("{address}\n"));
        run("paceline-70", &format!("{address}\n"));
        run("paceline-7-1", "no address");
        assert_eq!(addresses(dir.path(), "7"), [("7".to_owned(), address)]);
    }

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
