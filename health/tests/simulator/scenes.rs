//! Tests restarts, baselines, versions, racks, expected verdicts, and invalid specs.

use std::collections::BTreeSet;

use paceline_health::event::{BaselineOf, Event};
use paceline_health::sim::{World, WorldSpec};

use super::{comms, run, self_times, steps, world};

#[test]
fn a_restart_brings_new_processes_a_warm_up_and_the_next_step() {
    let (frames, _) = run(
        "nodes=2 gpus=2 steps=100 warm-up=5 restart=40 restart-takes=20s",
        &[],
    );
    let mut attached: Vec<(u32, u32)> = Vec::new();
    for (_, frame) in &frames {
        if let Event::Attach(attach) = &frame.event {
            attached.push((attach.restart, attach.rank.0));
        }
    }
    attached.sort_unstable();
    let expected: Vec<(u32, u32)> = (0..2)
        .flat_map(|restart| (0..4).map(move |rank| (restart, rank)))
        .collect();
    assert_eq!(attached, expected);
    let all = steps(&frames);
    assert!(all.iter().all(|step| step.restart == u32::from(step.step > 40)));
    let numbers: Vec<u64> = all
        .iter()
        .filter(|step| step.rank.0 == 0)
        .map(|step| step.step)
        .collect();
    assert_eq!(numbers, (1..=100).collect::<Vec<u64>>());
    let slow = self_times(&frames, 41..46)[&0];
    let steady = self_times(&frames, 50..100)[&0];
    assert!(slow > 1.2 * steady, "{slow} {steady}");
    // The job is down during the restart. There is no pulse then, and no step is as long as the restart.
    assert!(all.iter().all(|step| step.dur_ns < 2_000_000_000));
    let empty = frames
        .iter()
        .filter(|(_, frame)| matches!(&frame.event, Event::Beat(beat) if beat.ranks.is_empty()));
    assert!(empty.count() > 2 * 18);
}

#[test]
fn a_baseline_says_how_fast_it_should_be() {
    let (frames, _) = run(
        "nodes=2 gpus=4 steps=100 readings=off offset=0",
        &["birth factor=1.25"],
    );
    let told: Vec<(BaselineOf, f64)> = frames
        .iter()
        .filter_map(|(_, frame)| match &frame.event {
            Event::Baseline(baseline) => Some((baseline.of.clone(), baseline.seconds)),
            _ => None,
        })
        .collect();
    assert_eq!(told.len(), 3);
    let own = self_times(&frames, 10..100)[&0];
    for (of, seconds) in told {
        let slow = match of {
            BaselineOf::Step => {
                let dur: Vec<f64> = steps(&frames)
                    .iter()
                    .map(|step| step.dur_ns as f64 / 1e9)
                    .collect();
                super::median(dur)
            }
            BaselineOf::SelfTime { .. } => own,
        };
        // The transfer is not part of self-time and stays the same.
        assert!(
            (slow / seconds - 1.25).abs() < 0.02,
            "{of:?}: {seconds} for {slow}"
        );
    }
    let healthy = |text: &str| {
        let (frames, _) = run(text, &[]);
        frames
            .iter()
            .filter(|(_, frame)| matches!(frame.event, Event::Baseline(_)))
            .count()
    };
    assert_eq!(healthy("gpus=4 steps=5"), 0);
    assert_eq!(healthy("gpus=4 steps=5 baseline=on"), 2);
}

#[test]
fn nodes_say_their_rack_and_what_they_run() {
    let (frames, _) = run("nodes=4 gpus=1 racks=2 steps=3", &["skew node=2"]);
    let mut racks = Vec::new();
    let mut drivers = Vec::new();
    for (_, frame) in &frames {
        if let Event::Agent(agent) = &frame.event {
            racks.push((frame.node.to_string(), agent.rack.to_string()));
            drivers.push((frame.node.to_string(), agent.versions["driver"].to_string()));
        }
    }
    racks.sort();
    drivers.sort();
    let names: Vec<&str> = racks.iter().map(|(_, rack)| rack.as_str()).collect();
    assert_eq!(names, ["rack0", "rack0", "rack1", "rack1"]);
    let unlike: BTreeSet<&str> = drivers.iter().map(|(_, driver)| driver.as_str()).collect();
    assert_eq!(unlike.len(), 2);
    assert!(drivers[2].1 != drivers[0].1 && drivers[3].1 == drivers[0].1);
}

/// Only communicators that cross the link are slower, and their additional time is transfer, not wait.
#[test]
fn a_slow_link_is_paid_for_by_those_who_cross_it() {
    let text = "nodes=4 gpus=2 tp=2 steps=200 comms=on readings=off transfer=20ms exchange=20ms";
    let transfers = |frames: &[_], span: std::ops::Range<u64>| {
        let mut least = std::collections::BTreeMap::new();
        for comm in comms(frames).iter().filter(|comm| span.contains(&comm.step)) {
            let entry = least.entry((comm.comm, comm.step)).or_insert(u64::MAX);
            *entry = (*entry).min(comm.dur_ns);
        }
        let mut of: std::collections::BTreeMap<u64, Vec<f64>> = std::collections::BTreeMap::new();
        for ((comm, _), dur) in least {
            of.entry(comm).or_default().push(dur as f64 / 1e9);
        }
        of.into_iter()
            .map(|(comm, all)| (comm, super::median(all)))
            .collect::<std::collections::BTreeMap<_, _>>()
    };
    let (frames, world) = run(text, &["slow rank=2 factor=3 cause=nvlink from=100"]);
    let (before, after) = (transfers(&frames, 10..100), transfers(&frames, 100..200));
    let slowed: Vec<u64> = before
        .keys()
        .copied()
        .filter(|comm| after[comm] > 2.0 * before[comm])
        .collect();
    assert_eq!(slowed.len(), 1, "the tensor group of node 1 alone");
    assert_eq!(world.truth()[0].since_step, Some(100));
    let (frames, _) = run(text, &["link node=1 peer=3 factor=3 from=100"]);
    let (before, after) = (transfers(&frames, 10..100), transfers(&frames, 100..200));
    let slowed = before
        .keys()
        .filter(|comm| after[comm] > 2.0 * before[comm])
        .count();
    assert_eq!(slowed, 2, "both data-parallel groups, and no tensor group");
    // No rank's own work has increased.
    let (old, new) = (self_times(&frames, 10..100), self_times(&frames, 100..200));
    assert!(
        old.iter()
            .all(|(rank, time)| (new[rank] / time - 1.0).abs() < 0.01)
    );
}

#[test]
fn every_fault_says_what_a_verdict_should_say() {
    let text = "nodes=4 gpus=4 racks=2 steps=100 checkpoint-every=20 restart=50 job=j";
    for (fault, expected) in [
        ("slow rank=5 factor=1.2", "straggler rank 5 on node1 unknown"),
        (
            "slow rank=5 factor=1.2 cause=thermal",
            "straggler rank 5 on node1 thermal",
        ),
        (
            "slow rank=5 factor=1.2 cause=data-loading",
            "straggler rank 5 on node1 data-loading",
        ),
        (
            "slow node=1 factor=1.2 cause=power",
            "straggler-node node node1 power",
        ),
        ("slow rack=1 factor=1.2", "straggler-node rack rack1 unknown"),
        ("slow rank=all factor=1.2", "all-ranks-slow job j unknown"),
        (
            "slow rank=all factor=1.2 cause=data-loading",
            "data-loading job j data-loading",
        ),
        (
            "slow rank=2 factor=1.5 moves=20 cause=cpu-contention",
            "cpu-contention job j cpu-contention",
        ),
        (
            "slow rank=2 factor=1.5 moves=20 cause=gc",
            "gc-pause job j gc-pause",
        ),
        (
            "slow node=1 factor=5 cause=network",
            "slow-link link of node1 network",
        ),
        (
            "slow rank=5 factor=5 cause=nvlink",
            "slow-link link of node1 nvlink",
        ),
        (
            "link node=1 peer=2 factor=3",
            "slow-link link node1 to node2 network",
        ),
        ("heat gpu=6 from=5s", "straggler rank 6 on node1 thermal"),
        ("silent rank=2 from=50", "rank-silent rank 2 on node0 unknown"),
        ("silent rank=all from=50", "job-hang job j unknown"),
        (
            "checkpoint-slow rank=2 factor=3",
            "slow-checkpoint rank 2 on node0 unknown",
        ),
        ("warm-up-slow rank=all factor=3", "slow-warm-up job j unknown"),
        ("regress factor=1.2 from=51", "step-regression job j unknown"),
        ("regress factor=1.2 from=60", "all-ranks-slow job j unknown"),
        ("birth factor=1.2", "slow-from-birth job j unknown"),
        ("skew node=2", "version-skew node node2 unknown"),
        ("gap node=2 from=5s", "telemetry-blind node node2 unknown"),
        ("warm gpu=2 from=5s", "nothing"),
        ("loss share=0.1", "nothing"),
    ] {
        let world = world(text, &[fault]);
        let told = world.truth()[0]
            .expected
            .as_ref()
            .map_or("nothing".to_owned(), |expected| {
                let subject = expected.subject.to_string();
                let subject = subject.split(" (GPU").next().expect("a subject").to_owned();
                format!("{} {subject} {}", expected.finding, expected.cause.name())
            });
        assert_eq!(told, expected, "{fault}");
    }
}

#[test]
fn a_spec_that_is_no_world_says_why() {
    for (text, fault, expected) in [
        (
            "gpus=8 dp=4 tp=4",
            "",
            "dp=4 tp=4 pp=1 cp=1 are 16 ranks; nodes × GPUs are 8",
        ),
        (
            "gpus=8 pp=3",
            "",
            "tp=1 pp=3 cp=1 do not divide 8 ranks (nodes × GPUs)",
        ),
        ("gpus=8 ep=3", "", "ep=3 does not divide dp=8"),
        (
            "gpus=8 pp=2 stages=1,1,1",
            "",
            "stages= must name one weight for each stage of pp=",
        ),
        (
            "gpus=8 pp=2 framework=fsdp",
            "",
            "framework=fsdp has no pipeline here; expected pp=1",
        ),
        ("gpus=8 experts=0.3", "", "experts= needs ep= above 1"),
        (
            "gpus=8 packed=0.3 micro=256",
            "",
            "packed= is more than so many micro-batches leave;",
        ),
        (
            "nodes=2 racks=3",
            "",
            "racks is 3; expected 0 to the number of nodes",
        ),
        (
            "gpus=8",
            "slow rack=0 factor=2",
            "fault \"slow rack=0 factor=2 from=1\": there is no rack 0; there are 0",
        ),
        (
            "nodes=2",
            "link node=0 peer=2 factor=2",
            "fault \"link node=0 peer=2 factor=2 from=1\": there is no node 2",
        ),
        (
            "nodes=2",
            "link node=1 peer=1 factor=2",
            "fault \"link node=1 peer=1 factor=2 from=1\": a link has two ends",
        ),
        (
            "gpus=8",
            "slow rank=1 factor=2 cause=network",
            "fault \"slow rank=1 factor=2 from=1 cause=network\": a link needs",
        ),
        (
            "gpus=1 nodes=2",
            "slow rank=1 factor=2 cause=nvlink",
            "fault \"slow rank=1 factor=2 from=1 cause=nvlink\": NVLink",
        ),
        (
            "gpus=8",
            "checkpoint-slow rank=1 factor=2",
            "fault \"checkpoint-slow rank=1 factor=2 from=1\": there are no checkpoints",
        ),
        (
            "gpus=8 checkpoint-every=9 undeclared=first",
            "checkpoint-slow rank=1 factor=2",
            "fault \"checkpoint-slow rank=1 factor=2 from=1\": only rank 0",
        ),
        (
            "gpus=8",
            "slow rank=all factor=2 moves=5",
            "fault \"slow rank=all factor=2 from=1 moves=5\": what is everywhere",
        ),
        (
            "gpus=8",
            "slow rank=1 factor=2 from=9 until=9",
            "fault \"slow rank=1 factor=2 from=9 until=9\": until is not",
        ),
    ] {
        let mut spec = WorldSpec::parse(text).expect(text);
        spec.faults = (!fault.is_empty())
            .then(|| fault.parse().expect(fault))
            .into_iter()
            .collect();
        let error = World::new(spec).expect_err(text).to_string();
        assert!(error.starts_with(expected), "{text} {fault}: {error}");
    }
    let error = WorldSpec::parse("gpus=8 stages=1,x")
        .expect_err("a stage")
        .to_string();
    assert_eq!(
        error,
        "column 15: stages=\"1,x\": expected a number for each stage, such as 1,1,1,1.3"
    );
}

/// A spec is the same after conversion to JSON and back, so that a test suite can be stored as data.
#[test]
fn a_spec_reads_back_from_json() {
    let spec =
        WorldSpec::parse("nodes=2 tp=2 pp=2 micro=4 stages=1,1.2 packed=0.1 restart=5 comms=on host=off")
            .expect("text");
    let json = serde_json::to_string(&spec).expect("JSON");
    assert_eq!(serde_json::from_str::<WorldSpec>(&json).expect("spec"), spec);
}

/// docs/simulate.md contains every word of a world and every fault.
#[test]
fn the_page_has_every_word() {
    #[allow(clippy::disallowed_methods)] // A test reads the page that it checks.
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/simulate.md"))
        .expect("the page");
    let known = |error: String| {
        let words = error.split_once("known: ").expect("what is known").1.to_owned();
        words.split(", ").map(str::to_owned).collect::<Vec<String>>()
    };
    for word in known(WorldSpec::parse("nonsense=1").expect_err("no word").to_string()) {
        assert!(
            page.contains(&format!("`{word}=`")),
            "{word}= is not in docs/simulate.md"
        );
    }
    let error = "nonsense"
        .parse::<paceline_health::sim::Fault>()
        .expect_err("no fault");
    for word in known(error.to_string()) {
        let told = page.contains(&format!("`{word} ")) || page.contains(&format!("`{word}`"));
        assert!(told, "{word} is not in docs/simulate.md");
    }
}
