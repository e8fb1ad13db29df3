//! Checks that the journal contains what a program or its framework declares: the layout, the work, garbage
//! collections, and the collectives of each communicator.

use std::collections::{BTreeMap, BTreeSet};

use paceline_health::event::{Axis, Comm, Event, Group, Layout, Step};
use paceline_health::frame::Entry;

use crate::job::{Ended, torchrun};

const STEPS: usize = 40;

fn run(more: &str) -> Vec<Event> {
    let args = format!("--steps {STEPS} --sleep-ms 10 {more}");
    events(&torchrun(&[], 4, "mesh.py", &args).run().ok())
}

fn events(ended: &Ended) -> Vec<Event> {
    let journal = std::fs::read_to_string(ended.dir.path().join("run/journal.ndjson")).unwrap();
    let entry = |line| serde_json::from_str::<Entry>(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    journal.lines().map(|line| entry(line).frame.event).collect()
}

/// Returns the layouts by rank.
fn layouts(events: &[Event]) -> BTreeMap<u32, Layout> {
    let mut found = BTreeMap::new();
    for event in events {
        if let Event::Layout(layout) = event {
            assert!(
                found.insert(layout.rank.0, *layout).is_none(),
                "told once: {layout:?}"
            );
        }
    }
    found
}

fn steps(events: &[Event]) -> Vec<&Step> {
    let steps = events.iter().filter_map(|event| match event {
        Event::Step(step) => Some(step),
        _ => None,
    });
    steps.collect()
}

fn is_two_by_two(events: &[Event], micro_batches: u32) {
    let found = layouts(events);
    assert_eq!(found.len(), 4, "{found:?}");
    for (rank, layout) in found {
        let axis = |index| Axis { index, size: 2 };
        assert_eq!((layout.dp, layout.tp), (axis(rank / 2), axis(rank % 2)));
        let unused = Axis::default();
        assert_eq!((layout.pp, layout.ep, layout.cp), (unused, unused, unused));
        assert_eq!(layout.micro_batches, micro_batches);
    }
}

/// Checks the members and collectives of two tensor-parallel groups of two ranks and of two data-parallel groups.
fn has_four_groups(events: &[Event]) {
    let mut members: BTreeMap<u64, BTreeSet<u32>> = BTreeMap::new();
    let mut sums: BTreeMap<u64, Vec<&Comm>> = BTreeMap::new();
    for event in events {
        match event {
            Event::Group(Group { rank, comm, size, .. }) => {
                assert_eq!(*size, 2);
                members.entry(*comm).or_default().insert(rank.0);
            }
            Event::Comm(comm) => sums.entry(comm.comm).or_default().push(comm),
            _ => {}
        }
    }
    let found: BTreeSet<_> = members
        .values()
        .map(|ranks| Vec::from_iter(ranks.iter().copied()))
        .collect();
    let wanted = [[0, 1], [2, 3], [0, 2], [1, 3]].map(Vec::from);
    assert_eq!(found, BTreeSet::from(wanted));
    for (comm, ranks) in members {
        let is_tensor_parallel = ranks == BTreeSet::from([0, 1]) || ranks == BTreeSet::from([2, 3]);
        // Tensor parallel: two layers of 64 x 64 floats. Data parallel: two halves of 64 x 32 floats, 64 weights and a
        // bias.
        let wanted = if is_tensor_parallel {
            (2, 2 * 64 * 64 * 4)
        } else {
            (4, (2 * 64 * 32 + 64 + 1) * 4)
        };
        let sums = &sums[&comm];
        assert!(sums.len() >= 2 * (STEPS - 2), "{} of {ranks:?}", sums.len());
        for sum in sums {
            assert!(ranks.contains(&sum.rank.0));
            assert_eq!((sum.collectives, sum.bytes), wanted, "{sum:?}");
            assert!(sum.dur_ns > 0);
        }
    }
}

#[test]
#[ignore = "needs PyTorch: tests/run"]
fn a_named_mesh_packed_sequences_and_garbage() {
    let events = run("--garbage-at 20");
    is_two_by_two(&events, 0);
    has_four_groups(&events);
    let steps = steps(&events);
    assert_eq!(steps.len(), 4 * (STEPS - 1), "the first step has no record");
    for step in &steps {
        let squares = [64 * 64, 2 * 32 * 32, 2 * 16 * 16 + 32 * 32][(step.step as usize - 1) % 3];
        assert_eq!(
            (step.tokens, step.sum_sq, step.expert_tokens),
            (64, squares, 0),
            "{step:?}"
        );
    }
    let gc_ns = |step: &Step| step.phases.map_or(0, |phases| phases.gc_ns);
    let longest = steps.iter().max_by_key(|step| gc_ns(step)).unwrap();
    assert_eq!((longest.rank.0, longest.step), (1, 21), "{longest:?}");
    assert!(
        (1_000_000..=longest.dur_ns).contains(&gc_ns(longest)),
        "{longest:?}"
    );
}

#[test]
#[ignore = "needs PyTorch: tests/run"]
fn a_declared_layout() {
    let events = run("--declare");
    is_two_by_two(&events, 1);
    has_four_groups(&events);
}

/// A plain DDP job has one communicator, so no groups and no layout may be recorded.
#[test]
#[ignore = "needs PyTorch: tests/run"]
fn a_plain_job_tells_nothing_more() {
    let events = events(&torchrun(&[], 2, "ddp.py", "--steps 30 --sleep-ms 10").run().ok());
    assert_eq!(steps(&events).len(), 2 * 29);
    let more = events
        .iter()
        .filter(|event| matches!(event, Event::Layout(_) | Event::Group(_) | Event::Comm(_)));
    assert_eq!(more.count(), 0);
    assert!(
        events
            .iter()
            .any(|event| matches!(event, Event::Agent(agent) if !agent.versions.is_empty()))
    );
}
