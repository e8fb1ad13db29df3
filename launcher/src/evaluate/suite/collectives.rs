//! Scenarios of jobs without a hook. Their ranks report only the duration of their steps and of their collectives.

use super::{Scenario, Suite};

/// Specification common to all these worlds.
const BLIND: &str = "comms=on phases=off";
/// Rank-steps of each healthy world.
const RANK_STEPS: u64 = 18_000;

/// The jobs: name, number of ranks, and specification.
const JOBS: [(&str, u64, &str); 6] = [
    ("ddp-16", 16, "nodes=2 gpus=8"),
    ("fsdp-32", 32, "nodes=4 gpus=8 framework=fsdp"),
    ("tensor-32", 32, "nodes=4 gpus=8 tp=4"),
    ("pipeline-16", 16, "nodes=4 gpus=4 dp=4 pp=4 micro=8"),
    ("megatron-64", 64, "nodes=8 gpus=8 dp=8 tp=4 pp=2 micro=8"),
    (
        "undeclared-32",
        32,
        "nodes=4 gpus=8 dp=8 pp=4 micro=8 layout=undeclared",
    ),
];

/// Noise: name, specification, and the slowdowns to detect (in percent) with the number of steps for each.
type Noise = (&'static str, &'static str, [(u32, u64); 3]);
const NOISES: [Noise; 2] = [
    ("quiet", "", [(5, 400), (10, 250), (20, 200)]),
    ("noisy", "sigma=0.11", [(10, 900), (20, 400), (50, 250)]),
];

pub(super) fn scenarios() -> Vec<Scenario> {
    [slow(), links(), healthy()].concat()
}

fn slow() -> Vec<Scenario> {
    let mut all = Vec::new();
    for (job, _, world) in JOBS {
        for (noise, words, slowdowns) in NOISES {
            for (percent, steps) in slowdowns {
                let share = f64::from(percent) / 100.0;
                let scenario = Scenario::new(
                    Suite::Collectives,
                    format!("collectives-{noise}-{job}-{percent}"),
                    format!("{world} {BLIND} {words} steps={}", 200 + steps),
                );
                all.push(
                    scenario
                        .fault(format!("slow rank={{rank}} factor={} from=200", 1.0 + share))
                        .expect("straggler rank={rank}")
                        .slower(share),
                );
            }
        }
    }
    all
}

fn links() -> Vec<Scenario> {
    [
        (
            "collectives-link-of-a-node",
            "nodes=8 gpus=4 steps=500 dp=8 tp=4 transfer=40ms",
            "link node={node} factor=3 from=200",
            "slow-link link={node}",
        ),
        (
            "collectives-link-of-two",
            "nodes=8 gpus=4 steps=500 dp=4 tp=4 pp=2 micro=4 hop=5ms",
            "link node=1 peer=5 factor=4 from=200",
            "slow-link link=1-5",
        ),
    ]
    .into_iter()
    .map(|(name, world, fault, expect)| {
        Scenario::new(Suite::Collectives, name, format!("{world} {BLIND}"))
            .fault(fault)
            .expect(expect)
    })
    .collect()
}

fn healthy() -> Vec<Scenario> {
    let mut all = Vec::new();
    for (job, ranks, world) in JOBS {
        for (noise, words) in [
            ("quiet", "sigma=0.005"),
            ("sigma-11", "sigma=0.11"),
            ("tails", "sigma=0.005 tail=0.05"),
            ("drift-tails", "sigma=0.02 autocorrelation=0.6 tail=0.02"),
            ("lossy", "sigma=0.01"),
        ] {
            let name = format!("collectives-healthy-{noise}-{job}");
            let steps = RANK_STEPS / ranks;
            let scenario = Scenario::new(
                Suite::Collectives,
                name,
                format!("{world} {BLIND} {words} steps={steps}"),
            );
            let lossy = noise == "lossy";
            all.push(if lossy {
                scenario.fault("loss share=0.1").fault("reorder share=0.1")
            } else {
                scenario
            });
        }
    }
    all
}
