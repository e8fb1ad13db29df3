//! Scenarios without a hook in which collectives overlap with compute, as the NCCL plugin reports them, so that no wait
//! is exposed. There are also interleaved pipelines, and jobs that do not declare their layout.

use super::{Scenario, Suite};

/// Specification common to all worlds with overlap.
const BESIDE: &str = "comms=gpu phases=off";
/// Rank-steps of each healthy world.
const RANK_STEPS: u64 = 54_000;

/// A job: name, number of ranks, and specification.
type Job = (&'static str, u64, &'static str);
const OVERLAP: [Job; 9] = [
    ("fsdp-8", 8, "gpus=8 framework=fsdp beside=32"),
    ("fsdp-32", 32, "nodes=4 gpus=8 framework=fsdp beside=48"),
    ("ddp-16", 16, "nodes=2 gpus=8 beside=8"),
    ("ddp-32", 32, "nodes=4 gpus=8 beside=100 transfer=2ms"),
    ("tensor-32", 32, "nodes=4 gpus=8 tp=4 beside=16"),
    (
        "fsdp-tensor-32",
        32,
        "nodes=4 gpus=8 tp=4 framework=fsdp beside=32",
    ),
    (
        "interleaved-32",
        32,
        "nodes=4 gpus=8 dp=8 pp=4 micro=8 chunks=2 comms=on phases=on",
    ),
    ("pipeline-plugin-32", 32, "nodes=4 gpus=8 dp=8 pp=4 micro=8"),
    (
        "interleaved-plugin-32",
        32,
        "nodes=4 gpus=8 dp=8 pp=4 micro=8 chunks=2",
    ),
];
const UNDECLARED: [Job; 7] = [
    (
        "fsdp-tensor-32",
        32,
        "nodes=4 gpus=8 tp=4 framework=fsdp beside=32 comms=gpu phases=off",
    ),
    (
        "tensor-32",
        32,
        "nodes=4 gpus=8 tp=4 beside=16 comms=gpu phases=off",
    ),
    ("tensor-hook-32", 32, "nodes=4 gpus=8 tp=4 comms=on"),
    (
        "pipeline-plugin-16",
        16,
        "nodes=4 gpus=4 dp=4 pp=4 micro=8 comms=gpu phases=off",
    ),
    (
        "pipeline-16",
        16,
        "nodes=4 gpus=4 dp=4 pp=4 micro=8 comms=on phases=off",
    ),
    (
        "pipeline-hook-32",
        32,
        "nodes=4 gpus=8 dp=8 pp=4 micro=8 comms=on",
    ),
    ("context-hook-32", 32, "nodes=4 gpus=8 dp=8 cp=4 comms=on"),
];

/// Noise: name, specification, and the slowdowns to detect (in percent) with the number of steps for each.
type Noise = (&'static str, &'static str, [(u32, u64); 3]);
const NOISES: [Noise; 2] = [
    ("quiet", "", [(5, 400), (10, 250), (25, 200)]),
    ("noisy", "sigma=0.11", [(10, 900), (25, 400), (50, 250)]),
];

pub(super) fn scenarios() -> Vec<Scenario> {
    let undeclared =
        UNDECLARED.map(|(name, ranks, world)| (name, ranks, format!("{world} layout=undeclared")));
    let overlap = OVERLAP.map(|(name, ranks, world)| (name, ranks, format!("{BESIDE} {world}")));
    let mut all = of(Suite::Overlap, &overlap);
    all.push(
        Scenario::new(
            Suite::Overlap,
            "overlap-all-slow-fsdp-32",
            format!("{} {BESIDE} steps=400", OVERLAP[1].2),
        )
        .fault("slow rank=all factor=1.15 from=200")
        .expect("all-ranks-slow job"),
    );
    all.extend(of(Suite::Undeclared, &undeclared));
    all
}

fn of(suite: Suite, jobs: &[(&str, u64, String)]) -> Vec<Scenario> {
    let mut all = Vec::new();
    for (place, (job, ranks, world)) in jobs.iter().enumerate() {
        for (noise, words, slowdowns) in NOISES {
            for (turn, (percent, steps)) in slowdowns.into_iter().enumerate() {
                // Start the fault alternately with the job and later, so that each job and each slowdown gets both.
                let from = if (place + turn) % 2 == 0 { 1 } else { 200 };
                let share = f64::from(percent) / 100.0;
                let name = format!("{}-{noise}-{job}-{percent}", suite.name());
                let scenario = Scenario::new(suite, name, format!("{world} {words} steps={}", from + steps))
                    .fault(format!("slow rank={{rank}} factor={} from={from}", 1.0 + share))
                    .expect("straggler rank={rank}");
                all.push(scenario.slower(share));
            }
        }
        for (noise, words) in [
            ("quiet", "sigma=0.005"),
            ("sigma-11", "sigma=0.11"),
            ("tails", "sigma=0.005 tail=0.05"),
            ("drift-tails", "sigma=0.02 autocorrelation=0.6 tail=0.02"),
            ("offsets", "sigma=0.005 offset=0.006"),
            ("lossy", "sigma=0.01"),
        ] {
            let name = format!("{}-healthy-{noise}-{job}", suite.name());
            let steps = RANK_STEPS / ranks;
            let scenario = Scenario::new(suite, name, format!("{world} {words} steps={steps}"));
            all.push(match noise {
                "lossy" => scenario.fault("loss share=0.1").fault("reorder share=0.1"),
                _ => scenario,
            });
        }
    }
    all
}
