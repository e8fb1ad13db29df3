use std::collections::BTreeMap;

use super::*;
use crate::codec::line;
use crate::event::{Beat, GpuSignal, Phase, Step};
use crate::frame::Entry;
use crate::id::Rank;

fn world(text: &str, faults: &[&str]) -> World {
    let mut spec = WorldSpec::parse(text).expect(text);
    spec.faults = faults.iter().map(|fault| fault.parse().expect(fault)).collect();
    World::new(spec).expect("a world")
}

fn steps(frames: &[(Time, Frame)]) -> Vec<(Time, Step)> {
    let step = |(at, frame): &(Time, Frame)| match frame.event {
        Event::Step(step) => Some((*at, step)),
        _ => None,
    };
    frames.iter().filter_map(step).collect()
}

fn beats(frames: &[(Time, Frame)], node: &str) -> Vec<(Time, Beat)> {
    let beat = |(at, frame): &(Time, Frame)| match &frame.event {
        Event::Beat(beat) if frame.node.as_str() == node => Some((*at, beat.clone())),
        _ => None,
    };
    frames.iter().filter_map(beat).collect()
}

fn bytes(world: World) -> String {
    let entry = |(n, (at_ns, frame))| line::encode(&Entry { n, at_ns, frame }) + "\n";
    (1..).zip(world).map(entry).collect()
}

/// Returns the median self-time of a rank over the steps in `span`, in seconds.
fn self_time(frames: &[(Time, Frame)], rank: u32, span: std::ops::Range<u64>) -> f64 {
    let of = |(_, step): &(Time, Step)| {
        (step.rank.0 == rank && span.contains(&step.step)).then(|| step.self_time())
    };
    let mut times: Vec<f64> = steps(frames).iter().filter_map(of).flatten().collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_does_not() {
    let make = |seed| {
        bytes(world(
            &format!("nodes=2 gpus=2 steps=60 seed={seed} tail=0.02 autocorrelation=0.5 checkpoint-every=20"),
            &[
                "slow rank=1 factor=1.2",
                "heat gpu=2 from=5s",
                "loss share=0.1",
                "reorder share=0.1",
            ],
        ))
    };
    assert_eq!(make(1), make(1));
    assert_ne!(make(1), make(2));
}

#[test]
fn time_never_goes_back_and_sequences_have_no_holes() {
    let frames: Vec<_> = world("nodes=3 gpus=4 steps=200", &[]).collect();
    assert!(frames.is_sorted_by_key(|(at, _)| *at));
    let mut last: BTreeMap<(String, u64), u64> = BTreeMap::new();
    for (_, frame) in frames.iter().filter(|(_, frame)| frame.agent != 0) {
        let seq = last.entry((frame.node.to_string(), frame.agent)).or_default();
        assert_eq!(frame.seq, *seq + 1);
        *seq = frame.seq;
    }
    assert_eq!(last.len(), 3);
    assert!(matches!(frames[0].1.event, Event::Job(_)));
    assert!(matches!(&frames[frames.len() - 1].1.event, Event::End(end) if end.missing.is_empty()));
    assert_eq!(steps(&frames).len(), 3 * 4 * 200);
}

#[test]
fn phases_fill_the_step_and_all_ranks_take_the_same_wall_time() {
    let frames: Vec<_> = world("gpus=4 steps=300", &["slow rank=2 factor=2.35 from=100"]).collect();
    let mut walls: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for (_, step) in steps(&frames) {
        let phases = step.phases.expect("phases");
        let sum =
            phases.data_ns + phases.compute_ns + phases.wait_ns + phases.optimizer_ns + phases.checkpoint_ns;
        assert_eq!(sum, step.dur_ns);
        walls.entry(step.step).or_default().push(step.dur_ns);
    }
    // The rule that compares whole steps detects nothing, because only the optimizer time after the synchronization
    // differs between ranks. In the step of the change, that time itself changes.
    for (step, wall) in walls
        .iter()
        .filter(|(step, _)| !(1..=4).contains(*step) && **step != 100)
    {
        let (low, high) = (
            wall.iter().min().expect("ranks"),
            wall.iter().max().expect("ranks"),
        );
        assert!(*high as f64 / (*low as f64) < 1.02, "step {step}: {wall:?}");
    }
    let ratio = self_time(&frames, 2, 100..301) / self_time(&frames, 2, 10..100);
    assert!((ratio - 2.35).abs() < 0.01, "{ratio}");
    let others = self_time(&frames, 1, 100..301) / self_time(&frames, 1, 10..100);
    assert!((others - 1.0).abs() < 0.003, "{others}");
}

#[test]
fn noise_is_what_the_spec_says() {
    let frames: Vec<_> = world(
        "gpus=2 steps=4000 sigma=0.11 autocorrelation=0.6 readings=off",
        &[],
    )
    .collect();
    let own = |step: &Step| step.self_time().expect("self-time").ln();
    let logs: Vec<f64> = steps(&frames)
        .iter()
        .filter(|(_, step)| step.rank.0 == 0 && step.step > 10)
        .map(|(_, s)| own(s))
        .collect();
    let mean = logs.iter().sum::<f64>() / logs.len() as f64;
    let variance = logs.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / logs.len() as f64;
    let pairs = logs.windows(2).map(|pair| (pair[0] - mean) * (pair[1] - mean));
    let lag = pairs.sum::<f64>() / logs.len() as f64 / variance;
    assert!((variance.sqrt() - 0.11).abs() < 0.01, "sigma {}", variance.sqrt());
    assert!((lag - 0.6).abs() < 0.05, "autocorrelation {lag}");
    assert!((mean - 0.2f64.ln()).abs() < 0.03, "mean {mean}");
}

#[test]
fn truth_is_the_cost_against_the_same_world_without_the_fault() {
    let text = "gpus=8 steps=400 sigma=0.02 readings=off";
    let fault = "slow rank=3 factor=1.25 from=100 until=300";
    let end = |frames: &[(Time, Frame)]| {
        let last = steps(frames)
            .iter()
            .map(|(_, step)| step.step)
            .max()
            .expect("steps");
        let of_rank = steps(frames)
            .into_iter()
            .filter(|(_, step)| step.rank.0 == 0 && step.step <= last);
        of_rank.map(|(_, step)| step.dur_ns as f64 / 1e9).sum::<f64>()
    };
    let mut slow = world(text, &[fault]);
    let frames: Vec<_> = slow.by_ref().collect();
    let healthy: Vec<_> = world(text, &[]).collect();
    let truth = &slow.truth()[0];
    assert_eq!(
        (truth.rank, truth.since_step, truth.last_step),
        (Some(Rank(3)), Some(100), Some(300))
    );
    // The values are only approximately equal, because clock jitter depends on time and the slow world reaches each
    // step later.
    let lost = (end(&frames) - end(&healthy)) * 8.0;
    assert!(
        (truth.lost_gpu_s / lost - 1.0).abs() < 0.002,
        "{} against {lost}",
        truth.lost_gpu_s
    );
}

#[test]
fn a_silent_rank_stops_in_compute_and_the_others_wait() {
    let mut hung = world("nodes=2 gpus=2 steps=500 hang=100s", &["silent rank=2 from=50"]);
    let frames: Vec<_> = hung.by_ref().collect();
    assert_eq!(steps(&frames).iter().map(|(_, step)| step.step).max(), Some(49));
    let phase = |node, rank| {
        let (_, beat) = beats(&frames, node)
            .into_iter()
            .rfind(|(_, beat)| !beat.ranks.is_empty())
            .expect("beat");
        beat.ranks
            .into_iter()
            .find(|pulse| pulse.rank == Rank(rank))
            .expect("pulse")
    };
    let silent = phase("node1", 2);
    assert_eq!((silent.phase, silent.step), (Phase::Compute, 50));
    assert!(silent.idle_ns > 95_000_000_000, "{}", silent.idle_ns);
    for (node, rank) in [("node0", 0), ("node0", 1), ("node1", 3)] {
        assert_eq!(
            (phase(node, rank).phase, phase(node, rank).step),
            (Phase::Wait, 50)
        );
    }
    let truth = &hung.truth()[0];
    assert_eq!(truth.since_step, Some(50));
    assert!(
        (truth.lost_gpu_s / (4.0 * 100.0) - 1.0).abs() < 0.01,
        "{}",
        truth.lost_gpu_s
    );
    let code = frames.iter().find_map(|(_, frame)| match frame.event {
        Event::Exit(exit) => Some(exit.code),
        _ => None,
    });
    assert_eq!(code, Some(143));
}

#[test]
fn when_all_are_silent_all_wait() {
    let frames: Vec<_> = world("gpus=3 steps=500", &["silent rank=all from=20"]).collect();
    let (_, beat) = beats(&frames, "node0")
        .into_iter()
        .rfind(|(_, beat)| !beat.ranks.is_empty())
        .expect("beat");
    assert!(
        beat.ranks
            .iter()
            .all(|pulse| pulse.phase == Phase::Wait && pulse.step == 20),
        "{beat:?}"
    );
}

#[test]
fn heat_slows_the_rank_and_the_counter_says_why() {
    let mut hot = world("gpus=4 steps=300", &["heat gpu=1 from=20s"]);
    let frames: Vec<_> = hot.by_ref().collect();
    let ratio = self_time(&frames, 1, 200..301) / self_time(&frames, 1, 10..60);
    assert!((ratio - 1.0 / 0.75).abs() < 0.01, "{ratio}");
    let truth = &hot.truth()[0];
    // Training runs for 17 s before the heat, at five steps a second. The GPU needs about three seconds more to reach
    // the limit.
    assert!((85..110).contains(&truth.since_step.expect("felt")), "{truth:?}");
    assert!(truth.lost_gpu_s > 0.0);
    let reason: Vec<f64> = frames
        .iter()
        .filter_map(|(_, frame)| match &frame.event {
            Event::Gpu(gpu) if Some(&gpu.gpu) == truth.gpu.as_ref() => {
                gpu.readings[&GpuSignal::ThrottleThermalSwNs].value()
            }
            _ => None,
        })
        .collect();
    assert!(reason.is_sorted());
    assert!(reason[reason.len() - 1] - reason[0] > 10e9);
}

#[test]
fn a_gap_brings_a_new_sidecar_and_keeps_steps_if_told() {
    let gap = |kept: &str| -> Vec<_> {
        world(
            "nodes=2 gpus=2 steps=200",
            &[&format!("gap node=1 from=10s for=8s steps={kept}")],
        )
        .collect()
    };
    let lost = gap("lost");
    let agents: std::collections::BTreeSet<u64> = lost
        .iter()
        .filter(|(_, frame)| frame.node.as_str() == "node1")
        .map(|(_, frame)| frame.agent)
        .collect();
    assert_eq!(agents.len(), 2);
    let silent = |frames: &[(Time, Frame)]| {
        let of_node = frames
            .iter()
            .filter(|(_, frame)| frame.node.as_str() == "node1" && frame.agent != 0);
        let times: Vec<f64> = of_node.map(|(at, _)| at.as_secs_f64()).collect();
        times.windows(2).map(|pair| pair[1] - pair[0]).fold(0.0, f64::max)
    };
    assert!((7.5..8.5).contains(&silent(&lost)), "{}", silent(&lost));
    assert!(steps(&lost).len() < 4 * 200 - 50);
    assert_eq!(steps(&gap("kept")).len(), 4 * 200);
}

#[test]
fn losses_leave_holes_and_repeats_come_twice() {
    let frames: Vec<_> = world("gpus=4 steps=500", &["loss share=0.1"]).collect();
    let share = steps(&frames).len() as f64 / 2000.0;
    assert!((share - 0.9).abs() < 0.03, "{share}");
    let frames: Vec<_> = world("gpus=4 steps=500", &["repeat share=0.2"]).collect();
    let share = steps(&frames).len() as f64 / 2000.0;
    assert!((share - 1.2).abs() < 0.03, "{share}");
    let frames: Vec<_> = world("gpus=4 steps=500", &["reorder share=0.2"]).collect();
    let seqs: Vec<u64> = frames
        .iter()
        .filter(|(_, f)| f.agent != 0)
        .map(|(_, f)| f.seq)
        .collect();
    assert!(!seqs.is_sorted());
    assert_eq!(steps(&frames).len(), 2000);
}

#[test]
fn a_late_rank_is_late_with_everything() {
    let frames: Vec<_> = world("gpus=2 steps=100", &["late rank=1 by=5s"]).collect();
    let first = |rank| {
        let mut found = frames.iter().filter_map(|(at, frame)| match &frame.event {
            Event::Attach(attach) if attach.rank.0 == rank => Some(*at),
            _ => None,
        });
        found.next().expect("attach")
    };
    assert_eq!(first(1).since(first(0)), Duration::from_secs(5));
    let last: Vec<u32> = steps(&frames).iter().map(|(_, step)| step.rank.0).collect();
    assert_eq!(last[last.len() - 1], 1);
    assert!(frames.is_sorted_by_key(|(at, _)| *at));
}

#[test]
fn checkpoints_take_longer_and_are_declared_or_not() {
    let long = |text: &str| {
        let frames: Vec<_> = world(&format!("gpus=2 steps=100 checkpoint-every=20 {text}"), &[]).collect();
        let of = |number| {
            steps(&frames)
                .into_iter()
                .find(|(_, s)| s.step == number && s.rank.0 == 1)
                .expect("step")
                .1
        };
        let (plain, due) = (of(59), of(60));
        let own = |step: Step| step.self_time().expect("self-time");
        (
            due.kind,
            due.dur_ns as f64 / plain.dur_ns as f64,
            own(due) / own(plain),
        )
    };
    let near = |value: f64, expected: f64| (value - expected).abs() < 0.06;
    let (kind, wall, own) = long("");
    assert!(
        kind == StepKind::Checkpoint && near(wall, 1.67) && near(own, 1.0),
        "{kind:?} {wall} {own}"
    );
    let (kind, wall, own) = long("undeclared=all");
    assert!(
        kind == StepKind::Train && near(wall, 1.67) && near(own, 1.7),
        "{kind:?} {wall} {own}"
    );
    let (kind, wall, own) = long("undeclared=first");
    assert!(
        kind == StepKind::Train && near(wall, 1.67) && near(own, 1.0),
        "{kind:?} {wall} {own}"
    );
}

#[test]
fn a_fault_of_something_that_is_not_there_is_an_error() {
    let spec = |fault: &str| WorldSpec {
        faults: vec![fault.parse().expect(fault)],
        ..WorldSpec::default()
    };
    for (fault, expected) in [
        (
            "slow rank=8 factor=2",
            "fault \"slow rank=8 factor=2 from=1\": there is no rank 8; there are 8",
        ),
        (
            "gap node=1 from=1s",
            "fault \"gap node=1 from=1s\": there is no node 1; there are 1",
        ),
    ] {
        let error = World::new(spec(fault)).expect_err(fault).to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    let none = World::new(WorldSpec {
        nodes: 0,
        ..WorldSpec::default()
    });
    assert_eq!(
        none.expect_err("no nodes").to_string(),
        "nodes × GPUs is 0; expected 1 to 131072 ranks"
    );
}

/// Simulates 16,384 ranks. Memory is bounded by the frames of one or two steps and does not depend on the length of the
/// job.
#[test]
fn many_ranks_stream_with_bounded_memory() {
    let mut large = world("nodes=512 gpus=8 steps=30 readings=off", &[]);
    let mut most = 0;
    let mut frames = 0u64;
    while large.next().is_some() {
        frames += 1;
        most = most.max(large.link.len());
    }
    assert!(frames > 30 * 4096);
    assert!(most < 4 * 4096, "{most}");
}
