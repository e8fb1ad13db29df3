use super::*;
use crate::Detector;
use crate::policy::Policy;
use crate::sim::World;
use crate::sim::spec::WorldSpec;

fn folded(spec: &str) -> Detector {
    let world = World::new(WorldSpec::parse(spec).expect("a spec")).expect("a sound spec");
    let mut detector = Detector::new(Policy::default());
    for (at, frame) in world {
        detector.observe(at, &frame);
    }
    detector
}

#[test]
fn the_job_is_all_ranks_and_a_slow_rank_stands_out() {
    let mut spec = WorldSpec::parse("gpus=4 steps=300 self=95ms transfer=5ms").expect("a spec");
    spec.faults = vec!["slow rank=2 factor=1.25 from=0".parse().expect("a fault")];
    let mut detector = Detector::new(Policy::default());
    for (at, frame) in World::new(spec).expect("a sound spec") {
        detector.observe(at, &frame);
    }
    let told = detector.report().times;
    let of = |part| told.parts.iter().find(|told| told.part == part).expect("told");
    let step = of(Part::Step);
    let all: u64 = told.ranks.iter().map(|rank| rank.steps).sum();
    assert_eq!((told.ranks.len(), step.samples), (4, all));
    assert!(step.p50_s <= step.p90_s && step.p90_s <= step.p99_s && step.p99_s <= step.max_s);
    assert!((step.sum_s / step.samples as f64 / step.p50_s - 1.0).abs() < 0.1);
    let own = |rank: usize| told.ranks[rank].parts[&Part::Own].p50_s;
    assert!((own(2) / own(1) - 1.25).abs() < 0.03, "{} {}", own(2), own(1));
    // All ranks wait for the slow one, so their steps are equally long.
    let steps = |rank: usize| told.ranks[rank].parts[&Part::Step].p50_s;
    assert!((steps(2) / steps(1) - 1.0).abs() < 0.02);
    assert!(
        told.parts.iter().all(|part| part.part != Part::Checkpoint),
        "none was written"
    );
}

#[test]
fn a_snapshot_goes_on_as_if_nothing_had_happened() {
    let detector = folded("gpus=2 steps=50 self=95ms transfer=5ms");
    let text = serde_json::to_string(&detector.times).expect("plain");
    let times: Times = serde_json::from_str(&text).expect("what was written");
    assert_eq!(times.told(), detector.times.told());
    assert!(times.told().parts.len() > 3);
    assert_eq!(serde_json::to_string(&times).expect("plain"), text);
}

#[test]
fn without_phases_only_steps_are_told() {
    let sample = Sample {
        dur_s: 0.5,
        ..Sample::default()
    };
    let micros = micros(&sample, StepKind::Train);
    assert_eq!(micros.iter().flatten().count(), 1, "unknown is not zero");
    let checkpoint = Sample {
        checkpoint_s: 2.0,
        ..sample
    };
    let micros = super::micros(&checkpoint, StepKind::Checkpoint);
    assert_eq!(micros[Part::Checkpoint as usize], Some(2_000_000));
    assert_eq!(micros.iter().flatten().count(), 1);
}
