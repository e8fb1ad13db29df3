//! Measures decision latency and frame throughput for 16,384 ranks at one step per second on one core.
//!
//! All times are CPU times of the thread, so that other load on the machine does not count. On a dedicated core they
//! equal wall times.

use std::time::Duration;

use paceline_health::sim::{World, WorldSpec};
use paceline_health::{Detector, Frame, Policy, Time};
use rustix::time::{ClockId, clock_gettime};

use super::interval::quantile;
use super::row::{Better, Row, Unit};

/// The world has step times of about 1 s with one collective, and one slow rank to find.
const WORLD: &str = "nodes=2048 gpus=8 self=980ms transfer=10ms steps=120";
const FAULT: &str = "slow rank=9000 factor=1.2 from=40";

/// Feeds the world to the detector second by second. Only the detector's work is timed.
///
/// # Errors
/// If the built-in world is invalid.
pub(super) fn rows(seed: u64, mut progress: impl FnMut(u64, u64)) -> Result<Vec<Row>, String> {
    let mut spec = WorldSpec::parse(WORLD).map_err(|problem| problem.to_string())?;
    spec.seed = seed;
    spec.faults
        .push(FAULT.parse().map_err(|problem| format!("{FAULT}: {problem}"))?);
    let steps = spec.steps;
    let mut world = World::new(spec).map_err(|problem| problem.to_string())?;
    let mut detector = Detector::new(Policy::default());
    let (mut batch, mut second) = (Vec::new(), 0);
    let mut spent = Spent::default();
    while let Some((at, frame)) = world.next() {
        let now = at.as_secs_f64() as u64;
        if now != second {
            spent.fold(&mut detector, &batch);
            batch.clear();
            second = now;
            progress(world.steps(), steps);
        }
        batch.push((at, frame));
    }
    spent.fold(&mut detector, &batch);
    Ok(spent.rows())
}

/// Returns this thread's CPU time so far.
fn cpu() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

#[derive(Default)]
struct Spent {
    /// Milliseconds spent on each simulated second.
    seconds: Vec<f64>,
    /// The longest time for sixteen consecutive frames, in milliseconds. It is an upper bound of the time for one
    /// decision.
    longest: f64,
    frames: u64,
    all: Duration,
    verdicts: u64,
}

impl Spent {
    /// Processes all frames of one simulated second. A live detector must finish them before the next second.
    fn fold(&mut self, detector: &mut Detector, batch: &[(Time, Frame)]) {
        let begin = cpu();
        let mut last = begin;
        for (count, (at, frame)) in (1_u64..).zip(batch) {
            detector.observe(*at, frame);
            while detector.poll().is_some() {
                self.verdicts += 1;
            }
            // Read the clock only at every sixteenth frame, because reading it at each would be a large part of the
            // work.
            if count.is_multiple_of(16) {
                let now = cpu();
                self.longest = self.longest.max((now - last).as_secs_f64() * 1e3);
                last = now;
            }
        }
        let end = cpu();
        self.longest = self.longest.max((end - last).as_secs_f64() * 1e3);
        let took = end - begin;
        self.all += took;
        self.frames += batch.len() as u64;
        if !batch.is_empty() {
            self.seconds.push(took.as_secs_f64() * 1e3);
        }
    }

    fn rows(mut self) -> Vec<Row> {
        self.seconds.sort_by(f64::total_cmp);
        let n = self.seconds.len() as u64;
        let late = quantile(&self.seconds, 0.99).unwrap_or(f64::INFINITY);
        let worst = self.seconds.last().copied().unwrap_or(f64::INFINITY);
        let speed = self.frames as f64 / self.all.as_secs_f64();
        vec![
            Row::at_most(
                "16,384 ranks, one core: all of a second's frames decided, p99",
                200.0,
            )
            .in_unit(Unit::Milliseconds)
            .with(late, n)
            .noting(format!("{} verdicts", self.verdicts)),
            // This includes the first second, in which all ranks attach.
            Row::told(
                "16,384 ranks, one core: all of a second's frames decided, longest",
                Better::Lower,
            )
            .in_unit(Unit::Milliseconds)
            .with(worst, n),
            // The time from a frame to the verdict that it completes.
            Row::at_most("16,384 ranks, one core: longest decision", 200.0)
                .in_unit(Unit::Milliseconds)
                .with(self.longest, self.frames),
            Row::at_least("16,384 ranks, one core: frames a second", 500_000.0)
                .in_unit(Unit::FramesPerSecond)
                .with(speed, self.frames),
        ]
    }
}
