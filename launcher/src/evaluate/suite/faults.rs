//! Scenarios of all other faults, and of the causes of slowness.

use super::{Scenario, Seen, Suite};

pub(super) fn scenarios() -> Vec<Scenario> {
    [
        shapes(),
        places(),
        job_wide(),
        hangs(),
        causes(),
        unlike_their_counters(),
        job_wide_causes(),
    ]
    .concat()
}

fn case(name: &str, world: &str) -> Scenario {
    Scenario::new(Suite::Faults, name, world)
}

/// Returns scenarios in which slowness is temporary, intermittent, moves, or is in several places.
fn shapes() -> Vec<Scenario> {
    let world = "nodes=4 gpus=8 steps=500";
    vec![
        case("short-100", world)
            .fault("slow rank={rank} factor=1.3 from=150 until=250")
            .expect("straggler rank={rank}"),
        case("short-30", world)
            .fault("slow rank={rank} factor=2 from=150 until=180")
            .expect("straggler rank={rank}"),
        case("on-and-off", world)
            .fault("slow rank={rank} factor=1.3 from=100 every=80 for=40")
            .expect("straggler rank={rank}"),
        case("on-and-off-noisy", "nodes=4 gpus=8 steps=900 sigma=0.11")
            .fault("slow rank={rank} factor=1.5 from=100 every=200 for=100")
            .expect("straggler rank={rank}"),
        case("two-at-once", world)
            .fault("slow rank={rank} factor=1.2 from=150")
            .fault("slow rank={other} factor=1.5 from=150")
            .expect("straggler rank={rank}")
            .expect("straggler rank={other}"),
        case("two-in-turn", world)
            .fault("slow rank={rank} factor=1.2 from=100")
            .fault("slow rank={other} factor=1.4 from=300")
            .expect("straggler rank={rank}")
            .expect("straggler rank={other}"),
        case("two-in-a-pipeline", "nodes=4 gpus=8 dp=8 pp=4 micro=8 steps=500")
            .fault("slow rank={rank} factor=1.3 from=150")
            .fault("slow rank={other} factor=1.3 from=150")
            .expect("straggler rank={rank}")
            .expect("straggler rank={other}"),
        case("moving", "nodes=4 gpus=8 steps=600")
            .fault("slow rank={rank} factor=1.3 from=100 moves=100")
            .expect("straggler any-rank"),
        case("two-percent", world)
            .fault("slow rank={rank} factor=1.02 from=150")
            .expect("?straggler rank={rank}"),
    ]
}

/// Returns scenarios with slow nodes, racks and links.
fn places() -> Vec<Scenario> {
    let mut all = Vec::new();
    for percent in [10, 30] {
        let factor = 1.0 + f64::from(percent) / 100.0;
        all.push(
            case(&format!("node-{percent}"), "nodes=8 gpus=8 steps=400")
                .fault(format!("slow node={{node}} factor={factor} from=150"))
                .expect("straggler-node node={node}"),
        );
        all.push(
            case(&format!("rack-{percent}"), "nodes=16 gpus=4 racks=4 steps=400")
                .fault(format!("slow rack={{rack}} factor={factor} from=150"))
                .expect("straggler-node rack={rack}"),
        );
    }
    all.extend([
        case("node-birth", "nodes=8 gpus=8 steps=300")
            .fault("slow node={node} factor=1.2 from=1")
            .expect("straggler-node node={node}"),
        case(
            "node-in-a-pipeline",
            "nodes=8 gpus=8 dp=16 pp=4 micro=8 steps=400",
        )
        .fault("slow node={node} factor=1.2 from=150")
        .expect("straggler-node node={node}"),
        case(
            "link-of-a-node",
            "nodes=8 gpus=4 comms=on steps=500 dp=8 tp=4 transfer=40ms",
        )
        .fault("link node={node} factor=3 from=200")
        .expect("slow-link link={node}"),
        // Node 5 has the second stage of node 1's pipeline, so no other communicator uses this link.
        case(
            "link-of-two",
            "nodes=8 gpus=4 comms=on steps=500 dp=4 tp=4 pp=2 micro=4 hop=5ms",
        )
        .fault("link node=1 peer=5 factor=4 from=200")
        .expect("slow-link link=1-5"),
    ]);
    all
}

/// Returns scenarios with faults of the whole job, and of one rank at certain steps only.
fn job_wide() -> Vec<Scenario> {
    vec![
        case("all-slow", "nodes=4 gpus=8 steps=500")
            .fault("regress factor=1.15 from=250")
            .expect("all-ranks-slow job"),
        case("all-slow-power", "nodes=4 gpus=8 steps=500")
            .fault("slow rank=all factor=1.15 from=250 cause=power")
            .expect("all-ranks-slow job")
            .expect("?gpu-throttled any-rank of=0"),
        case("restart-regression", "nodes=4 gpus=8 steps=500 restart=250")
            .fault("regress factor=1.15 from=251")
            .expect("step-regression job"),
        case("birth", "nodes=4 gpus=8 steps=300 baseline=on")
            .fault("birth factor=1.2")
            .expect("slow-from-birth job"),
        case("version-skew", "nodes=4 gpus=8 steps=200")
            .fault("skew node={node}")
            .expect("version-skew node={node}"),
        case("checkpoint-slow", "nodes=4 gpus=8 steps=800 checkpoint-every=50")
            .fault("checkpoint-slow rank={rank} factor=3 from=100")
            .expect("slow-checkpoint rank={rank}"),
        case("warm-up-slow", "nodes=4 gpus=8 steps=300 warm-up=30")
            .fault("warm-up-slow rank={rank} factor=3")
            .expect("slow-warm-up rank={rank}"),
        case("data-loading-everywhere", "nodes=4 gpus=8 steps=500")
            .fault("slow rank=all factor=1.3 from=200 cause=data-loading")
            .expect("data-loading job"),
        case("cpu-contention-moving", "nodes=4 gpus=8 steps=800")
            .fault("slow rank={rank} factor=1.3 from=100 moves=10 cause=cpu-contention")
            .expect("cpu-contention job")
            // Permit naming the currently slow rank until the detector knows that the fault moves.
            .expect("?straggler any-rank of=0"),
        case("gc-everywhere", "nodes=4 gpus=8 steps=800 gc-every=40 gc=150ms").expect("gc-pause job"),
        case("communication-bound", "nodes=4 gpus=8 steps=400 transfer=150ms")
            .expect("communication-bound job"),
    ]
}

/// Returns scenarios with hangs.
fn hangs() -> Vec<Scenario> {
    vec![
        case("silent-rank", "nodes=2 gpus=8 steps=300")
            .fault("silent rank={rank} from=150")
            .expect("rank-silent rank={rank}"),
        case("silent-for-a-while", "nodes=2 gpus=8 steps=300")
            .fault("silent rank={rank} from=150 for=90s")
            .expect("rank-silent rank={rank}"),
        case("hang", "nodes=2 gpus=8 steps=300")
            .fault("silent rank=all from=150")
            .expect("job-hang job"),
        case("blind-for-ever", "nodes=4 gpus=8 steps=400")
            .fault("gap node={node} from=40s")
            .expect("telemetry-blind node={node}")
            .seen(Seen::Gap),
    ]
}

/// Returns scenarios with slow ranks, nodes and links. All have the counters of their cause, except one that has none.
fn causes() -> Vec<Scenario> {
    let of = |cause: &str| {
        let shown = if cause == "gc" { "gc-pause" } else { cause };
        let shown = if cause == "none" { "unknown" } else { shown };
        (cause.to_owned(), shown.to_owned())
    };
    let mut all = Vec::new();
    for cause in [
        "none",
        "thermal",
        "power",
        "clock-stuck",
        "ecc",
        "pcie",
        "data-loading",
        "cpu-contention",
        "gc",
    ] {
        let (fault, shown) = of(cause);
        for (name, noise, factor, onset) in [
            ("quiet", "", 1.3, 150),
            ("noisy", "sigma=0.11", 1.5, 150),
            ("birth", "", 1.2, 1),
        ] {
            all.push(
                Scenario::new(
                    Suite::Causes,
                    format!("cause-{cause}-{name}"),
                    format!("nodes=4 gpus=8 host=on steps={} {noise}", onset + 600),
                )
                .fault(format!(
                    "slow rank={{rank}} factor={factor} from={onset} cause={fault}"
                ))
                .expect(format!("straggler rank={{rank}} cause={shown}"))
                .shows(cause, "rank={rank}"),
            );
        }
    }
    for cause in ["thermal", "power", "cpu-contention"] {
        all.push(
            Scenario::new(
                Suite::Causes,
                format!("cause-{cause}-node"),
                "nodes=8 gpus=8 host=on steps=600",
            )
            .fault(format!("slow node={{node}} factor=1.3 from=150 cause={cause}"))
            .expect(format!("straggler-node node={{node}} cause={cause}"))
            .shows(cause, "rank-on={node}"),
        );
    }
    for (cause, world) in [
        (
            "network",
            "nodes=8 gpus=4 comms=on host=on steps=600 transfer=40ms",
        ),
        (
            "nvlink",
            "nodes=8 gpus=4 comms=on host=on steps=600 tp=4 exchange=40ms",
        ),
    ] {
        all.push(
            Scenario::new(Suite::Causes, format!("cause-{cause}-node"), world)
                .fault(format!("slow node={{node}} factor=4 from=150 cause={cause}"))
                .expect(format!("slow-link link={{node}} cause={cause}"))
                .shows(cause, "rank-on={node}"),
        );
    }
    // Here the cause comes from the simulator's original model, which is the physics of the GPU itself.
    all.push(
        Scenario::new(Suite::Causes, "cause-heat", "nodes=4 gpus=8 host=on steps=1500")
            .fault("heat gpu={rank} from=60s")
            .expect("straggler rank={rank} cause=thermal")
            .shows("thermal", "rank={rank}"),
    );
    all
}

/// Returns scenarios with misleading counters: links of GPUs that idle between kernels, and cores that are
/// oversubscribed on all ranks. In addition, ranks are slow for another reason.
fn unlike_their_counters() -> Vec<Scenario> {
    let mut all = Vec::new();
    for cause in ["none", "pcie", "data-loading"] {
        let shown = if cause == "none" { "unknown" } else { cause };
        let name = format!("cause-{cause}-idle-links");
        let world = "nodes=2 gpus=8 host=on idle=0.3 steps=450";
        let scenario = Scenario::new(Suite::Causes, name, world)
            .fault(format!("slow rank={{rank}} factor=1.3 from=150 cause={cause}"))
            .expect(format!("straggler rank={{rank}} cause={shown}"));
        all.push(scenario.shows(cause, "rank={rank}"));
    }
    let crowded = "nodes=1 gpus=8 host=on oversubscribed=0.7 steps=600";
    for (name, fault, shown) in [
        ("cause-sleeper-oversubscribed", "none", "unknown"),
        (
            "cause-cpu-contention-oversubscribed",
            "cpu-contention",
            "cpu-contention",
        ),
        (
            "cause-data-loading-oversubscribed",
            "data-loading",
            "data-loading",
        ),
    ] {
        let scenario = Scenario::new(Suite::Causes, name, crowded)
            .fault(format!("slow rank={{rank}} factor=1.3 from=150 cause={fault}"))
            .expect(format!("straggler rank={{rank}} cause={shown}"));
        all.push(scenario);
    }
    // No rank is slow in these. One rank writes or evaluates periodically, or the sequences differ.
    all.push(
        Scenario::new(Suite::Causes, "writer-oversubscribed", crowded)
            .world("checkpoint-every=50 checkpoint=12 undeclared=first")
            .expect("?single-rank-pause rank=0"),
    );
    all.push(
        Scenario::new(Suite::Causes, "sequences-oversubscribed", crowded)
            .world("packed=0.11 work=undeclared")
            .expect("?sequence-imbalance job"),
    );
    all
}

/// Returns scenarios with heat and power limits on all GPUs at once. The peers are alike, so only the history shows the
/// fault.
fn job_wide_causes() -> Vec<Scenario> {
    let mut all = Vec::new();
    for cause in ["thermal", "power", "none"] {
        for (size, world) in [
            ("job", "nodes=4 gpus=8 host=on steps=500"),
            ("one-rank", "nodes=1 gpus=1 host=on steps=500"),
        ] {
            let shown = if cause == "none" { "unknown" } else { cause };
            let scenario = Scenario::new(Suite::Causes, format!("cause-{cause}-{size}"), world)
                .fault(format!("slow rank=all factor=1.15 from=250 cause={cause}"))
                .expect(format!("all-ranks-slow job cause={shown}"));
            all.push(scenario.shows(cause, "any-rank"));
        }
    }
    all
}
