//! One rank of the demo's job: a linear regression trained by synchronous SGD, with a timed wait that stands for the
//! GPU's share of the work. It is a trainer like any other: it knows its rank, and writes the ring.
//!
//! Its GPU is simulated, and the same script that the sidecar reads says how fast it is now: when the GPU heats up and
//! lowers its clock, this rank's compute takes longer, and all others wait for it.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use paceline_health::sim::gpu::GpuScript;
use paceline_ring::{Attach, Detach, Framework, PhaseWord, Record, Step, StepWord, Writer, monotonic_ns};

use super::allreduce::Ring;

/// Parameters of the model; also the size of the all-reduce, 16 KiB.
const FEATURES: usize = 4096;
const BATCH: usize = 16;
const LEARNING_RATE: f32 = 0.05;
/// The work of one step at full clock.
const DATA: Duration = Duration::from_millis(2);
const COMPUTE: Duration = Duration::from_millis(80);

/// What one rank is told.
pub(super) struct Place<'a> {
    pub(super) rank: u32,
    pub(super) world_size: u32,
    /// Where the ranks meet; a file `stop` in it ends the job after the step in which a rank sees it.
    pub(super) rendezvous: &'a Path,
    pub(super) gpus: &'a GpuScript,
    /// CLOCK_MONOTONIC at which the script's time is zero.
    pub(super) origin_ns: u64,
    pub(super) ring_dir: Option<&'a Path>,
    pub(super) seconds: f64,
}

/// Trains until the time is over or the job is stopped; all ranks stop after the same step. Gives the last loss.
pub(super) fn train(place: &Place<'_>) -> Result<f32> {
    let mut ring = Ring::join(place.rendezvous, place.rank as usize, place.world_size as usize)?;
    // Without its ring a trainer trains all the same.
    let probe = place.ring_dir.and_then(|dir| Writer::create(dir).ok());
    let probe = Probe { writer: probe };
    probe.attach(place);
    let mut model = Model::new(place.rank);
    let begin = Instant::now();
    let mut end_of_last = Instant::now();
    for step in 1.. {
        probe.enter(step, PhaseWord::Data);
        let data = Instant::now();
        model.load();
        std::thread::sleep(DATA.saturating_sub(data.elapsed()));
        let data = data.elapsed();

        probe.enter(step, PhaseWord::Compute);
        let compute = Instant::now();
        let mut gradient = model.gradient();
        std::thread::sleep((COMPUTE.div_f64(place.speed())).saturating_sub(compute.elapsed()));
        let compute = compute.elapsed();

        probe.enter(step, PhaseWord::Wait);
        let wait = Instant::now();
        let over = begin.elapsed().as_secs_f64() >= place.seconds || place.rendezvous.join("stop").exists();
        gradient.push(f32::from(u8::from(over)));
        ring.all_reduce(&mut gradient).context("all-reduce")?;
        let stop = gradient.pop().is_some_and(|votes| votes > 0.0);
        let wait = wait.elapsed();

        probe.enter(step, PhaseWord::Optimizer);
        let optimizer = Instant::now();
        model.update(&gradient, place.world_size);
        let optimizer = optimizer.elapsed();

        probe.step(step, end_of_last.elapsed(), [data, compute, wait, optimizer]);
        end_of_last = Instant::now();
        if stop {
            probe.detach(step);
            break;
        }
    }
    Ok(model.loss)
}

impl Place<'_> {
    /// The simulated GPU's clock over its maximum, now.
    fn speed(&self) -> f64 {
        let seconds = monotonic_ns().saturating_sub(self.origin_ns) as f64 / 1e9;
        self.gpus.speed(self.rank, seconds).max(0.05)
    }
}

/// The rank's side of the ring; everything on it is dropped, never waited for.
struct Probe {
    writer: Option<Writer>,
}

impl Probe {
    fn attach(&self, place: &Place<'_>) {
        self.write(Record::Attach(Attach {
            rank: place.rank,
            local_rank: place.rank,
            world_size: place.world_size,
            restart: 0,
            device: i32::try_from(place.rank).unwrap_or(-1),
            gpu_uuid: place.gpus.uuid_bytes(place.rank),
            version: [0, 1, 0],
            framework: Framework::Demo,
        }));
    }

    fn enter(&self, step: u64, phase: PhaseWord) {
        if let Some(writer) = &self.writer {
            writer.progress(step, phase);
        }
    }

    fn step(&self, step: u64, duration: Duration, phases: [Duration; 4]) {
        let micros = |span: Duration| u32::try_from(span.as_micros()).unwrap_or(u32::MAX);
        let [data_us, compute_us, wait_us, optimizer_us] = phases.map(micros);
        self.write(Record::Step(Step {
            step,
            duration_ns: u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX),
            data_us,
            compute_us,
            wait_us,
            optimizer_us,
            checkpoint_us: 0,
            micro_batches: 1,
            kind: StepWord::Train,
            phases_known: true,
            tokens: BATCH as u64,
        }));
    }

    fn detach(&self, step: u64) {
        self.write(Record::Detach(Detach { step }));
    }

    fn write(&self, record: Record) {
        if let Some(writer) = &self.writer {
            writer.write(&record);
        }
    }
}

/// y = x · w with x in -1 to 1, each rank on samples of its own.
struct Model {
    weights: Vec<f32>,
    batch: Vec<Vec<f32>>,
    chance: u64,
    loss: f32,
}

impl Model {
    fn new(rank: u32) -> Model {
        let chance = 0x9E37_79B9_7F4A_7C15 ^ u64::from(rank) << 32;
        Model { weights: vec![0.0; FEATURES], batch: Vec::new(), chance, loss: 0.0 }
    }

    fn sample(&mut self) -> f32 {
        self.chance = self.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.chance >> 40) as f32 / (1_u32 << 23) as f32 - 1.0
    }

    fn load(&mut self) {
        self.batch = (0..BATCH).map(|_| (0..FEATURES).map(|_| self.sample()).collect()).collect();
    }

    /// The weights that are to be found.
    fn truth(feature: usize) -> f32 {
        ((feature % 17) as f32 - 8.0) / 8.0
    }

    fn gradient(&mut self) -> Vec<f32> {
        let mut gradient = vec![0.0; FEATURES];
        self.loss = 0.0;
        for x in &self.batch {
            let error: f32 =
                x.iter().zip(&self.weights).enumerate().map(|(i, (x, w))| x * (w - Model::truth(i))).sum();
            self.loss += error * error / BATCH as f32;
            for (slot, x) in gradient.iter_mut().zip(x) {
                *slot += error * x / FEATURES as f32;
            }
        }
        gradient
    }

    fn update(&mut self, gradient: &[f32], world_size: u32) {
        for (weight, slope) in self.weights.iter_mut().zip(gradient) {
            *weight -= LEARNING_RATE * slope / world_size as f32;
        }
    }
}
