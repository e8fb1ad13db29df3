//! Tests that snapshots contain exactly the compared steps, and that taking them does not change the verdicts.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test that cannot continue fails.

use paceline_health::event::StepKind;
use paceline_health::report::Report;
use paceline_health::report::step_snapshot::{ABSENT, StepSnapshot, ratio};
use paceline_health::sim::{World, WorldSpec};
use paceline_health::{Detector, Policy};

fn run(most: usize, draw: bool) -> (Report, Vec<StepSnapshot>) {
    let mut spec = WorldSpec::parse("nodes=2 gpus=4 steps=120 checkpoint-every=50").expect("words");
    for fault in ["slow rank=3 factor=1.5 from=60", "silent rank=6 from=100"] {
        spec.faults.push(fault.parse().expect("a fault"));
    }
    let mut detector = Detector::new(Policy::default());
    detector.watch_steps(most);
    let mut drawn = Vec::new();
    for (at, frame) in World::new(spec).expect("a world") {
        detector.observe(at, &frame);
        if draw {
            drawn.extend(std::iter::from_fn(|| detector.poll_seen()));
        }
    }
    drawn.extend(std::iter::from_fn(|| detector.poll_seen()));
    (detector.report(), drawn)
}

#[test]
fn cells_are_the_ratios_that_were_judged() {
    let (report, drawn) = run(64, true);
    assert!(drawn.len() > 90, "{} steps", drawn.len());
    assert!(drawn.windows(2).all(|two| two[0].step < two[1].step));
    let last = drawn.last().unwrap();
    assert!(last.at_s > 0.0 && last.at_s <= report.duration_s, "{last:?}");
    for seen in drawn
        .iter()
        .filter(|seen| seen.kind == StepKind::Train && seen.step > 10)
    {
        assert_eq!(seen.cells.len(), 8);
        assert!(seen.p50_s <= seen.p99_s && seen.p99_s <= seen.max_s, "{seen:?}");
        let phases: f64 = seen.phases_s.expect("phases").iter().sum();
        assert!(phases > 0.0 && phases <= seen.max_s * 1.01, "{seen:?}");
        for (rank, cell) in seen.cells.iter().enumerate() {
            let factor = ratio(*cell).unwrap_or(f64::NAN);
            let wanted = if rank == 3 && seen.step >= 60 { 1.5 } else { 1.0 };
            assert!(
                (factor / wanted - 1.0).abs() < 0.06,
                "rank {rank} {factor}: {seen:?}"
            );
        }
    }
    assert!(drawn.iter().any(|seen| seen.kind == StepKind::Checkpoint));
}

#[test]
fn whoever_does_not_come_is_absent() {
    let (_, drawn) = run(64, true);
    let without: Vec<&StepSnapshot> = drawn.iter().filter(|seen| seen.cells[6] == ABSENT).collect();
    assert!(without.iter().all(|seen| seen.step >= 100), "{without:?}");
}

#[test]
fn verdicts_are_the_same_whoever_looks() {
    let (watched, drawn) = run(64, true);
    let (unwatched, none) = run(0, false);
    assert!(!drawn.is_empty() && none.is_empty());
    assert!(!watched.verdicts.is_empty());
    assert_eq!(watched, unwatched);
}

#[test]
fn what_nobody_fetches_is_dropped() {
    let (_, drawn) = run(5, false);
    assert_eq!(drawn.len(), 5);
}
