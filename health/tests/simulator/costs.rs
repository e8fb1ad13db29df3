//! Tests that the true cost is the difference between two worlds that differ in one thing.

use paceline_health::verdict::Finding;

use super::{run, wall};

/// Returns the additional seconds of rank 0 in all steps of one world compared with another. The tests below need
/// tolerances, because clock jitter depends on time and a slow world reaches each step later.
fn longer(text: &str, than: (&str, &[&str]), faults: &[&str]) -> f64 {
    let (frames, _) = run(text, faults);
    let (without, _) = run(than.0, than.1);
    wall(&frames, 0) - wall(&without, 0)
}

fn assert_close(told: f64, measured: f64, what: &str) {
    assert!(
        (told / measured - 1.0).abs() < 0.01,
        "{what}: {told} for {measured}"
    );
}

#[test]
fn a_fault_costs_what_the_world_without_it_saves() {
    for (text, fault) in [
        ("gpus=8 sigma=0.02", "slow rank=3 factor=1.25 from=100 until=300"),
        ("gpus=8 sigma=0.02", "slow rank=3 factor=1.25 every=40 for=20"),
        ("gpus=8 framework=fsdp", "slow rank=3 factor=1.25 moves=50"),
        (
            "nodes=4 gpus=4 tp=2 pp=4 micro=8",
            "slow rank=9 factor=1.3 from=50",
        ),
        (
            "nodes=4 gpus=4 tp=2 pp=4 micro=8",
            "slow node=3 factor=1.1 cause=gc",
        ),
        ("nodes=4 gpus=4 racks=2 transfer=40ms", "link node=1 factor=5"),
        (
            "nodes=2 gpus=4 tp=4 exchange=40ms",
            "slow rank=2 factor=4 cause=nvlink",
        ),
        ("gpus=8 data=0.1", "slow rank=all factor=1.2 cause=data-loading"),
        ("gpus=8 checkpoint-every=20", "checkpoint-slow rank=2 factor=4"),
        ("gpus=8 warm-up=40", "warm-up-slow rank=2 factor=2"),
        ("gpus=8", "birth factor=1.2"),
        ("gpus=8 restart=150", "regress factor=1.15 from=151"),
        ("gpus=8", "spikes rank=2 share=0.1 factor=2"),
    ] {
        let text = format!("{text} steps=400 readings=off");
        let (_, world) = run(&text, &[fault]);
        let truth = &world.truth()[0];
        let measured = longer(&text, (&text, &[]), &[fault]) * f64::from(world.spec().ranks());
        assert!(measured > 1.0, "{fault} is felt: {measured}");
        assert_close(truth.lost_gpu_s, measured, fault);
        assert_eq!(world.lost_gpu_s(), truth.lost_gpu_s);
        assert!(truth.since_step.is_some(), "{truth:?}");
    }
}

/// A delay that is hidden behind a longer one costs nothing. All delays together cost the difference to the healthy
/// world.
#[test]
fn what_hides_behind_another_costs_nothing() {
    let text = "gpus=8 steps=300 readings=off";
    let faults = ["slow rank=3 factor=1.5", "slow rank=5 factor=1.2"];
    let (_, world) = run(text, &faults);
    let [large, small] = world.truth() else {
        panic!("two truths")
    };
    // (Except for a warm-up step, in which any rank may be the slowest.)
    assert!(small.lost_gpu_s < 1e-4 * large.lost_gpu_s, "{small:?}");
    // Without the large delay, the small one remains.
    let between = longer(text, (text, &faults[1..]), &faults) * 8.0;
    assert_close(large.lost_gpu_s, between, "the large one");
    let healthy = longer(text, (text, &[]), &faults) * 8.0;
    assert_close(world.lost_gpu_s(), healthy, "both");
    assert!(world.lost_gpu_s() > 1.4 * large.lost_gpu_s);
    assert_eq!(small.since_step, Some(1), "the rank was slow all the same");
}

/// A slow rank of a stage with slack costs next to nothing.
#[test]
fn slack_in_a_pipeline_costs_nothing() {
    let text = "nodes=4 gpus=4 pp=4 tp=2 micro=16 stages=1,1,1,1.4 steps=100 readings=off";
    // Rank 4 is in the second stage, so its delay matters only for the first micro-batch.
    let (_, world) = run(text, &["slow rank=4 factor=1.1"]);
    let slack = world.truth()[0].lost_gpu_s;
    let (_, world) = run(text, &["slow rank=12 factor=1.1"]);
    let critical = world.truth()[0].lost_gpu_s;
    assert!(slack < 0.1 * critical, "{slack} {critical}");
    assert!(slack >= 0.0);
}

#[test]
fn unevenness_costs_what_an_even_world_saves() {
    let base = "readings=off steps=300 sigma=0.005";
    for (uneven, even, finding) in [
        (
            "nodes=4 gpus=4 tp=2 pp=4 micro=8 stages=1,1,1,1.4",
            "nodes=4 gpus=4 tp=2 pp=4 micro=8 stages=1.1,1.1,1.1,1.1",
            Finding::StageImbalance,
        ),
        ("gpus=8 packed=0.11", "gpus=8", Finding::SequenceImbalance),
        (
            "nodes=2 gpus=4 pp=2 micro=4 packed=0.11",
            "nodes=2 gpus=4 pp=2 micro=4",
            Finding::SequenceImbalance,
        ),
        ("gpus=8 ep=4 experts=0.3", "gpus=8 ep=4", Finding::ExpertImbalance),
        ("gpus=8 gc-every=20", "gpus=8", Finding::GcPause),
    ] {
        let (uneven, even) = (format!("{base} {uneven}"), format!("{base} {even}"));
        let (_, world) = run(&uneven, &[]);
        let costs = world.own_costs();
        let [cost] = costs.as_slice() else {
            panic!("{uneven}: {costs:?}")
        };
        assert_eq!(cost.expected.finding, finding);
        let measured = longer(&uneven, (&even, &[]), &[]) * f64::from(world.spec().ranks());
        assert!(
            (cost.lost_gpu_s / measured - 1.0).abs() < 0.03,
            "{uneven}: {cost:?} for {measured}"
        );
        assert!(
            cost.lost_gpu_s > 0.01 * cost.of_gpu_s && cost.lost_gpu_s < cost.of_gpu_s,
            "{cost:?}"
        );
    }
}

/// The truth lists the affected ranks one by one.
#[test]
fn truth_knows_whom_a_moving_fault_struck() {
    let (_, world) = run(
        "gpus=8 steps=300 readings=off",
        &["slow rank=3 factor=1.3 from=51 moves=50"],
    );
    let truth = &world.truth()[0];
    assert!(truth.ranks.len() > 2, "{truth:?}");
    assert!(truth.ranks.iter().any(|rank| rank.0 == 3));
    let (_, world) = run(
        "nodes=4 gpus=4 racks=2 steps=100 readings=off",
        &["slow rack=1 factor=1.2 from=10 until=50"],
    );
    let truth = &world.truth()[0];
    let ranks: Vec<u32> = truth.ranks.iter().map(|rank| rank.0).collect();
    assert_eq!(ranks, (8..16).collect::<Vec<u32>>());
    assert_eq!((truth.since_step, truth.last_step), (Some(10), Some(50)));
}
