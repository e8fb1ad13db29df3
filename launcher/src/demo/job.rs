//! The demo's job launcher, the counterpart of torchrun. It starts every rank with a listener and its neighbor's
//! address, and exits with the code of the lowest-numbered rank that failed.

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context as _;

use super::DemoTrainerArgs;
use super::trainer::NEXT;

/// Runs all ranks to their end. Returns the exit code of the lowest-numbered rank that failed, or 0.
pub(super) fn run(args: &DemoTrainerArgs) -> anyhow::Result<u8> {
    // Ignore SIGTERM and SIGINT here. They reach the whole group, so the ranks agree on a last step, and we wait for
    // them.
    for signal in [libc::SIGTERM, libc::SIGINT] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    let listeners: Result<Vec<TcpListener>, _> = (0..args.ranks)
        .map(|_| TcpListener::bind("127.0.0.1:0"))
        .collect();
    let listeners = listeners.context("cannot listen on loopback")?;
    let addresses: Result<Vec<_>, _> = listeners.iter().map(TcpListener::local_addr).collect();
    let addresses = addresses?;
    let mut ranks = Vec::new();
    for (rank, listener) in (0..args.ranks).zip(listeners) {
        let next = addresses[(rank as usize + 1) % addresses.len()];
        ranks.push(start(args, rank, listener, next.to_string())?);
    }
    // No rank has to be killed: a rank that exits early breaks the ring, so the other ranks exit as well.
    let mut code = 0;
    for (rank, child) in ranks.iter_mut().enumerate() {
        let status = child.wait()?;
        if !status.success() && code == 0 {
            crate::output::say(format_args!("demo: rank {rank} ended with {status}"));
            code = status
                .code()
                .and_then(|code| u8::try_from(code).ok())
                .unwrap_or(1);
        }
    }
    Ok(code)
}

fn start(args: &DemoTrainerArgs, rank: u32, listener: TcpListener, next: String) -> anyhow::Result<Child> {
    let child = Command::new(std::env::current_exe()?)
        .arg("demo-trainer")
        .args(["--rank", &rank.to_string(), "--ranks", &args.ranks.to_string()])
        .args(["--gpus", &args.gpus, "--origin-ns", &args.origin_ns.to_string()])
        .args(["--seconds", &args.seconds.to_string()])
        .env(NEXT, next)
        .stdin(Stdio::from(OwnedFd::from(listener)))
        .spawn();
    child.with_context(|| format!("cannot start rank {rank}"))
}
