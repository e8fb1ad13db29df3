//! Scenarios of healthy jobs: every noise with every kind of step at several sizes, and jobs with a bad path to the
//! detector.

use super::{Scenario, Seen, Suite};

/// Number of rank-steps of each healthy world. With 20 seeds, all worlds together have over 65 million.
const RANK_STEPS: u64 = 18_000;

/// Noise of healthy steps.
const NOISES: [(&str, &str); 6] = [
    ("quiet", "sigma=0.005"),
    ("sigma-2", "sigma=0.02"),
    ("sigma-11", "sigma=0.11"),
    ("tails", "sigma=0.005 tail=0.05"),
    ("drift", "sigma=0.03 autocorrelation=0.8"),
    ("drift-tails", "sigma=0.02 autocorrelation=0.6 tail=0.02"),
];

/// Kinds of steps besides the ordinary ones.
const KINDS: [(&str, &str); 6] = [
    ("plain", ""),
    ("checkpoint", "checkpoint-every=100"),
    ("undeclared", "checkpoint-every=100 undeclared=all"),
    ("first-writes", "checkpoint-every=100 undeclared=first"),
    ("warm-up", "warm-up=30 restart=70"),
    ("evaluation", "evaluate-every=120"),
];

/// The sizes: number of ranks, name, and specification.
const SIZES: [(u64, &str, &str); 6] = [
    (4, "4", "nodes=1 gpus=4"),
    (8, "8", "nodes=1 gpus=8"),
    (32, "32", "nodes=4 gpus=8 racks=2 host=on"),
    (128, "128", "nodes=16 gpus=8 racks=4"),
    (32, "fsdp-32", "nodes=4 gpus=8 framework=fsdp"),
    (
        32,
        "pipeline-32",
        "nodes=4 gpus=8 dp=4 tp=2 pp=4 micro=8 comms=on",
    ),
];

pub(super) fn scenarios() -> Vec<Scenario> {
    [healthy(), rough()].concat()
}

fn healthy() -> Vec<Scenario> {
    let mut all = Vec::new();
    for (noise, noise_words) in NOISES {
        for (kind, kind_words) in KINDS {
            for (ranks, size, size_words) in SIZES {
                // Simulate pipelines for only half of the steps, because they take more time than they add information
                // about noise.
                let steps = RANK_STEPS / ranks / if size_words.contains("pp=") { 2 } else { 1 };
                let scenario = Scenario::new(
                    Suite::Healthy,
                    format!("healthy-{noise}-{kind}-{size}"),
                    format!("{size_words} steps={steps} {noise_words} {kind_words}"),
                );
                // Permit the pause, because all ranks wait for the one that writes, declared as a checkpoint or not.
                let scenario = scenario.aside(kind == "first-writes", "single-rank-pause rank=0");
                let small = scenario.name == "healthy-sigma-11-checkpoint-128";
                all.push(if small { scenario.smoke() } else { scenario });
            }
        }
    }
    all
}

fn rough() -> Vec<Scenario> {
    let mut all = Vec::new();
    for (noise, words) in [
        ("quiet", "sigma=0.005"),
        ("sigma-11", "sigma=0.11"),
        ("tails", "tail=0.05"),
    ] {
        let world = format!("nodes=4 gpus=8 steps=500 {words}");
        let case = |name: &str| Scenario::new(Suite::Rough, format!("{name}-{noise}"), world.clone());
        all.extend([
            case("loss").fault("loss share=0.1").seen(Seen::Part),
            case("disorder").fault("reorder share=0.1").seen(Seen::Whole),
            case("twice").fault("repeat share=0.1").seen(Seen::Whole),
            case("late").fault("late rank={rank} by=5s").seen(Seen::Whole),
            case("hold")
                .fault("hold node={node} from=20s for=4s")
                .seen(Seen::Whole),
            case("all-at-once")
                .fault("loss share=0.05")
                .fault("reorder share=0.1")
                .fault("repeat share=0.05")
                .fault("late rank={rank} by=3s")
                .seen(Seen::Part),
            case("restarts")
                .fault("late rank={rank} by=2s")
                .world("restart=200 restart=350 warm-up=20"),
            case("restart-and-loss")
                .fault("loss share=0.1")
                .world("restart=250 warm-up=20")
                .seen(Seen::Part),
            case("gap")
                .fault("gap node={node} from=30s for=15s")
                .expect("telemetry-blind node={node}")
                .seen(Seen::Gap),
            case("gap-kept")
                .fault("gap node={node} from=30s for=15s steps=kept")
                .expect("telemetry-blind node={node}")
                .seen(Seen::Gap),
        ]);
    }
    let smoke = |scenario: Scenario| {
        if scenario.name == "loss-quiet" {
            scenario.smoke()
        } else {
            scenario
        }
    };
    all.into_iter().map(smoke).collect()
}
