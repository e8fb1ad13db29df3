//! Attribution of slowness from collectives only, in worlds whose ranks report no phases. The results are compared with
//! those of a naive rule that blames the rank with the shortest time in its own communicator.

use std::collections::{BTreeMap, BTreeSet};

use paceline_health::event::{Comm, Event, Signal};
use paceline_health::report::Report;
use paceline_health::sim::{World, WorldSpec};
use paceline_health::verdict::{Finding, Subject};
use paceline_health::{Detector, Frame, Policy};

/// The results of the detector and of the naive rule for one world.
struct Seen {
    report: Report,
    naive: BTreeSet<u32>,
}

fn watch(world: &str, faults: &[&str], is_seen: impl Fn(&Frame) -> bool) -> Seen {
    watch_as(world, faults, |frame| Some(frame).filter(&is_seen))
}

fn watch_as(world: &str, faults: &[&str], seen_as: impl Fn(Frame) -> Option<Frame>) -> Seen {
    let text = format!("comms=on phases=off {world} seed=1000000007");
    let mut spec = WorldSpec::parse(&text).expect(world);
    spec.faults = faults.iter().map(|fault| fault.parse().expect(fault)).collect();
    let mut detector = Detector::new(Policy::default());
    let mut naive = Naive::default();
    let seen = World::new(spec)
        .expect(world)
        .filter_map(|(at, frame)| Some((at, seen_as(frame)?)));
    for (at, frame) in seen {
        if let Event::Comm(did) = &frame.event {
            naive.take(did);
        }
        detector.observe(at, &frame);
    }
    let report = detector.report();
    Seen {
        report,
        naive: naive.accuses(),
    }
}

impl Seen {
    /// Returns every finding with its subject.
    fn named(&self) -> Vec<(Finding, String)> {
        let who = |subject: &Subject| match subject {
            Subject::Rank { rank, .. } => format!("rank {rank}"),
            Subject::Link { node, peer } => {
                let end = peer.as_ref().map_or(String::new(), |peer| format!("-{}", peer.0));
                format!("{}{end}", node.0)
            }
            Subject::Node { node } => node.0.to_string(),
            _ => "job".to_owned(),
        };
        let verdicts = self.report.verdicts.iter();
        verdicts
            .map(|verdict| (verdict.finding, who(&verdict.subject)))
            .collect()
    }

    fn notes(&self) -> String {
        self.report.coverage.notes.join("\n")
    }
}

/// The naive rule. It blames a rank that in four of five steps has the shortest time in its own communicator, if that
/// is at most half of the next shortest time.
#[derive(Default)]
struct Naive {
    rows: BTreeMap<(u64, u64), BTreeMap<u32, u64>>,
}

impl Naive {
    fn take(&mut self, did: &Comm) {
        let row = self.rows.entry((did.comm, did.step)).or_default();
        row.insert(did.rank.0, did.dur_ns);
    }

    fn accuses(&self) -> BTreeSet<u32> {
        let mut wins: BTreeMap<(u64, u32), usize> = BTreeMap::new();
        let mut steps: BTreeMap<u64, usize> = BTreeMap::new();
        // Only the last hundred steps are used, which are after all changes.
        let last = self.rows.keys().map(|(_, step)| *step).max().unwrap_or(0);
        for ((comm, step), row) in self.rows.iter().filter(|((_, step), _)| step + 100 > last) {
            let mut order: Vec<(u64, u32)> = row.iter().map(|(rank, ns)| (*ns, *rank)).collect();
            order.sort_unstable();
            *steps.entry(*comm).or_default() += 1;
            if let [first, next, ..] = order[..]
                && first.0 * 2 <= next.0
            {
                *wins.entry((*comm, first.1)).or_default() += 1;
            }
            let _ = step;
        }
        let wins = wins
            .into_iter()
            .filter(|((comm, _), wins)| wins * 5 >= steps[comm] * 4);
        wins.map(|((_, rank), _)| rank).collect()
    }
}

const PIPELINE: &str = "nodes=4 gpus=4 dp=4 pp=4 micro=8 steps=300";
const SLOW_0: &str = "slow rank=0 factor=1.2 from=100";

fn not_of(size: u32) -> impl Fn(&Frame) -> bool {
    // The kind of a communicator is known from its name, not from its number.
    let pipes = std::cell::RefCell::new(BTreeSet::new());
    move |frame| match &frame.event {
        Event::Group(group) if ["pp", "world"].contains(&&*group.name) => {
            assert!(group.size >= size);
            pipes.borrow_mut().insert(group.comm);
            false
        }
        Event::Comm(did) => !pipes.borrow().contains(&did.comm),
        _ => true,
    }
}

#[test]
fn a_slow_first_stage_is_one_verdict_where_the_shortest_are_four() {
    // Collectives are timed on the host, or by the NCCL plugin.
    let seen_by = ["", " comms=gpu", " chunks=2 comms=gpu"];
    let layouts = ["declared", "undeclared"];
    for layout in layouts
        .iter()
        .flat_map(|layout| seen_by.map(|by| format!("{layout}{by}")))
    {
        let seen = watch(&format!("{PIPELINE} layout={layout}"), &[SLOW_0], |_| true);
        assert_eq!(
            seen.named(),
            [(Finding::Straggler, "rank 0".to_owned())],
            "{layout}"
        );
        let verdict = &seen.report.verdicts[0];
        assert_eq!(verdict.signals, [Signal::S1]);
        assert!(
            verdict.raised_step.is_some_and(|step| step <= 110),
            "{:?}",
            verdict.raised_step
        );
        // Ranks 0, 4, 8 and 12 are the stages of one replica.
        if !layout.contains("chunks") {
            assert_eq!(seen.naive, BTreeSet::from([0, 4, 8, 12]), "{layout}");
        }
    }
}

/// No rank is named if all communication between stages is invisible, if only the norm of all ranks is visible, or if
/// the GPU times everything but sends and receives.
#[test]
fn what_joins_stages_was_not_seen_and_no_rank_is_named() {
    let seen = watch(PIPELINE, &[SLOW_0], not_of(4));
    assert_eq!(seen.named(), []);
    assert!(
        seen.notes()
            .contains("ranks 0, 4, 8, 12 of one pipeline were late together"),
        "{}",
        seen.notes()
    );
    assert_eq!(seen.naive, BTreeSet::from([0, 4, 8, 12]));
    for layout in ["declared", "undeclared"] {
        for chunks in [1, 2] {
            let world = format!("{PIPELINE} layout={layout} chunks={chunks} comms=gpu");
            let seen = watch(
                &world,
                &[SLOW_0],
                |frame| !matches!(&frame.event, Event::Comm(did) if did.unfit > 0),
            );
            assert_eq!(seen.named(), [], "{layout} {chunks}");
            assert!(
                seen.notes().contains("were late together"),
                "{layout} {chunks}: {}",
                seen.notes()
            );
        }
    }
}

/// Receives that are requested early last nearly as long as the step and overlap with compute. The remainder of the
/// step is therefore not self-time, and the job is not communication bound.
#[test]
fn receives_that_overlap_with_compute_accuse_nobody() {
    let world = format!("{PIPELINE} layout=declared comms=gpu sigma=0.02");
    let longest: std::cell::RefCell<BTreeMap<u64, u64>> = std::cell::RefCell::default();
    watch_as(&world, &[], |frame| {
        if let Event::Step(step) = &frame.event {
            let mut longest = longest.borrow_mut();
            let dur_ns = longest.entry(step.step).or_default();
            *dur_ns = step.dur_ns.max(*dur_ns);
        }
        Some(frame)
    });
    let seen = watch_as(&world, &[], |mut frame| {
        if let Event::Comm(did) = &mut frame.event
            && did.unfit > 0
        {
            let share = if did.rank.0 == 5 { 0.94 } else { 0.95 };
            let longest = longest.borrow();
            did.exposed_ns = longest.get(&did.step).map(|ns| (*ns as f64 * share) as u64);
            did.dur_ns = did.exposed_ns.unwrap_or(did.dur_ns);
        }
        Some(frame)
    });
    assert_eq!(seen.named(), []);
}

/// Ranks that are slow together in a job without a pipeline are detected, with declared and undeclared layout.
#[test]
fn several_slow_ranks_without_a_pipeline() {
    for layout in ["declared", "undeclared"] {
        for axis in ["cp=2", "ep=8"] {
            let world = format!("nodes=4 gpus=8 {axis} steps=300 layout={layout} comms=gpu");
            let seen = watch(&world, &["slow node=1 factor=1.3 from=50"], |_| true);
            let found: Vec<Finding> = seen.named().iter().map(|(finding, _)| *finding).collect();
            assert_eq!(found, [Finding::StragglerNode], "{world}: {:?}", seen.named());
            let two = [
                "slow rank=3 factor=1.3 from=50",
                "slow rank=20 factor=1.3 from=50",
            ];
            let mut named = watch(&world, &two, |_| true).named();
            named.sort();
            let ranks = ["rank 20", "rank 3"].map(|rank| (Finding::Straggler, rank.to_owned()));
            assert_eq!(named, ranks, "{world}");
        }
    }
}

#[test]
fn one_late_rank_is_that_rank() {
    for (world, faults) in [
        ("nodes=4 gpus=4 steps=300", ["slow rank=5 factor=1.1 from=100"]),
        (
            "nodes=4 gpus=4 steps=300 framework=fsdp",
            ["slow rank=5 factor=1.1 from=100"],
        ),
        ("nodes=4 gpus=4 tp=4 steps=300", ["slow rank=5 factor=1.1 from=1"]),
        (
            "nodes=2 gpus=4 tp=2 steps=900 sigma=0.05",
            ["slow rank=5 factor=1.15 from=100"],
        ),
    ] {
        let seen = watch(world, &faults, |_| true);
        assert_eq!(
            seen.named(),
            [(Finding::Straggler, "rank 5".to_owned())],
            "{world}"
        );
        assert!(seen.notes().contains("(S1)"), "{}", seen.notes());
    }
}

#[test]
fn a_slow_link_is_the_link_and_no_rank() {
    for (world, fault, link) in [
        (
            "nodes=8 gpus=4 dp=4 tp=4 pp=2 micro=4 hop=5ms steps=500",
            "link node=1 peer=5 factor=4 from=200",
            "node1-node5",
        ),
        (
            "nodes=8 gpus=4 dp=8 tp=4 transfer=40ms steps=500",
            "link node=3 factor=3 from=200",
            "node3",
        ),
    ] {
        let seen = watch(world, &[fault], |_| true);
        assert_eq!(seen.named(), [(Finding::SlowLink, link.to_owned())], "{world}");
    }
}

#[test]
fn sums_that_were_lost_accuse_nobody() {
    for world in [
        "nodes=4 gpus=4 tp=4 steps=500 sigma=0.02",
        "nodes=4 gpus=4 dp=4 pp=4 micro=8 steps=500",
    ] {
        let faults = ["loss share=0.1", "reorder share=0.1"];
        let seen = watch(world, &faults, |_| true);
        assert_eq!(seen.named(), [], "{world}");
        assert!(seen.report.coverage.frames_lost > 0);
    }
}

/// Changes frames to those of the NCCL plugin, which report the exposed time. Only ranks for which `is_told` is true
/// report it.
fn by_the_plugin(is_told: impl Fn(u32) -> bool) -> impl Fn(Frame) -> Option<Frame> {
    move |mut frame| {
        if let Event::Comm(did) = &mut frame.event {
            did.gpu = true;
            did.collectives = 40;
            did.exposed_ns = is_told(did.rank.0).then_some(did.dur_ns);
        }
        Some(frame)
    }
}

#[test]
fn how_long_ranks_stood_still_counts_if_all_say_it() {
    let world = "nodes=4 gpus=4 tp=4 steps=300";
    let faults = ["slow rank=5 factor=1.2 from=100"];
    let seen = watch_as(world, &faults, by_the_plugin(|_| true));
    assert_eq!(seen.named(), [(Finding::Straggler, "rank 5".to_owned())]);
    let ratio = seen.report.verdicts[0].slowdown_ratio.unwrap_or(0.0);
    assert!((ratio - 1.2).abs() < 0.03, "{ratio}");
    // Only the late rank reports exposed time. The missing values of its peers must not cause another rank to be
    // blamed.
    let seen = watch_as(world, &faults, by_the_plugin(|rank| rank == 5));
    let ranks = seen.named().into_iter().filter(|(_, who)| who != "job");
    assert!(
        ranks.clone().all(|(_, who)| who == "rank 5"),
        "{:?}",
        seen.named()
    );
    let seen = watch_as(world, &[], by_the_plugin(|rank| rank != 9));
    assert_eq!(seen.named(), []);
}

#[test]
fn sums_of_other_collectives_are_not_compared() {
    let seen_as = |frame| {
        let mut frame = by_the_plugin(|_| true)(frame)?;
        if let Event::Comm(did) = &mut frame.event
            && did.rank.0 == 6
            && did.step > 100
        {
            // The rank has one collective less than its peers. If its collectives were divided into parts differently,
            // it would look permanently late.
            did.collectives -= 1;
            did.dur_ns /= 2;
            did.exposed_ns = Some(did.dur_ns);
        }
        Some(frame)
    };
    let seen = watch_as("nodes=4 gpus=4 tp=4 steps=300", &[], seen_as);
    assert_eq!(seen.named(), []);
}

#[test]
fn without_collectives_only_wall_times_are_left() {
    let seen = watch(
        "nodes=2 gpus=4 steps=200",
        &["slow rank=5 factor=1.5 from=100"],
        |frame| !matches!(frame.event, Event::Comm(_)),
    );
    let ranks: Vec<_> = seen.named().into_iter().filter(|(_, who)| who != "job").collect();
    assert_eq!(ranks, []);
    assert!(seen.notes().contains("(S0)"), "{}", seen.notes());
}
