use paceline_health::event::{Attach, Beat, GpuFaultKind, GpuReading, Phases, Pulse, Signal, Step, StepKind};
use paceline_health::frame::SCHEMA_VERSION;

use super::*;

fn frame(event: Event, provenance: Provenance) -> Frame {
    Frame {
        v: SCHEMA_VERSION,
        node: "n0".into(),
        agent: 1,
        seq: 1,
        provenance,
        event,
    }
}

fn attach(rank: u32, gpu: Option<&str>) -> Frame {
    frame(
        Event::Attach(Attach {
            rank: Rank(rank),
            local_rank: rank,
            world_size: 2,
            restart: 0,
            pid: 1,
            gpu: gpu.map(Into::into),
            role: "".into(),
            framework: "test".into(),
        }),
        Provenance::Live,
    )
}

fn reading(provenance: Provenance) -> Frame {
    frame(
        Event::Gpu(GpuReading {
            gpu: "GPU-0".into(),
            pci: "0000:18:00.0".into(),
            model: "test".into(),
            readings: BTreeMap::from([(GpuSignal::EccUncorrected, Reading::Value(3.0))]),
        }),
        provenance,
    )
}

fn step(rank: u32) -> Frame {
    let phases = Phases {
        compute_ns: 100,
        wait_ns: 30,
        ..Phases::default()
    };
    frame(
        Event::Step(Step {
            rank: Rank(rank),
            restart: 0,
            step: 7,
            kind: StepKind::Train,
            dur_ns: 130,
            phases: Some(phases),
            micro_batches: 1,
            tokens: 0,
            signal: Signal::S2,
            sum_sq: 0,
            expert_tokens: 0,
        }),
        Provenance::Live,
    )
}

fn beat() -> Frame {
    let pulse = |rank| Pulse {
        rank: Rank(rank),
        restart: 0,
        step: 9,
        phase: Phase::Other,
        idle_ns: 0,
        alive: true,
    };
    let ranks = vec![pulse(0), pulse(1)];
    frame(
        Event::Beat(Beat {
            ranks,
            ..Beat::default()
        }),
        Provenance::Live,
    )
}

/// Creates a job of two ranks. The first is on a GPU with readings.
fn job(read_by: Provenance) -> Injector {
    let mut injector = Injector::default();
    for mut frame in [attach(0, Some("GPU-0")), attach(1, None), reading(read_by)] {
        let before = frame.clone();
        injector.alter(&mut frame, 0);
        assert_eq!(frame, before);
    }
    injector
}

fn begin(injector: &mut Injector, text: &str) -> Result<Vec<(NodeId, GpuFault)>, String> {
    injector.begin(&[text.parse()?], false, 0)
}

fn altered(injector: &mut Injector, mut frame: Frame, now_ns: u64) -> Frame {
    injector.alter(&mut frame, now_ns);
    frame
}

#[test]
fn words() {
    for text in [
        "slow rank=3 factor=1.5 for=60s",
        "silent rank=2 for=120s",
        "xid rank=0 code=79 GPU has fallen off the bus.",
        "ecc rank=1 for=1s",
        "throttle rank=1 for=120s",
        "link rank=1 for=120s",
    ] {
        assert_eq!(text.parse::<Injection>().unwrap().to_string(), text);
    }
    for (text, wanted) in [
        ("", "must be slow, silent"),
        ("slow", "rank= is missing"),
        ("slow rank=x", "rank=x: a number is needed"),
        ("slow rank=1 factor=0.5", "factor=0.5"),
        ("ecc rank=1 factor=2", "factor=2: unknown in"),
        ("xid rank=1", "code= is missing"),
        ("silent rank=1 for=-3", "for=-3"),
        ("silent rank=1 for=nan", "for=NaN"),
    ] {
        let error = text.parse::<Injection>().unwrap_err();
        assert!(error.contains(wanted), "{text}: {error}");
    }
}

#[test]
fn real_gpus_are_left_alone_unless_meant() {
    for text in ["slow rank=1", "xid rank=0 code=79 off"] {
        let refused = begin(&mut job(Provenance::Live), text).unwrap_err();
        assert!(refused.contains("--yes-really"), "{refused}");
        let forced = job(Provenance::Live).begin(&[text.parse().unwrap()], true, 0);
        assert!(forced.is_ok());
        assert!(begin(&mut job(Provenance::Sim), text).is_ok());
    }
    // A rank with an unknown GPU may train on the one that a driver has read.
    let mut injector = Injector::default();
    altered(&mut injector, attach(0, None), 0);
    assert!(begin(&mut injector, "slow rank=0").is_ok());
    altered(&mut injector, reading(Provenance::Live), 0);
    assert!(begin(&mut injector, "slow rank=0").is_err());
    // A GPU without readings is assumed to be a real GPU.
    let mut injector = Injector::default();
    altered(&mut injector, attach(0, Some("GPU-0")), 0);
    assert!(begin(&mut injector, "ecc rank=0").is_err());
    assert!(
        begin(&mut job(Provenance::Sim), "ecc rank=1")
            .unwrap_err()
            .contains("no GPU")
    );
    assert!(
        begin(&mut job(Provenance::Sim), "ecc rank=7")
            .unwrap_err()
            .contains("not attached")
    );
}

#[test]
fn a_slow_rank_waits_less_and_ends_in_time() {
    let mut injector = job(Provenance::Sim);
    begin(&mut injector, "slow rank=0 factor=1.5 for=1").unwrap();
    let slow = altered(&mut injector, step(0), 1);
    let Event::Step(step_of) = slow.event else {
        panic!("a step")
    };
    let phases = step_of.phases.unwrap();
    assert_eq!((phases.compute_ns, phases.wait_ns, step_of.dur_ns), (150, 0, 150));
    assert_eq!(slow.provenance, Provenance::Injected);
    // All other ranks wait for the slow rank.
    let Event::Step(other) = altered(&mut injector, step(1), 1).event else {
        panic!("a step")
    };
    let phases = other.phases.unwrap();
    assert_eq!((phases.compute_ns, phases.wait_ns, other.dur_ns), (100, 50, 150));
    assert_eq!(altered(&mut injector, step(0), 2_000_000_000), step(0));
}

#[test]
fn a_silent_rank_holds_up_everyone() {
    let mut injector = job(Provenance::Sim);
    begin(&mut injector, "silent rank=1 for=60").unwrap();
    assert!(matches!(altered(&mut injector, step(0), 1).event, Event::Mark(_)));
    let Event::Beat(beat_of) = altered(&mut injector, beat(), 9_000_000_000).event else {
        panic!("a beat")
    };
    let told: Vec<_> = beat_of
        .ranks
        .iter()
        .map(|pulse| (pulse.step, pulse.phase, pulse.idle_ns))
        .collect();
    assert_eq!(
        told,
        [
            (7, Phase::Wait, 9_000_000_000),
            (7, Phase::Compute, 9_000_000_000)
        ]
    );
}

#[test]
fn ranks_that_are_silent_at_once_agree() {
    let mut injector = job(Provenance::Sim);
    begin(&mut injector, "silent rank=0 for=60").unwrap();
    altered(&mut injector, step(0), 1);
    let later = injector.begin(&["silent rank=1 for=60".parse().unwrap()], false, 5_000_000_000);
    assert!(later.is_ok());
    let Event::Beat(beat_of) = altered(&mut injector, beat(), 9_000_000_000).event else {
        panic!("a beat")
    };
    let told: Vec<_> = beat_of
        .ranks
        .iter()
        .map(|pulse| (pulse.phase, pulse.idle_ns))
        .collect();
    assert_eq!(told, [(Phase::Compute, 9_000_000_000); 2]);
}

#[test]
fn there_is_room_for_so_many_at_once() {
    let mut injector = job(Provenance::Sim);
    let faults = vec!["ecc rank=0 for=10".parse().unwrap(); MAX_ACTIVE];
    assert!(injector.begin(&faults, false, 0).is_ok());
    let one_more = begin(&mut injector, "ecc rank=0").unwrap_err();
    assert!(one_more.contains("at most 64"), "{one_more}");
    assert!(injector.begin(&faults, false, 11_000_000_000).is_ok());
    let lines = vec!["xid rank=0 code=31 x".parse().unwrap(); MAX_ACTIVE + 1];
    assert!(job(Provenance::Sim).begin(&lines, false, 0).is_err());
}

#[test]
fn what_gpus_and_kernel_logs_say() {
    let mut injector = job(Provenance::Sim);
    let lines = begin(&mut injector, "xid rank=0 code=119 GSP").unwrap();
    let [(node, fault)] = &lines[..] else {
        panic!("a line: {lines:?}")
    };
    assert_eq!(
        (node.as_str(), fault.kind, fault.xid, &*fault.pci),
        ("n0", GpuFaultKind::Xid, 119, "0000:18:00.0")
    );
    begin(&mut injector, "ecc rank=0").unwrap();
    begin(&mut injector, "link rank=0").unwrap();
    assert_eq!(altered(&mut injector, beat(), 1), beat());
    let values: Vec<_> = (0..3)
        .map(|_| {
            let Event::Gpu(reading) = altered(&mut injector, reading(Provenance::Sim), 1).event else {
                panic!("a reading")
            };
            let value = |signal| reading.readings.get(&signal).and_then(Reading::value);
            (
                value(GpuSignal::EccUncorrected),
                value(GpuSignal::NvlinkRecoveries),
            )
        })
        .collect();
    assert_eq!(
        values,
        [
            (Some(4.0), Some(0.0)),
            (Some(4.0), Some(2.0)),
            (Some(4.0), Some(3.0))
        ]
    );
}

#[test]
fn a_gpu_that_fell_off_answers_nothing() {
    let mut injector = job(Provenance::Sim);
    begin(
        &mut injector,
        "xid rank=0 code=79 GPU has fallen off the bus. for=5",
    )
    .unwrap();
    let Event::Gpu(lost) = altered(&mut injector, reading(Provenance::Sim), 1).event else {
        panic!("a reading")
    };
    assert!(lost.readings.values().all(|reading| reading.value().is_none()));
    assert_eq!(
        altered(&mut injector, reading(Provenance::Sim), 6_000_000_000),
        reading(Provenance::Sim)
    );
}
