//! The reported cost of a straggler compared with the simulator's truth. They must agree within 5 %, which is the
//! target of the evaluation.

use std::time::Duration;

use paceline_health::event::Event;
use paceline_health::report::{Cost, Report};
use paceline_health::sim::fault::Fault;
use paceline_health::sim::{World, WorldSpec};
use paceline_health::verdict::{State, Verdict};
use paceline_health::{Detector, Frame, Policy, Time};

/// Returns the GPU-seconds in the verdicts divided by those that the fault cost, over several seeds.
fn told_over_lost(text: &str, fault: &str, seeds: std::ops::Range<u64>) -> f64 {
    let (mut told, mut lost) = (0.0, 0.0);
    for seed in seeds {
        let mut spec = WorldSpec::parse(text).expect(text);
        (spec.seed, spec.readings) = (seed, false);
        spec.faults.push(fault.parse().expect(fault));
        let mut world = World::new(spec).expect("a world");
        let mut detector = Detector::new(Policy::default());
        for (at, frame) in world.by_ref() {
            detector.observe(at, &frame);
        }
        let verdicts = detector.report().verdicts;
        told += verdicts
            .iter()
            .map(|verdict| 3600.0 * verdict.lost_gpu_hours)
            .sum::<f64>();
        lost += world.truth()[0].lost_gpu_s;
    }
    told / lost
}

#[test]
fn cost_is_the_truth_within_five_percent() {
    for (text, fault, seeds) in [
        ("gpus=8 steps=400", "slow rank=3 factor=1.1 from=100", 100..105),
        (
            "gpus=8 steps=400",
            "slow rank=3 factor=1.5 from=100 until=300",
            100..105,
        ),
        ("nodes=2 gpus=8 steps=400", "heat gpu=3 from=30s", 100..103),
        (
            "gpus=8 steps=800 sigma=0.11",
            "slow rank=6 factor=1.25 from=100",
            100..120,
        ),
    ] {
        let ratio = told_over_lost(text, fault, seeds);
        assert!(
            (ratio - 1.0).abs() < 0.05,
            "{text}, {fault}: told over lost is {ratio:.3}"
        );
    }
}

/// Returns the reported loss of the whole job in GPU-seconds.
fn told(text: &str, faults: &[&str]) -> f64 {
    3600.0 * cost(text, faults, f64::INFINITY).lost_gpu_hours
}

fn cost(text: &str, faults: &[&str], until_s: f64) -> Cost {
    report(text, faults, until_s).cost
}

/// Returns the report at this many seconds after the first frame.
fn report(text: &str, faults: &[&str], until_s: f64) -> Report {
    let mut spec = WorldSpec::parse(text).expect(text);
    spec.faults
        .extend(faults.iter().map(|fault| fault.parse::<Fault>().expect(fault)));
    let mut detector = Detector::new(Policy::default());
    let mut first = None;
    for (at, frame) in World::new(spec).expect("a world") {
        if at.since(*first.get_or_insert(at)).as_secs_f64() > until_s {
            break;
        }
        detector.observe(at, &frame);
    }
    detector.report()
}

/// A loss that counts as a rank's silence must not count again as a long checkpoint, a long start, a restart or a slow
/// rank.
#[test]
fn a_standstill_is_lost_once() {
    let slow: &[&str] = &["slow rank=3 factor=1.1 from=40"];
    for (text, from, for_s, beside) in [
        ("gpus=8 steps=200 seed=24 checkpoint-every=100", 100, 40, &[][..]),
        ("gpus=8 steps=200 seed=24", 3, 100, &[]),
        ("gpus=8 steps=200 seed=24", 100, 40, &[]),
        // This stall is too short for a verdict on a silent rank.
        ("gpus=8 steps=200 seed=24", 100, 10, &[]),
        ("gpus=8 steps=200 seed=24", 80, 100, slow),
        ("gpus=8 steps=400 seed=24 restart=200", 203, 100, &[]),
    ] {
        let fault = format!("silent rank=3 from={from} for={for_s}s");
        let both: Vec<&str> = beside.iter().copied().chain([&*fault]).collect();
        let (more, truth) = (told(text, &both) - told(text, beside), f64::from(8 * for_s));
        assert!(
            (more / truth - 1.0).abs() < 0.05,
            "{text}, {fault}: {more:.1} of {truth} GPU-s"
        );
    }
}

fn folded(frames: impl IntoIterator<Item = (Time, Frame)>) -> Cost {
    let mut detector = Detector::new(Policy::default());
    for (at, frame) in frames {
        detector.observe(at, &frame);
    }
    detector.report().cost
}

/// A hook flushes its records when the next step ends, so the records of the last steps before a hang arrive after it.
#[test]
fn a_standstill_is_lost_once_where_the_steps_before_it_come_late() {
    let world = || {
        let mut spec = WorldSpec::parse("gpus=8 steps=300 seed=24").expect("a world");
        spec.faults
            .push("silent rank=3 from=200 for=40s".parse().expect("a fault"));
        World::new(spec).expect("a world").collect::<Vec<_>>()
    };
    let is_step = |frame: &Frame| matches!(frame.event, Event::Step(_));
    let steps: Vec<Time> = world()
        .iter()
        .filter(|(_, frame)| is_step(frame))
        .map(|(at, _)| *at)
        .collect();
    let gap = steps
        .windows(2)
        .max_by_key(|pair| pair[1].since(pair[0]))
        .expect("steps");
    let (stood, moved) = (gap[0], gap[1]);
    let mut late = world();
    for (at, frame) in &mut late {
        if is_step(frame) && *at <= stood && stood.since(*at).as_secs_f64() < 0.5 {
            *at = moved;
        }
    }
    late.sort_by_key(|(at, _)| *at);
    let (usual, late) = (folded(world()), folded(late));
    assert!((late.by_cause["rank-silent"] / usual.by_cause["rank-silent"] - 1.0).abs() < 0.05);
    assert_eq!(late.by_cause.get("stall"), None, "{:?}", late.by_cause);
    let goodput = |cost: &Cost| cost.goodput_ratio.expect("steady");
    assert!(
        (goodput(&late) - goodput(&usual)).abs() < 0.03,
        "{late:?}, and in time {usual:?}"
    );
}

/// Whatever other findings there are, a stall counts as one loss and not as a slow rank.
#[test]
fn a_stall_is_lost_once_beside_anything_else() {
    let world = "gpus=4 steps=900 self=45ms transfer=3ms seed=24";
    for (beside, stall, truth) in [
        (
            &[][..],
            "slow rank=all factor=80 from=600 until=601",
            0.045 * 79.0,
        ),
        (
            &["slow rank=1 factor=1.3 from=20"],
            "silent rank=2 from=600 for=8s",
            8.0,
        ),
        (
            &["slow rank=0 factor=1.1 from=20 moves=1 cause=cpu-contention"],
            "silent rank=2 from=600 for=8s",
            8.0,
        ),
        (
            &[],
            "slow rank=2 factor=80 from=600 until=603",
            3.0 * 0.045 * 79.0,
        ),
        (&[], "slow rank=2 factor=80 from=898", 3.0 * 0.045 * 79.0),
        // The slowness of another rank does not explain the stall.
        (
            &["slow rank=1 factor=1.1 from=20"],
            "slow rank=2 factor=80 from=600 until=603",
            3.0 * 0.045 * 79.0,
        ),
    ] {
        let both: Vec<&str> = beside.iter().copied().chain([stall]).collect();
        let (before, after) = (
            cost(world, beside, f64::INFINITY),
            cost(world, &both, f64::INFINITY),
        );
        let more = 3600.0 * (after.lost_gpu_hours - before.lost_gpu_hours);
        assert!(
            (more / (4.0 * truth) - 1.0).abs() < 0.1,
            "{both:?}: {more:.1} of {:.1} GPU-s: {after:?}",
            4.0 * truth
        );
    }
}

/// Data that arrives late still counts toward goodput.
#[test]
fn goodput_is_the_same_when_records_are_held_up() {
    for (world, faults) in [
        ("gpus=8 steps=400 seed=24", &["slow rank=3 factor=2 from=20"][..]),
        ("gpus=4 steps=500 seed=24", &["silent rank=2 from=200 for=25s"]),
    ] {
        let held: Vec<&str> = faults
            .iter()
            .copied()
            .chain(["hold node=0 from=30s for=30s"])
            .collect();
        let (usual, held) = (
            cost(world, faults, f64::INFINITY),
            cost(world, &held, f64::INFINITY),
        );
        let goodput = |cost: &Cost| cost.goodput_ratio.expect("steady");
        assert!(
            (goodput(&held) - goodput(&usual)).abs() < 0.03,
            "{world}: {held:?}, and in time {usual:?}"
        );
    }
}

#[test]
fn goodput_does_not_rise_while_a_job_stands() {
    let told = |until_s| {
        report(
            "gpus=8 steps=200 seed=24",
            &["silent rank=3 from=60 for=100s"],
            until_s,
        )
    };
    let since_s = told(f64::INFINITY).verdicts[0].since_s;
    let goodput = |after_s: f64| told(since_s + after_s).cost.goodput_ratio.expect("steady");
    let before = goodput(-0.5);
    assert!(told(since_s + 12.0).verdicts.is_empty(), "nobody is named yet");
    let unnamed: Vec<f64> = (1..=12).map(|after_s| goodput(f64::from(after_s))).collect();
    assert!(
        unnamed.iter().all(|now| *now < before + 0.02),
        "{before}: {unnamed:?}"
    );
    let named = goodput(60.0);
    assert!(named < before * 0.75, "{before}, and {named} a minute later");
}

#[test]
fn a_restart_and_the_silence_after_it_are_told_apart() {
    let world = "gpus=8 steps=400 seed=24 restart=200 restart-takes=30s";
    let alone = cost(world, &[], f64::INFINITY).by_cause["restart"];
    let both = cost(world, &["silent rank=3 from=201 for=40s"], f64::INFINITY).by_cause;
    assert!((both["restart"] / alone - 1.0).abs() < 0.05, "{alone}: {both:?}");
}

/// If the aggregator is down for an hour in the middle of the job, goodput covers only the observed time.
#[test]
fn what_was_not_heard_is_neither_lost_nor_goodput() {
    let goodput = |hour_s: f64| {
        let spec = WorldSpec::parse("gpus=8 steps=200 seed=24").expect("a world");
        let later = |at: Time| if at.0 > 30_000_000_000 { hour_s } else { 0.0 };
        let frames = World::new(spec).expect("a world");
        let held = frames.map(|(at, frame)| (at + Duration::from_secs_f64(later(at)), frame));
        folded(held).goodput_ratio.expect("steady")
    };
    let (all, heard) = (goodput(0.0), goodput(3600.0));
    assert!(
        (all - heard).abs() < 0.02,
        "{all} of all, {heard} of what was heard"
    );
}

/// While a silent rank stalls the job, its finding comes before those of slow ranks. Cleared findings are sorted by
/// cost.
#[test]
fn what_stands_comes_first_and_what_cost_most() {
    let faults = [
        "slow rank=3 factor=1.3 from=50",
        "slow rank=5 factor=1.2 from=60 until=100",
        "silent rank=6 from=150 for=40s",
    ];
    let told = |until_s| {
        let mut verdicts = report("gpus=8 steps=300 seed=24", &faults, until_s).verdicts;
        verdicts.sort_by_key(|verdict| verdict.weight());
        let place = |verdict: &Verdict| (verdict.state, verdict.subject.to_string());
        verdicts.iter().map(place).collect::<Vec<_>>()
    };
    let rank = |number| move |(_, subject): &(State, String)| subject.starts_with(&format!("rank {number} "));
    let stands = told(65.0);
    assert!(rank(6)(&stands[0]) && stands[0].0 == State::Raised, "{stands:?}");
    let over = told(f64::INFINITY);
    let order: Vec<_> = [3, 6, 5]
        .iter()
        .map(|number| over.iter().position(rank(*number)))
        .collect();
    assert_eq!(order, [Some(0), Some(1), Some(2)], "{over:?}");
}

/// A step that takes minutes is not a hang, although there is no progress during the step.
#[test]
fn a_job_of_long_steps_does_not_hang() {
    for world in [
        "gpus=8 steps=60 seed=24 self=400s",
        "gpus=8 steps=60 seed=24 self=200s",
    ] {
        let cost = cost(world, &[], f64::INFINITY);
        let lost = cost.lost_gpu_hours / cost.gpu_hours;
        assert!(lost < 0.15, "{world}: {cost:?}");
    }
}

/// Occasional losses are a share of all steps and not of the ordinary step. The ordinary step without problems must not
/// be reported as shorter than its work.
#[test]
fn no_step_is_shorter_than_the_work_in_it() {
    let cost = cost("gpus=8 steps=800 gc-every=40 gc=1s", &[], f64::INFINITY);
    let what_if_s = cost.what_if_step_s.expect("steps were seen");
    assert!(what_if_s >= 0.19, "{what_if_s} s, of which ranks work 0.19 s");
    assert!(what_if_s <= cost.step_s.expect("steps were seen"), "{cost:?}");
}
