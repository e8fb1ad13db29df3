//! Tests steps of every layout. Phases add up to the step, times in communicators add up to the wait, and members
//! agree.

use std::collections::{BTreeMap, BTreeSet};

use paceline_health::Entry;
use paceline_health::codec::line;
use paceline_health::event::{Event, StepKind};

use super::{comms, run, steps};

const LAYOUTS: [&str; 8] = [
    "nodes=2 gpus=4",
    "nodes=2 gpus=4 framework=fsdp",
    "nodes=2 gpus=4 tp=4 micro=2",
    "nodes=2 gpus=4 tp=2 framework=fsdp",
    "nodes=4 gpus=4 tp=2 pp=4 micro=8 stages=1,1,1,1.3",
    "nodes=4 gpus=4 tp=2 cp=2 pp=2 micro=4 packed=0.11",
    "nodes=2 gpus=8 ep=4 experts=0.3 packed=0.05 micro=2",
    "nodes=4 gpus=4 tp=2 ep=2 pp=2 micro=4 experts=0.2 checkpoint-every=7 undeclared=first gc-every=9 evaluate-every=11",
];

#[test]
fn phases_fill_every_step_and_communicators_fill_the_wait() {
    for text in LAYOUTS {
        let faults = [
            "slow rank=3 factor=1.3 from=20",
            "slow node=1 factor=4 cause=network from=10",
        ];
        let (frames, _) = run(&format!("{text} steps=60 comms=on readings=off"), &faults);
        let mut waited: BTreeMap<(u32, u64), u64> = BTreeMap::new();
        for comm in comms(&frames) {
            *waited.entry((comm.rank.0, comm.step)).or_default() += comm.dur_ns;
        }
        let all = steps(&frames);
        assert_eq!(all.len() % 60, 0);
        for step in all {
            let phases = step.phases.expect("phases");
            let sum = phases.data_ns
                + phases.compute_ns
                + phases.wait_ns
                + phases.optimizer_ns
                + phases.checkpoint_ns;
            // Each part is rounded to a nanosecond.
            assert!(sum.abs_diff(step.dur_ns) <= 4, "{text}: {step:?}");
            let waited = waited[&(step.rank.0, step.step)];
            assert!(
                waited.abs_diff(phases.wait_ns) <= 10,
                "{text}: {waited} in communicators, {step:?}"
            );
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let bytes = |text: &str| {
        let faults = [
            "slow rank=1 factor=1.2 moves=10 cause=cpu-contention",
            "link node=1 factor=3 every=10 for=5",
        ];
        let (frames, _) = run(text, &faults);
        let entry = |(n, (at_ns, frame))| line::encode(&Entry { n, at_ns, frame });
        (1..).zip(frames).map(entry).collect::<Vec<String>>()
    };
    for text in LAYOUTS {
        let text = format!("{text} steps=40 comms=on restart=20 tail=0.02 autocorrelation=0.5");
        let (one, two) = (bytes(&text), bytes(&text));
        assert!(one == two, "{text}");
        assert!(one != bytes(&format!("{text} seed=2")), "{text}");
    }
}

#[test]
fn members_of_a_communicator_are_as_many_as_it_says() {
    for text in LAYOUTS {
        let (frames, world) = run(&format!("{text} steps=3 comms=on readings=off"), &[]);
        let mut members: BTreeMap<u64, (u32, BTreeSet<u32>)> = BTreeMap::new();
        let mut of_rank: BTreeMap<(u32, String), usize> = BTreeMap::new();
        for (_, frame) in &frames {
            if let Event::Group(group) = &frame.event {
                let entry = members.entry(group.comm).or_insert((group.size, BTreeSet::new()));
                assert_eq!(entry.0, group.size);
                assert!(entry.1.insert(group.rank.0), "{text}: twice in {group:?}");
                *of_rank.entry((group.rank.0, group.name.to_string())).or_default() += 1;
            }
        }
        for (size, members) in members.values() {
            assert_eq!(*size as usize, members.len(), "{text}");
        }
        assert!(of_rank.values().all(|count| *count == 1), "{text}");
        let told: BTreeSet<u64> = comms(&frames).iter().map(|comm| comm.comm).collect();
        assert_eq!(told, members.keys().copied().collect(), "{text}");
        assert_eq!(world.steps(), 3);
    }
}

/// Waiting does not count as transfer. The last rank that enters a collective is in it only for the transfer.
#[test]
fn the_last_to_arrive_is_in_the_collective_for_the_transfer_alone() {
    let (frames, _) = run(
        "gpus=8 steps=100 comms=on readings=off transfer=20ms",
        &["slow rank=5 factor=1.5 from=1"],
    );
    for step in 20..100 {
        let mut of_step: Vec<(u64, u32)> = comms(&frames)
            .iter()
            .filter(|comm| comm.step == step)
            .map(|comm| (comm.dur_ns, comm.rank.0))
            .collect();
        of_step.sort_unstable();
        assert_eq!(of_step[0].1, 5);
        let transfer = of_step[0].0 as f64 / 1e9;
        assert!((transfer / 0.02 - 1.0).abs() < 0.25, "{transfer}");
        assert!(of_step[1].0 as f64 / 1e9 > 0.08);
    }
}

#[test]
fn ranks_declare_where_they_stand() {
    let text = "nodes=4 gpus=4 tp=2 pp=4 micro=8 steps=2 readings=off";
    let layouts = |text: &str| {
        let (frames, _) = run(text, &[]);
        let layout = |(_, frame): &(_, paceline_health::Frame)| match frame.event {
            Event::Layout(layout) => Some(layout),
            _ => None,
        };
        frames.iter().filter_map(layout).collect::<Vec<_>>()
    };
    let declared = layouts(text);
    assert_eq!(declared.len(), 16);
    for layout in declared {
        let index = layout.tp.index + 2 * (layout.dp.index + 2 * layout.pp.index);
        assert_eq!((layout.rank.0, layout.micro_batches), (index, 8));
        assert_eq!((layout.dp.size, layout.tp.size, layout.pp.size), (2, 2, 4));
    }
    assert!(layouts(&format!("{text} layout=undeclared")).is_empty());
}

/// Evaluations and garbage collections occur where the spec puts them.
#[test]
fn evaluations_and_pauses_are_seen() {
    let (frames, _) = run(
        "gpus=4 steps=200 evaluate-every=50 gc-every=40 gc=300ms readings=off",
        &[],
    );
    let all = steps(&frames);
    let evaluations: BTreeSet<u64> = all
        .iter()
        .filter(|step| step.kind == StepKind::Evaluation)
        .map(|step| step.step)
        .collect();
    assert_eq!(evaluations, BTreeSet::from([50, 100, 150, 200]));
    let mut pauses: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for step in &all {
        let phases = step.phases.expect("phases");
        assert!(phases.gc_ns <= phases.compute_ns);
        if phases.gc_ns > 0 {
            assert!((240_000_000..=360_000_000).contains(&phases.gc_ns));
            pauses.entry(step.rank.0).or_default().push(step.step);
        }
    }
    let unlike: BTreeSet<&Vec<u64>> = pauses.values().collect();
    assert_eq!(
        unlike.len(),
        4,
        "every rank pauses at times of its own: {pauses:?}"
    );
    assert!(
        pauses.values().all(|steps| (4..=6).contains(&steps.len())),
        "{pauses:?}"
    );
}
