//! The demo's job: `paceline demo-job` starts the ranks as processes of their own, as torchrun would, and waits for them.
//! The demo runs it under `run` like any other command:
//!
//! `paceline run --sim-gpus SCRIPT … -- paceline demo-job --ranks 8 --rendezvous DIR --sim-gpus SCRIPT --origin-ns N`

use std::path::PathBuf;
use std::process::{Child, Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use paceline_health::sim::gpu::GpuScript;

use super::trainer::{Place, train};

/// `paceline demo-job`, hidden.
#[derive(Clone, Debug, Args)]
pub(crate) struct DemoJobArgs {
    /// Ranks to start; each is a process.
    #[arg(long, default_value_t = 8)]
    ranks: u32,
    /// Be this rank instead of starting them all.
    #[arg(long)]
    rank: Option<u32>,
    /// Directory in which the ranks meet. A file called `stop` in it ends the job in order.
    #[arg(long)]
    rendezvous: PathBuf,
    /// The simulated GPUs, one for each rank.
    #[arg(long)]
    sim_gpus: String,
    /// CLOCK_MONOTONIC, ns, at which the script's time is zero.
    #[arg(long)]
    origin_ns: u64,
    /// Longest that the job takes.
    #[arg(long, default_value_t = 30.0)]
    seconds: f64,
}

/// Runs the whole job, or one rank of it.
pub(crate) fn command(args: &DemoJobArgs) -> Result<ExitCode> {
    let gpus = GpuScript::parse(&args.sim_gpus).context("--sim-gpus")?;
    let Some(rank) = args.rank else { return start_all(args) };
    let ring_dir = std::env::var_os("PACELINE_RING_DIR").map(PathBuf::from);
    train(&Place {
        rank,
        world_size: args.ranks,
        rendezvous: &args.rendezvous,
        gpus: &gpus,
        origin_ns: args.origin_ns,
        ring_dir: ring_dir.as_deref(),
        seconds: args.seconds,
    })
    .with_context(|| format!("rank {rank}"))?;
    Ok(ExitCode::SUCCESS)
}

fn start_all(args: &DemoJobArgs) -> Result<ExitCode> {
    if args.ranks < 2 {
        bail!("--ranks {}: a job of one rank waits for nobody; at least 2", args.ranks);
    }
    let program = std::env::current_exe().context("finding this program")?;
    let start = |rank: u32| {
        let mut command = Command::new(&program);
        command.arg("demo-job").args(["--ranks", &args.ranks.to_string(), "--rank", &rank.to_string()]);
        command.arg("--rendezvous").arg(&args.rendezvous).args(["--sim-gpus", &args.sim_gpus]);
        command.args(["--origin-ns", &args.origin_ns.to_string(), "--seconds", &args.seconds.to_string()]);
        command.spawn().with_context(|| format!("starting rank {rank}"))
    };
    let mut ranks = Vec::new();
    for rank in 0..args.ranks {
        match start(rank) {
            Ok(child) => ranks.push(child),
            Err(error) => {
                end(&mut ranks);
                return Err(error);
            }
        }
    }
    // As torchrun: the first failure ends them all.
    while !ranks.is_empty() {
        let mut failed = false;
        ranks.retain_mut(|rank| match rank.try_wait() {
            Ok(None) => true,
            Ok(Some(status)) => {
                failed |= !status.success();
                false
            }
            Err(_) => false,
        });
        if failed {
            end(&mut ranks);
            return Ok(ExitCode::FAILURE);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(ExitCode::SUCCESS)
}

fn end(ranks: &mut Vec<Child>) {
    for rank in ranks.iter_mut() {
        // One that has just ended by itself cannot be killed, and need not be.
        let _ = rank.kill();
        let _ = rank.wait();
    }
    ranks.clear();
}
