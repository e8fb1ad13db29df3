//! Runs all ranks on this host, each in its own process, as in training.

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

/// Interval of checks on the ranks.
const LOOK: Duration = Duration::from_millis(10);
/// Time after a failure in which the other ranks can report their errors.
const GRACE: Duration = Duration::from_secs(6);
/// Environment variable that marks a rank which must not outlive its parent.
const STARTED: &str = "PACELINE_BENCH_STARTED";

/// Processes that are killed when this is dropped.
struct Ranks(Vec<Child>);

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // The rank may have exited already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Starts this program once per rank, with the same arguments. Rank 0 prints the result.
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
            // The port is reserved from here on, so that no other process can take it before rank 0 listens.
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

/// Waits for all ranks. Returns rank 0's exit code, or if rank 0 succeeded, that of the first failed rank.
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

/// Configures a rank that [`start`] has started. It must not outlive its parent, and it gets its own cores.
pub(super) fn settle(options: &BenchOptions) {
    if std::env::var_os(STARTED).is_none() {
        return;
    }
    // If this call fails, the rank still ends together with its peers.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    // For NCCL, ranks are not bound to cores, because NCCL places its own threads close to their GPU.
    if let (Carrier::Tcp, Some(rank), Some(ranks)) = (options.transport, options.rank, options.ranks) {
        bind(rank as usize, ranks as usize);
    }
}

/// Binds the rank to its share of the cores, as mpirun does, if there is at least one core per rank. Without this, a
/// short measurement would end before the kernel separates ranks that started on one core. Failures are ignored.
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
