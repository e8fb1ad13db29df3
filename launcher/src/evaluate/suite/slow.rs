//! Scenarios with one slow rank. They show if it is found, how soon, and the smallest slowdown that is found.

use super::{Scenario, Suite};

/// Number of steps before a fault that does not start with the job.
const ONSET: u64 = 200;

/// The jobs: name and specification. One rank in each will be slow. The first job is combined with every slowdown at
/// every onset, the others with one at a time.
const QUIET: [(&str, &str); 8] = [
    ("ddp-16", "nodes=2 gpus=8"),
    ("ddp-64", "nodes=8 gpus=8"),
    ("fsdp-32", "nodes=4 gpus=8 framework=fsdp"),
    ("pipeline-32", "nodes=4 gpus=8 dp=8 pp=4 micro=8"),
    ("megatron-64", "nodes=8 gpus=8 dp=8 tp=4 pp=2 micro=8 comms=on"),
    ("context-32", "nodes=4 gpus=8 dp=8 cp=4"),
    ("experts-32", "nodes=4 gpus=8 dp=32 ep=4"),
    (
        "undeclared-32",
        "nodes=4 gpus=8 dp=8 pp=4 micro=8 layout=undeclared comms=on",
    ),
];

/// Jobs whose step times vary by 11 %, for a declared reason (packed) or an undeclared one.
const NOISY: [(&str, &str); 5] = [
    ("sigma-64", "nodes=8 gpus=8 sigma=0.11"),
    ("sigma-16", "nodes=2 gpus=8 sigma=0.11"),
    ("packed-32", "nodes=4 gpus=8 packed=0.11"),
    ("packed-untold-32", "nodes=4 gpus=8 packed=0.11 work=undeclared"),
    (
        "packed-pipeline-32",
        "nodes=4 gpus=8 dp=8 pp=4 micro=8 packed=0.11",
    ),
];

pub(super) fn scenarios() -> Vec<Scenario> {
    let quiet = persistent(
        Suite::Quiet,
        &QUIET,
        &[(5, 400), (10, 250), (20, 200), (50, 150), (100, 150), (300, 150)],
    );
    let noisy = persistent(
        Suite::Noisy,
        &NOISY,
        &[(10, 700), (20, 400), (50, 250), (100, 200), (300, 150)],
    );
    [quiet, noisy, pace(), floor()].concat()
}

/// Combines each job with each slowdown. A slowdown is in percent and has a number of steps. The fault starts with the
/// first step or after [`ONSET`].
fn persistent(suite: Suite, jobs: &[(&str, &str)], slowdowns: &[(u32, u64)]) -> Vec<Scenario> {
    let mut all = Vec::new();
    for (place, job) in jobs.iter().enumerate() {
        for (turn, (percent, steps)) in slowdowns.iter().enumerate() {
            for (onset, from) in [1, ONSET].into_iter().enumerate() {
                if place > 0 && (place + turn + onset) % 2 == 1 {
                    continue;
                }
                let scenario = slow(suite, *job, *percent, from, *steps);
                let small = scenario.name == "quiet-ddp-16-20-later";
                all.push(if small { scenario.smoke() } else { scenario });
            }
        }
    }
    all
}

/// Creates a job of `steps` steps in which one rank is slower by `percent` from step `from` on.
fn slow(suite: Suite, job: (&str, &str), percent: u32, from: u64, steps: u64) -> Scenario {
    let (name, world) = job;
    let onset = if from > 1 { "later" } else { "birth" };
    let share = f64::from(percent) / 100.0;
    Scenario::new(
        suite,
        format!("{}-{name}-{percent}-{onset}", suite.name()),
        format!("{world} steps={}", from + steps),
    )
    .fault(format!("slow rank={{rank}} factor={} from={from}", 1.0 + share))
    .expect("straggler rank={rank}")
    .aside(world.contains("packed="), "sequence-imbalance job")
    .slower(share)
}

/// Returns the three cases that have a target for the number of steps.
fn pace() -> Vec<Scenario> {
    let case = |name: &str, noise: &str, factor: f64, steps: u64| {
        Scenario::new(
            Suite::Pace,
            name,
            format!("nodes=8 gpus=8 {noise} steps={}", ONSET + steps),
        )
        .fault(format!("slow rank={{rank}} factor={factor} from={ONSET}"))
        .expect("straggler rank={rank}")
        .slower(factor - 1.0)
        .times(4)
    };
    vec![
        case("pace-20-quiet", "sigma=0.005", 1.2, 100),
        case("pace-20-noisy", "sigma=0.11", 1.2, 300),
        case("pace-10-noisy", "sigma=0.11", 1.1, 700),
    ]
}

/// Returns cases with slowdowns around the smallest that can be detected.
fn floor() -> Vec<Scenario> {
    let case = |permille: u32| {
        let share = f64::from(permille) / 1000.0;
        Scenario::new(
            Suite::Floor,
            format!("floor-{permille}"),
            format!("nodes=8 gpus=8 sigma=0.005 steps={}", ONSET + 1000),
        )
        .fault(format!("slow rank={{rank}} factor={} from={ONSET}", 1.0 + share))
        .expect("straggler rank={rank}")
        .slower(share)
        .times(2)
    };
    // Make the verdict optional, because the detector tolerates two percent. Naming the rank is correct, and not naming
    // it is no mistake.
    let tolerated = Scenario {
        expect: vec!["?straggler rank={rank}".to_owned()],
        ..case(20)
    };
    vec![tolerated, case(25), case(30), case(40), case(50)]
}
