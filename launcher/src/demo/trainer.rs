//! One trainer of the demo. It does what a training script does, and writes its ring like the Python hook. A step
//! consists of some real compute, a timed wait in place of the remaining compute, an all-reduce, and an optimizer step.
//!
//! The timed wait scales with the simulated GPU's slowdown. For example, a GPU at three quarters of its clock takes a
//! third longer.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use paceline_health::sim::GpuScript;
use paceline_ring::{Attach, Detach, Framework, PhaseWord, Record, Step, StepWord, Writer};

use super::DemoTrainerArgs;
use super::allreduce::Ring;
use super::model::Model;

/// Duration of the forward and backward pass on a healthy GPU.
const COMPUTE: Duration = Duration::from_millis(75);
/// Duration of loading a batch.
const DATA: Duration = Duration::from_millis(3);
/// Variable with the address of the next rank's listener.
pub(super) const NEXT: &str = "PACELINE_DEMO_NEXT";

/// Trains as one rank until the time is over or SIGTERM arrives.
pub(super) fn run(args: &DemoTrainerArgs, rank: u32) -> anyhow::Result<()> {
    let gpus = GpuScript::parse(&args.gpus).context("--gpus")?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [libc::SIGTERM, libc::SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let next: SocketAddr = std::env::var(NEXT).context(NEXT)?.parse().context(NEXT)?;
    // Our standard input is the listener, which was bound before any rank could connect.
    let listener = TcpListener::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut trainer = Trainer {
        ring: Ring::join(rank as usize, args.ranks as usize, &listener, next)?,
        model: Model::new(rank),
        probe: Probe::attach(args, rank, &gpus),
        gpus,
        rank,
        ranks: args.ranks,
        origin_ns: args.origin_ns,
    };
    let deadline = Instant::now() + Duration::from_secs(args.seconds);
    let mut step = 0;
    let mut begin = Instant::now();
    loop {
        step += 1;
        let over = stop.load(Ordering::Relaxed) || Instant::now() >= deadline;
        let last = trainer.step(step, begin, over)?;
        begin = last.ended;
        if last.over {
            break;
        }
    }
    trainer.probe.write(&Record::Detach(Detach { step }));
    Ok(())
}

struct Trainer {
    ring: Ring,
    model: Model,
    probe: Probe,
    gpus: GpuScript,
    rank: u32,
    ranks: u32,
    origin_ns: u64,
}

/// What one step of training returns.
struct Stepped {
    ended: Instant,
    /// True if a rank wants to stop. All ranks stop after the same step, or peers would wait in the next one for a rank
    /// that has stopped.
    over: bool,
}

impl Trainer {
    fn step(&mut self, step: u64, began: Instant, over: bool) -> io::Result<Stepped> {
        self.probe.progress(step, PhaseWord::Data);
        let batch = self.model.batch();
        until(began + DATA);
        let loaded = Instant::now();

        self.probe.progress(step, PhaseWord::Compute);
        let mut gradient = self.model.gradient(&batch);
        gradient.push(if over { 1.0 } else { 0.0 });
        let seconds = paceline_ring::monotonic_ns().saturating_sub(self.origin_ns) as f64 / 1e9;
        until(loaded + COMPUTE.div_f64(self.gpus.speed(self.rank, seconds)));
        let computed = Instant::now();

        self.probe.progress(step, PhaseWord::Wait);
        self.ring.sum(&mut gradient)?;
        let reduced = Instant::now();

        self.probe.progress(step, PhaseWord::Optimizer);
        let over = gradient.pop().is_some_and(|wishes| wishes > 0.0);
        self.model.step(&gradient, self.ranks);
        let ended = Instant::now();
        self.probe.write(&Record::Step(Step {
            step,
            duration_ns: (ended - began).as_nanos() as u64,
            data_us: (loaded - began).as_micros() as u32,
            compute_us: (computed - loaded).as_micros() as u32,
            wait_us: (reduced - computed).as_micros() as u32,
            optimizer_us: (ended - reduced).as_micros() as u32,
            checkpoint_us: 0,
            micro_batches: 1,
            kind: StepWord::Train,
            phases_known: true,
            tokens: 0,
        }));
        self.probe.progress(step + 1, PhaseWord::Other);
        Ok(Stepped { ended, over })
    }
}

fn until(then: Instant) {
    sleep(then.saturating_duration_since(Instant::now()));
}

/// The rank's ring, or `None` if there is none. A trainer also runs without it.
struct Probe(Option<Writer>);

impl Probe {
    fn attach(args: &DemoTrainerArgs, rank: u32, gpus: &GpuScript) -> Probe {
        let folder = std::env::var_os("PACELINE_RING_DIR").map(PathBuf::from);
        let probe = Probe(folder.and_then(|folder| Writer::create(&folder).ok()));
        let number = |part: &str| part.parse().unwrap_or(0);
        let mut version = env!("CARGO_PKG_VERSION").split('.').map(number);
        probe.write(&Record::Attach(Attach {
            rank,
            local_rank: rank,
            world_size: args.ranks,
            restart: 0,
            device: rank as i32,
            gpu_uuid: gpus.uuid_bytes(rank),
            version: std::array::from_fn(|_| version.next().unwrap_or(0)),
            framework: Framework::Demo,
            ..Attach::default()
        }));
        probe
    }

    fn write(&self, record: &Record) {
        if let Some(writer) = &self.0 {
            // Ignore a full ring, which counts the records that it drops.
            let _ = writer.write(record);
        }
    }

    fn progress(&self, step: u64, phase: PhaseWord) {
        if let Some(writer) = &self.0 {
            writer.progress(step, phase);
        }
    }
}
