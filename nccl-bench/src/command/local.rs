//! All ranks on this host, each a process of its own, as training would start them.

use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::options::{BenchOptions, Carrier};
use crate::transport::nccl::SHARE;

/// Between two looks at the ranks.
const LOOK: Duration = Duration::from_millis(10);
/// When one has failed, so long may the others take to say what they saw of it.
const GRACE: Duration = Duration::from_secs(6);
/// Tells a rank that it has a parent to outlive.
const STARTED: &str = "PACELINE_BENCH_STARTED";

/// Processes that end with this one.
struct Ranks(Vec<Child>);

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Starts this program again once for each rank, with the same words; the first of them prints the result.
pub(super) fn start(ranks: usize, share: bool) -> Result<ExitCode> {
    let program = std::env::current_exe().context("where this program is")?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("listening on loopback")?;
    let master = listener.local_addr().context("the listener")?.to_string();
    let mut started = Ranks(Vec::new());
    let mut listener = Some(OwnedFd::from(listener));
    for rank in 0..ranks {
        let mut command = Command::new(&program);
        command.args(std::env::args_os().skip(1));
        command.args(["--rank", &rank.to_string(), "--master", &master]);
        command.env(STARTED, "1").env("LOCAL_RANK", rank.to_string());
        if share {
            command.env(SHARE.0, SHARE.1);
        }
        match listener.take() {
            // The port is held from here on: nobody else can get it before rank 0 listens.
            Some(listener) => command.arg("--listener-on-stdin").stdin(Stdio::from(listener)),
            None => command.stdin(Stdio::null()).stdout(Stdio::null()),
        };
        if !given("--ranks") {
            command.args(["--ranks", &ranks.to_string()]);
        }
        started
            .0
            .push(command.spawn().with_context(|| format!("starting rank {rank}"))?);
    }
    wait(&mut started)
}

fn given(option: &str) -> bool {
    let is = |word: std::ffi::OsString| {
        word.to_str()
            .is_some_and(|word| word.split('=').next() == Some(option))
    };
    std::env::args_os().any(is)
}

/// Rank 0's exit code; that of the first other that failed if rank 0 did not.
fn wait(ranks: &mut Ranks) -> Result<ExitCode> {
    let mut ended: Vec<Option<ExitStatus>> = vec![None; ranks.0.len()];
    let mut until: Option<Instant> = None;
    while ended.contains(&None) && until.is_none_or(|until| Instant::now() < until) {
        for (child, ended) in ranks
            .0
            .iter_mut()
            .zip(&mut ended)
            .filter(|(_, ended)| ended.is_none())
        {
            *ended = child.try_wait().context("waiting for a rank")?;
            if ended.is_some_and(|status| !status.success()) {
                until.get_or_insert(Instant::now() + GRACE);
            }
        }
        thread::sleep(LOOK);
    }
    let first = ended[0].filter(|status| !status.success());
    let failed = first.or(ended.iter().flatten().find(|status| !status.success()).copied());
    let Some(status) = failed else {
        return Ok(ExitCode::SUCCESS);
    };
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    if code.is_none() {
        anyhow::bail!("a rank was ended from outside: {status}");
    }
    Ok(ExitCode::from(code.unwrap_or(super::NOT_MEASURED)))
}

/// In a rank that was started so: it does not outlive the one that started it, and has cores of its own.
pub(super) fn settle(options: &BenchOptions) {
    if std::env::var_os(STARTED).is_none() {
        return;
    }
    // Without it the rank ends all the same when its peers do.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    // NCCL's threads belong near their GPU, which only it knows.
    if let (Carrier::Tcp, Some(rank), Some(ranks)) = (options.transport, options.rank, options.ranks) {
        bind(rank as usize, ranks as usize);
    }
}

/// To the rank's part of the cores, as mpirun does, where each has one at least: a short measurement is over before the
/// kernel has moved ranks that began on one core apart. Where it may not be, nothing is lost but that.
fn bind(rank: usize, ranks: usize) {
    let Ok(allowed) = sched_getaffinity(None) else {
        return;
    };
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|core| allowed.is_set(*core))
        .collect();
    if ranks > cores.len() || rank >= ranks {
        return;
    }
    let mut part = CpuSet::new();
    for core in &cores[rank * cores.len() / ranks..(rank + 1) * cores.len() / ranks] {
        part.set(*core);
    }
    let _ = sched_setaffinity(None, &part);
}
