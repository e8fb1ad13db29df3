//! One rank slower than it should be: whether it is found, how soon, and how little is enough.

use super::{Scenario, Suite};

/// Steps before a fault that does not begin with the job.
const ONSET: u64 = 200;

/// Jobs by name; one rank in each will be slow.
const JOBS: [(&str, &str); 2] = [("ddp-16", "nodes=2 gpus=8"), ("ddp-64", "nodes=8 gpus=8")];

pub(super) fn scenarios() -> Vec<Scenario> {
    [quiet(), noisy(), pace(), floor()].concat()
}

/// One slow rank: of a job, slower by `percent`, from the first step or from [`ONSET`] on, for `steps` steps.
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
    .slower(share)
}

fn quiet() -> Vec<Scenario> {
    let mut all = Vec::new();
    for (place, job) in JOBS.into_iter().enumerate() {
        for (turn, (percent, steps)) in [(5, 400), (10, 200), (20, 150), (50, 120), (100, 100), (300, 100)]
            .into_iter()
            .enumerate()
        {
            // The plain job meets every onset, the others in turn.
            let both = place == 0;
            if both || (place + turn) % 2 == 0 {
                all.push(slow(Suite::Quiet, job, percent, 1, steps));
            }
            if both || (place + turn) % 2 == 1 {
                let later = slow(Suite::Quiet, job, percent, ONSET, steps);
                all.push(if both && percent == 20 {
                    later.smoke()
                } else {
                    later
                });
            }
        }
    }
    all
}

fn noisy() -> Vec<Scenario> {
    let mut all = Vec::new();
    for job in [
        ("sigma-16", "nodes=2 gpus=8 sigma=0.11"),
        ("sigma-64", "nodes=8 gpus=8 sigma=0.11"),
    ] {
        for (percent, steps) in [(10, 700), (20, 400), (50, 200), (100, 150), (300, 100)] {
            all.push(slow(Suite::Noisy, job, percent, 1, steps));
            all.push(slow(Suite::Noisy, job, percent, ONSET, steps));
        }
    }
    all
}

/// The three cases for which a number of steps is asked.
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

/// Slowdowns around the smallest that can be told.
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
    // Two percent is what the detector tolerates: to name the rank is right, to be silent is not wrong.
    let tolerated = Scenario {
        expect: vec!["?straggler rank={rank}".to_owned()],
        ..case(20)
    };
    vec![tolerated, case(25), case(30), case(40), case(50)]
}
