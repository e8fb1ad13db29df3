//! Scenarios of jobs with imbalanced work. No rank is slow, but the work is divided unevenly.

use super::{Scenario, Suite};

pub(super) fn scenarios() -> Vec<Scenario> {
    let mut all = Vec::new();
    for (name, world) in [
        (
            "stages-last-30",
            "nodes=4 gpus=8 dp=8 pp=4 micro=8 stages=1,1,1,1.3",
        ),
        (
            "stages-last-15",
            "nodes=4 gpus=8 dp=8 pp=4 micro=8 stages=1,1,1,1.15",
        ),
        (
            "stages-first-50",
            "nodes=8 gpus=8 dp=8 pp=8 micro=16 stages=1.5,1,1,1,1,1,1,1",
        ),
        (
            "stages-noisy",
            "nodes=4 gpus=8 dp=8 pp=4 micro=8 stages=1,1,1,1.3 sigma=0.11",
        ),
        (
            "stages-megatron",
            "nodes=8 gpus=8 dp=4 tp=4 pp=4 micro=8 stages=1,1,1,1.4 comms=on",
        ),
        (
            "stages-drift",
            "nodes=4 gpus=8 dp=16 pp=2 micro=8 stages=1,1.3 sigma=0.02 autocorrelation=0.7",
        ),
        (
            "stages-checkpoint",
            "nodes=4 gpus=8 dp=8 pp=4 micro=8 stages=1,1,1,1.3 checkpoint-every=100",
        ),
        (
            "stages-undeclared",
            "nodes=4 gpus=8 dp=8 pp=4 micro=8 stages=1,1,1,1.3 layout=undeclared comms=on",
        ),
    ] {
        all.push(job(name, world, 700).expect("stage-imbalance job"));
    }
    for (name, world) in [
        ("packed-16", "nodes=2 gpus=8 packed=0.11"),
        ("packed-64", "nodes=8 gpus=8 packed=0.11"),
        ("packed-fsdp", "nodes=4 gpus=8 packed=0.11 framework=fsdp"),
        ("packed-mild", "nodes=4 gpus=8 packed=0.06"),
        ("packed-tails", "nodes=4 gpus=8 packed=0.11 tail=0.02"),
        ("packed-pipeline", "nodes=4 gpus=8 dp=16 pp=2 micro=8 packed=0.11"),
        (
            "packed-checkpoint",
            "nodes=4 gpus=8 packed=0.11 checkpoint-every=100 undeclared=first",
        ),
    ] {
        let scenario = job(name, world, 900).expect("sequence-imbalance job");
        all.push(scenario.aside(world.contains("undeclared=first"), "single-rank-pause rank=0"));
    }
    // The amount of work is not declared here, so its variance appears as noise. No rank may be named for it.
    all.push(
        job("packed-untold", "nodes=4 gpus=8 packed=0.11 work=undeclared", 900)
            .expect("?sequence-imbalance job"),
    );
    for (name, world) in [
        ("experts-30", "nodes=4 gpus=8 dp=32 ep=8 experts=0.3"),
        ("experts-50", "nodes=4 gpus=8 dp=32 ep=4 experts=0.5"),
        (
            "experts-pipeline",
            "nodes=4 gpus=8 dp=16 pp=2 ep=4 micro=8 experts=0.4",
        ),
    ] {
        all.push(job(name, world, 900).expect("expert-imbalance job"));
    }
    all.push(
        job(
            "stages-and-packed",
            "nodes=4 gpus=8 dp=8 pp=4 micro=8 stages=1,1,1,1.4 packed=0.11",
            900,
        )
        .expect("stage-imbalance job")
        .expect("?sequence-imbalance job"),
    );
    all
}

fn job(name: &str, world: &str, steps: u64) -> Scenario {
    Scenario::new(Suite::Imbalance, name, format!("{world} steps={steps}"))
}
