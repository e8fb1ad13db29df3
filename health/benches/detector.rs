//! How soon, how surely and how fast the detector decides, on simulated worlds. `cargo bench -p paceline-health`
//! prints the tables (`-- speed`: only the last; `-- memory`: a simulated hour of 16,384 ranks, minutes of work;
//! `-- snapshot`: what it takes to write that fold down); the
//! seeds are not those that anything was tuned on.

// A bench has a clock and prints; the crate has none.
#![allow(
    clippy::print_stdout,
    clippy::disallowed_types,
    clippy::disallowed_methods,
    missing_docs
)]

use std::time::Instant;

use paceline_health::codec::msgpack;
use paceline_health::sim::World;
use paceline_health::sim::fault::Fault;
use paceline_health::sim::spec::{Checkpoint, PACKED_SIGMA, StepModel, WorldSpec};
use paceline_health::verdict::{Finding, Severity, Subject, Verdict};
use paceline_health::{Detector, Policy};

const SEEDS: std::ops::Range<u64> = 9_000..9_020;

fn fold(spec: WorldSpec) -> Vec<Verdict> {
    let world = World::new(spec).expect("a sound spec");
    let mut detector = Detector::new(Policy::default());
    let mut verdicts = Vec::new();
    for (at, frame) in world {
        detector.observe(at, &frame);
        verdicts.extend(std::iter::from_fn(|| detector.poll()));
    }
    verdicts
}

fn named(verdict: &Verdict) -> Option<u32> {
    match verdict.subject {
        Subject::Rank { rank, .. } if verdict.finding == Finding::Straggler => Some(rank.0),
        _ => None,
    }
}

fn steps_to_decide(factor: f64, sigma: f64, nodes: u32) {
    let onset = 200;
    let mut delays = Vec::new();
    let mut wrong = 0;
    for seed in SEEDS {
        let fault = format!("slow rank=3 factor={factor} from={onset}");
        let spec = WorldSpec {
            seed,
            nodes,
            steps: onset + 600,
            step: StepModel {
                sigma,
                ..StepModel::default()
            },
            readings: false,
            faults: vec![fault.parse::<Fault>().expect("a sound fault")],
            ..WorldSpec::default()
        };
        let verdicts = fold(spec);
        let first = verdicts.iter().find(|verdict| named(verdict) == Some(3));
        delays.push(
            first
                .and_then(|verdict| verdict.raised_step)
                .map_or(u64::MAX, |step| step + 1 - onset),
        );
        wrong += verdicts
            .iter()
            .filter(|verdict| named(verdict).is_some_and(|rank| rank != 3))
            .count();
    }
    delays.sort_unstable();
    let found = delays.iter().filter(|delay| **delay < u64::MAX).count();
    let median = delays[delays.len() / 2];
    println!(
        "| {:.0} % slower, sigma {:.1} %, {} ranks | {found} of {} | {median} | {wrong} |",
        (factor - 1.0) * 100.0,
        sigma * 100.0,
        nodes * 8,
        delays.len()
    );
}

fn healthy(name: &str, step: StepModel) {
    let (mut rank_steps, mut alarms, mut infos) = (0, 0, 0);
    for seed in SEEDS {
        let spec = WorldSpec {
            seed,
            steps: 3000,
            nodes: 2,
            step,
            readings: false,
            ..WorldSpec::default()
        };
        rank_steps += spec.steps * 16;
        for verdict in fold(spec).iter().filter(|verdict| named(verdict).is_some()) {
            if verdict.severity == Severity::Info {
                infos += 1
            } else {
                alarms += 1
            }
        }
    }
    println!("| healthy, {name} | {rank_steps} rank-steps | {alarms} alarms | {infos} infos |");
}

/// Many short jobs of four ranks: the time in which least is known of the noise.
fn healthy_beginnings(sigma: f64, autocorrelation: f64) {
    let (runs, steps) = (3000, 60);
    let named_in = |seed| {
        let step = StepModel {
            sigma,
            autocorrelation,
            ..StepModel::default()
        };
        let spec = WorldSpec {
            seed,
            steps,
            gpus_per_node: 4,
            step,
            readings: false,
            ..WorldSpec::default()
        };
        fold(spec).iter().any(|verdict| named(verdict).is_some())
    };
    let wrong = (20_000..20_000 + runs).filter(|seed| named_in(*seed)).count();
    println!(
        "| healthy, 4 ranks, first {steps} steps, sigma {:.0} %, AR {autocorrelation} | {runs} runs | {wrong} with a name | |",
        sigma * 100.0
    );
}

fn speed(nodes: u32, steps: u64, readings: bool) {
    let spec = WorldSpec {
        nodes,
        steps,
        readings,
        ..WorldSpec::default()
    };
    let frames: Vec<_> = World::new(spec).expect("a sound spec").collect();
    let mut detector = Detector::new(Policy::default());
    let begin = Instant::now();
    for (at, frame) in &frames {
        detector.observe(*at, frame);
        while detector.poll().is_some() {}
    }
    let rate = frames.len() as f64 / begin.elapsed().as_secs_f64();
    println!(
        "| {} ranks{} | {} frames | {rate:.0} frames/s |",
        nodes * 8,
        if readings { ", GPUs read once a second" } else { "" },
        frames.len()
    );
}

/// What the fold of 16,384 ranks at one step a second holds in memory, with their GPUs read once a second.
fn memory(minutes: &[u64]) {
    println!(
        "| simulated minutes | 16,384 ranks, resident MB | a report, ms | its JSON, MB |\n|---|---|---|---|"
    );
    let resident_mb = || {
        let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
        let line = status
            .lines()
            .find(|line| line.starts_with("VmRSS"))
            .expect("VmRSS");
        let kb: u64 = line
            .split_whitespace()
            .nth(1)
            .and_then(|kb| kb.parse().ok())
            .expect("kB");
        kb / 1024
    };
    let spec =
        WorldSpec::parse("nodes=2048 gpus=8 self=950ms transfer=50ms steps=3700 seed=9000").expect("a spec");
    let mut detector = Detector::new(Policy::default());
    let mut left = minutes.iter();
    let mut next = left.next();
    for (at, frame) in World::new(spec).expect("a sound spec") {
        detector.observe(at, &frame);
        while detector.poll().is_some() {}
        if let Some(minute) = next.filter(|minute| at.as_secs_f64() >= 60.0 * **minute as f64) {
            let resident_mb = resident_mb();
            let begin = Instant::now();
            let report = detector.report();
            let took_ms = begin.elapsed().as_secs_f64() * 1e3;
            let json = serde_json::to_string(&report).expect("a report is JSON");
            println!(
                "| {minute} | {resident_mb} | {took_ms:.1} | {:.1} |",
                json.len() as f64 / 1e6
            );
            next = left.next();
            if next.is_none() {
                return;
            }
        }
    }
}

/// What it takes to write down and read back the fold of 16,384 ranks.
fn snapshot(minutes: &[u64]) {
    println!("| simulated minutes | bytes | written in | read in |\n|---|---|---|---|");
    let spec =
        WorldSpec::parse("nodes=2048 gpus=8 self=950ms transfer=50ms steps=3700 seed=9000").expect("a spec");
    let mut detector = Detector::new(Policy::default());
    let mut left = minutes.iter();
    let mut next = left.next();
    for (at, frame) in World::new(spec).expect("a sound spec") {
        detector.observe(at, &frame);
        while detector.poll().is_some() {}
        let Some(minute) = next.filter(|minute| at.as_secs_f64() >= 60.0 * **minute as f64) else {
            continue;
        };
        let begin = Instant::now();
        let bytes = rmp_serde::to_vec(&detector).expect("a state");
        let written = begin.elapsed();
        let begin = Instant::now();
        detector = msgpack::from_slice(&bytes).expect("what was written");
        let read = begin.elapsed();
        println!("| {minute} | {} | {written:.1?} | {read:.1?} |", bytes.len());
        next = left.next();
        if next.is_none() {
            return;
        }
    }
}

fn main() {
    if std::env::args().any(|argument| argument == "snapshot") {
        return snapshot(&[1, 5]);
    }
    if std::env::args().any(|argument| argument == "memory") {
        return memory(&[1, 10, 30, 60]);
    }
    if !std::env::args().any(|argument| argument == "speed") {
        quality();
    }
    println!("| fold | size | speed |\n|---|---|---|");
    speed(8, 2000, false);
    speed(2048, 40, false);
    speed(2048, 40, true);
}

fn quality() {
    println!("| case | named | median steps to decide | wrongly named |\n|---|---|---|---|");
    for (factor, sigma) in [
        (1.03, 0.005),
        (1.05, 0.005),
        (1.20, 0.005),
        (1.10, PACKED_SIGMA),
        (1.20, PACKED_SIGMA),
    ] {
        steps_to_decide(factor, sigma, 8);
    }
    steps_to_decide(1.10, 0.02, 1);
    println!("\n| case | size | alarms | infos |\n|---|---|---|---|");
    let plain = StepModel::default();
    healthy("sigma 0.5 %", plain);
    healthy(
        "sigma 11 %",
        StepModel {
            sigma: PACKED_SIGMA,
            ..plain
        },
    );
    healthy(
        "heavy tails",
        StepModel {
            tail_share: 0.05,
            ..plain
        },
    );
    healthy(
        "autocorrelated, sigma 3 %",
        StepModel {
            sigma: 0.03,
            autocorrelation: 0.8,
            ..plain
        },
    );
    let checkpoint = Checkpoint {
        every: 100,
        factor: 1.7,
        declared: false,
        first_rank_only: true,
    };
    healthy("rank 0 writes, undeclared", StepModel { checkpoint, ..plain });
    for (sigma, autocorrelation) in [(0.02, 0.0), (0.08, 0.0), (0.08, 0.5)] {
        healthy_beginnings(sigma, autocorrelation);
    }
    println!();
}
