//! Tests properties that every world and every journal must have, not only selected cases.

mod odd;

use paceline_health::codec::{line, msgpack};
use paceline_health::event::{
    Attach, Beat, Detach, Event, Exit, GpuReading, GpuSignal, Mark, Missing, Phase, Phases, PolicyChange,
    Pulse, Reading, Signal, Step, StepKind,
};
use paceline_health::frame::{Provenance, SCHEMA_VERSION};
use paceline_health::id::Rank;
use paceline_health::report::Report;
use paceline_health::sim::{Fault, World, WorldSpec};
use paceline_health::verdict::Verdict;
use paceline_health::{Detector, Entry, Frame, Policy, Time};
use proptest::collection::vec;
use proptest::prelude::*;

type Journal = Vec<(Time, Frame)>;

/// Generates a fault of one of eight ranks on two nodes.
fn fault() -> impl Strategy<Value = Fault> {
    let rank = 0..8_u32;
    prop_oneof![
        (rank.clone(), 1.05..2.0_f64, 1..100_u64)
            .prop_map(|(rank, factor, from)| format!("slow rank={rank} factor={factor:.2} from={from}")),
        (rank.clone(), 40..140_u64).prop_map(|(rank, from)| format!("silent rank={rank} from={from}")),
        (rank.clone(), 40..140_u64)
            .prop_map(|(rank, from)| format!("silent rank={rank} from={from} for=20s")),
        (rank.clone(), 4..30_u64).prop_map(|(gpu, from)| format!("heat gpu={gpu} from={from}s")),
        (0..2_u32, 4..30_u64, 1..20_u64)
            .prop_map(|(node, from, long)| format!("gap node={node} from={from}s for={long}s")),
        (0..2_u32, 4..30_u64, 1..20_u64)
            .prop_map(|(node, from, long)| format!("hold node={node} from={from}s for={long}s")),
        (rank, 1..6_u64).prop_map(|(rank, by)| format!("late rank={rank} by={by}s")),
        Just("loss share=0.1".to_owned()),
        Just("reorder share=0.2".to_owned()),
        Just("repeat share=0.2".to_owned()),
    ]
    .prop_map(|text| text.parse().expect("a fault"))
}

fn spec() -> impl Strategy<Value = WorldSpec> {
    (
        any::<u64>(),
        vec(fault(), 0..3),
        60..180_u64,
        prop::sample::select(vec![0.005, 0.11]),
    )
        .prop_map(|(seed, faults, steps, sigma)| {
            let mut spec = WorldSpec {
                seed,
                faults,
                steps,
                nodes: 2,
                gpus_per_node: 4,
                ..WorldSpec::default()
            };
            (spec.step.sigma, spec.hang_s) = (sigma, 80.0);
            spec
        })
}

fn journal(spec: &WorldSpec) -> Journal {
    World::new(spec.clone()).expect("a world").collect()
}

/// Returns all verdicts on a journal, in order and serialized.
fn verdicts(journal: &[(Time, Frame)]) -> Vec<String> {
    let mut detector = Detector::new(Policy::default());
    let mut said = Vec::new();
    for (at, frame) in journal {
        detector.observe(*at, frame);
        said.extend(drain(&mut detector));
    }
    said
}

fn drain(detector: &mut Detector) -> Vec<String> {
    let json = |verdict: Verdict| serde_json::to_string(&verdict).expect("JSON");
    std::iter::from_fn(|| detector.poll()).map(json).collect()
}

fn lines(journal: &[(Time, Frame)]) -> Vec<String> {
    let encode = |(n, (at_ns, frame)): (u64, &(Time, Frame))| {
        line::encode(&Entry {
            n,
            at_ns: *at_ns,
            frame: frame.clone(),
        })
    };
    (1..).zip(journal).map(encode).collect()
}

/// Returns a copy of the detector that was saved and restored.
fn cut(detector: &Detector) -> Detector {
    let bytes = rmp_serde::to_vec(detector).expect("a state that can be written");
    msgpack::from_slice(&bytes).expect("what we wrote")
}

/// Generates ordinary numbers and extreme ones, with which sums overflow.
fn wide() -> impl Strategy<Value = u64> {
    prop_oneof![0..10_u64, any::<u64>(), Just(u64::MAX)]
}

/// Generates invalid events of a faulty trainer or sidecar about a few ranks.
fn odd_event() -> impl Strategy<Value = Event> {
    let rank = prop_oneof![0..4_u32, 0..2000_u32, Just(u32::MAX)].prop_map(Rank);
    let restart = prop_oneof![Just(0_u32), any::<u32>()];
    let phases = prop_oneof![
        Just(None),
        [wide(), wide(), wide(), wide(), wide()].prop_map(
            |[data_ns, compute_ns, wait_ns, optimizer_ns, checkpoint_ns]| {
                Some(Phases {
                    data_ns,
                    compute_ns,
                    wait_ns,
                    optimizer_ns,
                    checkpoint_ns,
                    gc_ns: 0,
                })
            }
        ),
    ];
    let step = (rank.clone(), restart.clone(), wide(), wide(), phases).prop_map(
        |(rank, restart, step, dur_ns, phases)| {
            Event::Step(Step {
                rank,
                restart,
                step,
                kind: StepKind::Train,
                dur_ns,
                phases,
                micro_batches: 1,
                tokens: step,
                signal: Signal::S2,
                sum_sq: 0,
                expert_tokens: 0,
            })
        },
    );
    let attach = (rank.clone(), any::<u32>(), restart.clone(), any::<u32>()).prop_map(
        |(rank, world_size, restart, pid)| {
            Event::Attach(Attach {
                rank,
                local_rank: pid,
                world_size,
                restart,
                pid,
                gpu: None,
                role: "".into(),
                framework: "".into(),
            })
        },
    );
    let pulse =
        (rank.clone(), wide(), wide(), any::<bool>()).prop_map(|(rank, step, idle_ns, alive)| Pulse {
            rank,
            restart: 0,
            step,
            phase: Phase::Wait,
            idle_ns,
            alive,
        });
    let beat = (vec(pulse, 0..4), wide(), wide()).prop_map(|(ranks, ring_dropped, ring_torn)| {
        Event::Beat(Beat {
            ranks,
            ring_dropped,
            ring_torn,
            cpu_ns: ring_torn,
            ..Beat::default()
        })
    });
    let detach = (rank, restart, wide())
        .prop_map(|(rank, restart, step)| Event::Detach(Detach { rank, restart, step }));
    prop_oneof![
        step,
        attach,
        beat,
        detach,
        any::<i32>().prop_map(|code| Event::Exit(Exit { code }))
    ]
}

/// Generates events that no simulator produces, with any name and any number.
fn odd_frame() -> impl Strategy<Value = Frame> {
    let number = prop_oneof![
        any::<f64>().prop_filter("finite", |x| x.is_finite()),
        (0..1_u64 << 53).prop_map(|n| n as f64)
    ];
    let reading = prop_oneof![
        number.clone().prop_map(Reading::Value),
        Just(Reading::Missing(Missing::Unsupported)),
        any::<String>().prop_map(|why| Reading::Missing(Missing::Error(why.as_str().into()))),
    ];
    let event = prop_oneof![
        (any::<u32>(), any::<u64>(), any::<String>(), any::<u64>()).prop_map(|(rank, step, kind, value)| {
            Event::Mark(Mark {
                rank: Rank(rank),
                step,
                kind: kind.as_str().into(),
                value,
            })
        }),
        (any::<String>(), number).prop_map(|(key, value)| Event::Policy(PolicyChange {
            key: key.as_str().into(),
            value,
            by: "set".into(),
        })),
        (any::<String>(), vec(reading, 3)).prop_map(|(name, readings)| {
            let signals = [
                GpuSignal::TemperatureC,
                GpuSignal::MarginC,
                GpuSignal::ThrottleThermalSwNs,
            ];
            Event::Gpu(GpuReading {
                gpu: name.as_str().into(),
                pci: name.as_str().into(),
                model: name.as_str().into(),
                readings: signals.into_iter().zip(readings).collect(),
            })
        }),
    ];
    let event = prop_oneof![event, odd_event()];
    let node = prop_oneof![Just("node0".to_owned()), any::<String>()];
    (event, node, any::<u64>(), wide()).prop_map(|(event, node, agent, seq)| Frame {
        v: SCHEMA_VERSION,
        node: node.as_str().into(),
        agent,
        seq,
        provenance: Provenance::Live,
        event,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_same_seed_gives_the_same_bytes(spec in spec()) {
        let (once, again) = (journal(&spec), journal(&spec));
        prop_assert_eq!(lines(&once), lines(&again));
        prop_assert_eq!(verdicts(&once), verdicts(&again));
    }

    #[test]
    fn time_never_goes_back(spec in spec()) {
        prop_assert!(journal(&spec).is_sorted_by_key(|(at, _)| *at));
    }

    #[test]
    fn a_prefix_of_a_journal_gives_a_prefix_of_its_verdicts(spec in spec(), share in 0.0..1.0_f64) {
        let whole = journal(&spec);
        let part = &whole[..(whole.len() as f64 * share) as usize];
        let (all, some) = (verdicts(&whole), verdicts(part));
        prop_assert!(all.starts_with(&some), "{some:#?}\nis not how this begins:\n{all:#?}");
    }

    #[test]
    fn shifting_time_shifts_verdicts(spec in spec(), by in 0..1_u64 << 50) {
        let whole = journal(&spec);
        let shifted: Journal = whole.iter().map(|(at, frame)| (Time(at.0 + by), frame.clone())).collect();
        // Verdicts count time from the first frame, so a shifted journal gives the same ones.
        prop_assert_eq!(verdicts(&whole), verdicts(&shifted));
    }

    #[test]
    fn it_does_not_matter_who_asks_when(spec in spec(), asks in vec(0.0..1.0_f64, 1..200)) {
        let whole = journal(&spec);
        let mut detector = Detector::new(Policy::default());
        let mut said = Vec::new();
        let mut asks = asks.iter().cycle();
        let mut before = Time::ZERO;
        for (at, frame) in &whole {
            let share = asks.next().copied().unwrap_or(0.0);
            detector.advance(Time(before.0 + ((at.0 - before.0) as f64 * share) as u64));
            said.extend(drain(&mut detector));
            detector.observe(*at, frame);
            said.extend(drain(&mut detector));
            before = *at;
        }
        prop_assert_eq!(said, verdicts(&whole));
    }

    #[test]
    fn a_journal_that_was_written_and_read_gives_the_same_verdicts(spec in spec()) {
        let whole = journal(&spec);
        let read: Journal = lines(&whole)
            .iter()
            .map(|line| line::decode(line).expect("a line that we wrote"))
            .map(|entry| (entry.at_ns, entry.frame))
            .collect();
        prop_assert!(whole == read, "the journal changed on its way");
        prop_assert_eq!(verdicts(&whole), verdicts(&read));
    }

    #[test]
    fn a_cut_anywhere_changes_nothing(spec in spec(), share in 0.0..1.0_f64) {
        let whole = journal(&spec);
        let (before, after) = whole.split_at((whole.len() as f64 * share) as usize);
        let mut detector = Detector::new(Policy::default());
        let mut said = Vec::new();
        for (at, frame) in before {
            detector.observe(*at, frame);
            said.extend(drain(&mut detector));
        }
        detector = cut(&detector);
        for (at, frame) in after {
            detector.observe(*at, frame);
            said.extend(drain(&mut detector));
        }
        prop_assert_eq!(said, verdicts(&whole));
    }

    #[test]
    fn frames_survive_messagepack(spec in spec()) {
        for (_, frame) in journal(&spec).iter().step_by(7) {
            let bytes = rmp_serde::to_vec(frame).expect("MessagePack");
            prop_assert_eq!(&msgpack::from_slice::<Frame>(&bytes).expect("what we wrote"), frame);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_frame_survives_json_and_messagepack(n: u64, at: u64, frame in odd_frame()) {
        let entry = Entry { n, at_ns: Time(at), frame };
        let line = line::encode(&entry);
        prop_assert!(!line.contains('\n'));
        prop_assert_eq!(line::decode(&line).expect("a line that we wrote"), entry.clone());
        let bytes = rmp_serde::to_vec(&entry.frame).expect("MessagePack");
        prop_assert_eq!(msgpack::from_slice::<Frame>(&bytes).expect("what we wrote"), entry.frame);
    }

    #[test]
    fn decoding_never_panics(bytes in vec(any::<u8>(), 0..400)) {
        let _ = line::decode(&String::from_utf8_lossy(&bytes));
        let _ = msgpack::from_slice::<Frame>(&bytes);
    }

    #[test]
    fn decoding_a_damaged_line_never_panics(frame in odd_frame(), cut in 0.0..1.0_f64, byte: u8) {
        let line = line::encode(&Entry { n: 1, at_ns: Time::ZERO, frame });
        let mut bytes = line.into_bytes();
        let place = (bytes.len() as f64 * cut) as usize;
        bytes[place] = byte;
        let damaged = String::from_utf8_lossy(&bytes).into_owned();
        if let Ok(entry) = line::decode(&damaged) {
            // A decoded entry is the same after encoding and decoding it again.
            prop_assert_eq!(line::decode(&line::encode(&entry)).expect("a line that we wrote"), entry);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// For any input, the detector neither panics nor loses count.
    #[test]
    fn the_detector_takes_any_frame(frames in vec((wide(), odd_frame()), 0..40)) {
        take(frames.into_iter().map(|(at, frame)| (Time(at), frame)))?;
    }

    /// Tests every kind of event of ranks that have attached. The roster accepts such frames, so they reach every rule.
    #[test]
    fn the_detector_takes_every_kind_of_event(frames in odd::frames()) {
        take(frames.into_iter())?;
    }
}

fn take(frames: impl Iterator<Item = (Time, Frame)>) -> Result<(), TestCaseError> {
    let [mut detector, mut second] = [(); 2].map(|()| Detector::new(Policy::default()));
    for (turn, (at, frame)) in frames.enumerate() {
        detector.observe(at, &frame);
        if turn % 16 == 5 {
            second = cut(&second);
        }
        second.observe(at, &frame);
        let _ = detector.wake_at();
        prop_assert_eq!(drain(&mut detector), drain(&mut second));
    }
    let written = |detector: &Detector| rmp_serde::to_vec(detector).expect("a state that can be written");
    prop_assert!(
        written(&detector) == written(&cut(&second)),
        "a cut changed the state"
    );
    // The report can also be serialized.
    let json = serde_json::to_string(&detector.report()).expect("JSON");
    prop_assert!(serde_json::from_str::<Report>(&json).is_ok(), "{json}");
    Ok(())
}
