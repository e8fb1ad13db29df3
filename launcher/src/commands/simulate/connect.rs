//! `paceline simulate --connect`: runs the sidecars of a simulated job against a real aggregator (docs/scale.md).

use std::fmt::Write as _;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use paceline_health::id::JobId;
use paceline_health::sim::{World, WorldSpec};
use paceline_sidecar::guard::JobKey;
use paceline_sidecar::load::{self, LoadOptions, LoadReport, Spans, Stage};

use crate::output::progress::Progress;
use crate::output::{self, Color, Style, Usage};

/// Default interval between steps, seconds.
const STEP_S: f64 = 1.0;
/// The time for all nodes to join. Training then starts without the missing ones.
const JOIN: Duration = Duration::from_secs(120);
/// A warning is printed if no node could join within this time.
const SILENT: Duration = Duration::from_secs(3);

/// Options of a simulation that connects to a real aggregator.
#[derive(Debug, Args)]
pub(crate) struct ConnectArgs {
    /// Number of ranks; sets the number of nodes.
    #[arg(long, value_name = "N", conflicts_with = "nodes")]
    pub(crate) ranks: Option<u32>,
    /// Do not run the detector: act as the job's sidecars, each with its own connection to the aggregator at this
    /// address, in real time, one step per second; RELAY,RELAY,AGGREGATOR: through relays. docs/scale.md.
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = ["journal", "set", "gpu_hour_price"])]
    pub(crate) connect: Option<String>,
    /// Name of the job, the same as the aggregator's [default: simulated].
    #[arg(long, value_name = "NAME", requires = "connect")]
    pub(crate) job: Option<String>,
    /// File with the job's key [default: this user's key].
    #[arg(long, env = "PACELINE_KEY_FILE", value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// Simulated seconds per real second.
    #[arg(long, value_name = "N", default_value = "1", value_parser = speed, requires = "connect")]
    pub(crate) speed: f64,
    /// Interval between readings of GPUs and hosts, seconds.
    #[arg(long, value_name = "N", default_value_t = 10, requires = "connect", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) slow_every: u32,
    /// Number of processes that share the nodes, if one may not open enough file descriptors.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "connect", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) processes: u32,
    /// Write acknowledged frames to this file: lines of node, sidecar incarnation and last acknowledged frame.
    #[arg(long, value_name = "FILE", requires = "connect", conflicts_with = "processes")]
    pub(crate) acked: Option<PathBuf>,
    /// One of them.
    #[arg(long, hide = true, value_name = "I/N", value_parser = part)]
    pub(crate) part: Option<(u32, u32)>,
}

fn speed(text: &str) -> Result<f64, String> {
    let speed = text.parse().ok().filter(|speed| (0.01..=1000.0).contains(speed));
    speed.ok_or_else(|| "expected a number, 0.01 to 1000".to_owned())
}

/// Simulates the job and sends its frames to the aggregator at `address`.
pub(super) fn command(
    args: &ConnectArgs,
    mut spec: WorldSpec,
    address: &str,
    (json, color): (bool, Color),
) -> anyhow::Result<ExitCode> {
    if spec.step.self_s == WorldSpec::default().step.self_s {
        spec.step.self_s = STEP_S - spec.step.transfer_s;
    }
    if let Some(job) = &args.job {
        spec.job = job.as_str().into();
    }
    let job = JobId::from(&*spec.job);
    let key = JobKey::of(&job, args.key_file.as_deref())?;
    if let Some(nobody) = key.nobody_else {
        return Err(Usage(format!("--connect needs the job's key: {nobody}")).into());
    }
    let world = World::new(spec).map_err(|problem| Usage(problem.to_string()))?;
    let nodes = world.spec().nodes;
    if args.part.is_none() && args.processes > 1 {
        return in_processes(args.processes.min(nodes), json);
    }
    // The addresses in the order in which a node uses them: relays first, the aggregator last.
    let mut ways = address
        .split(',')
        .map(resolve)
        .collect::<Result<Vec<_>, Usage>>()?;
    let Some(address) = ways.pop() else {
        return Err(Usage("--connect: no address".to_owned()).into());
    };
    let options = LoadOptions {
        address,
        relays: ways,
        key: key.key,
        job,
        speed: args.speed,
        part: args.part.unwrap_or((0, 1)),
        slow_every: args.slow_every,
        join: JOIN,
        acked: args.acked.clone(),
    };
    // If there are several processes, only the first one prints, and it prints only problems.
    let is_first = args.part.is_none_or(|(part, _)| part == 0);
    let mut shown = Shown {
        style: Style::stderr(color),
        steps: world.spec().steps * u64::from(world.spec().ranks()),
        bar: None,
        is_alone: args.part.is_none(),
        complain_at: is_first.then(|| Instant::now() + SILENT),
    };
    let report = load::run(world, &options, &mut |stage| shown.at(stage, address))?;
    drop(shown);
    told(&report, json)
}

/// State of the progress output.
struct Shown {
    style: Style,
    steps: u64,
    bar: Option<(Progress, &'static str)>,
    /// True if this is the only process. Only then is a progress bar drawn.
    is_alone: bool,
    complain_at: Option<Instant>,
}

impl Shown {
    fn at(&mut self, stage: Stage, address: SocketAddr) {
        match stage {
            Stage::Joining {
                joined,
                nodes,
                failure,
            } => {
                let is_time = self.complain_at.is_some_and(|at| at <= Instant::now());
                if joined == 0 && is_time && !failure.is_empty() {
                    self.complain_at = None;
                    let said = format_args!("{address}: no node could join yet: {failure}");
                    output::warning(self.style, said);
                }
                self.draw("nodes joined", joined as u64, nodes as u64);
            }
            Stage::Training(done) => self.draw("steps of ranks", done, self.steps),
        }
    }

    fn draw(&mut self, what: &'static str, done: u64, all: u64) {
        if !self.is_alone {
            return;
        }
        if self.bar.as_ref().is_none_or(|(_, shown)| *shown != what) {
            self.bar = None;
            self.bar = Some((Progress::new(self.style, what), what));
        }
        if let Some((bar, _)) = &mut self.bar {
            bar.at(done, all);
        }
    }
}

fn resolve(address: &str) -> Result<SocketAddr, Usage> {
    let found = address.to_socket_addrs().map(|mut found| found.next());
    match found {
        Ok(Some(found)) => Ok(found),
        Ok(None) => Err(Usage(format!("--connect {address}: no such host"))),
        Err(error) => Err(Usage(format!("--connect {address}: {error}; it is HOST:PORT"))),
    }
}

/// Parses `2/8`, which is the third of eight parts.
fn part(text: &str) -> Result<(u32, u32), String> {
    let parsed = text
        .split_once('/')
        .and_then(|(rest, parts)| Some((rest.parse().ok()?, parts.parse().ok()?)));
    parsed
        .filter(|(rest, parts)| rest < parts)
        .ok_or_else(|| "expected I/N".to_owned())
}

/// Runs the same command once for each share of the nodes. Each process builds the whole world and simulates its share.
fn in_processes(processes: u32, json: bool) -> anyhow::Result<ExitCode> {
    let program = std::env::current_exe().context("where this program is")?;
    let start = |part: u32| -> anyhow::Result<Child> {
        Command::new(&program)
            .args(std::env::args_os().skip(1))
            .args(["--json", "--part", &format!("{part}/{processes}")])
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| program.display().to_string())
    };
    let started: Vec<Child> = (0..processes).map(start).collect::<Result<_, _>>()?;
    let mut all: Option<LoadReport> = None;
    for child in started {
        let done = child.wait_with_output()?;
        anyhow::ensure!(
            done.status.success(),
            "one of {processes} processes: {}",
            done.status
        );
        let one: LoadReport = serde_json::from_slice(&done.stdout).context("what a process printed")?;
        all = Some(match all {
            Some(all) => all.with(one),
            None => one,
        });
    }
    told(&all.unwrap_or_default(), json)
}

fn told(report: &LoadReport, json: bool) -> anyhow::Result<ExitCode> {
    let text = if json {
        serde_json::to_string(report)? + "\n"
    } else {
        words(report)
    };
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn words(report: &LoadReport) -> String {
    let mut text = String::new();
    let connected = match report.connect_s {
        Some(seconds) => format!("{} nodes joined in {seconds:.2} s", report.nodes),
        None => format!(
            "not all of {} nodes joined: {}",
            report.nodes, report.last_failure
        ),
    };
    let spans = |spans: Spans| {
        format!(
            "p50 {:.1} ms, p99 {:.1} ms, at most {:.1} ms",
            spans.p50_ms, spans.p99_ms, spans.max_ms
        )
    };
    let per_step = |bytes: u64| bytes as f64 / report.rank_steps.max(1) as f64;
    let _ = writeln!(
        text,
        "{connected}; {} attempts failed",
        report.failed.values().sum::<u64>()
    );
    for (why, count) in &report.failed {
        let _ = writeln!(text, "  {count}: {why}");
    }
    let _ = writeln!(
        text,
        "{} frames, {} steps of ranks, in {:.1} s; {} dropped",
        report.frames, report.rank_steps, report.took_s, report.dropped
    );
    let _ = writeln!(
        text,
        "bytes of a rank's step: {:.1} to the aggregator, {:.1} back",
        per_step(report.bytes_up),
        per_step(report.bytes_down)
    );
    let _ = writeln!(text, "created to acknowledged: {}", spans(report.said_to_acked));
    let _ = writeln!(text, "sent to acknowledged: {}", spans(report.sent_to_acked));
    let _ = writeln!(text, "late ourselves: {}", spans(report.late));
    for (from, until) in &report.outages {
        let _ = writeln!(
            text,
            "outage: {:.2} s until all were up to date",
            (until - from) as f64 / 1e9
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts() {
        assert_eq!(part("2/8"), Ok((2, 8)));
        for bad in ["", "8", "8/8", "a/2", "1/0"] {
            assert!(part(bad).is_err(), "{bad}");
        }
        assert!(resolve("127.0.0.1:80").is_ok());
        assert!(resolve("127.0.0.1").unwrap_err().0.contains("HOST:PORT"));
    }
}
