//! Tests simulated fleets. Each fault must be found with every seed and size, and a healthy fleet must have no
//! findings.

use std::time::Instant;

use paceline_health::preflight::{Metric, Outcome, Place, Report};
use paceline_nccl_bench::preflight::{Brief, Mode, SimFleet, conduct};

const SIZES: [u32; 3] = [4, 64, 512];
const SEEDS: u64 = 20;

fn run(script: &str) -> Report {
    run_in(Mode::Quick, script)
}

fn run_in(mode: Mode, script: &str) -> Report {
    let mut fleet = SimFleet::parse(script).unwrap();
    let brief = Brief {
        mode,
        job: "sim".into(),
        paceline: "0".into(),
        min_busbw: None,
        simulated: true,
        began: Instant::now(),
        problems: Vec::new(),
    };
    conduct(&mut fleet, brief, &|_| Ok(Vec::new()), &mut |_, _, _| ())
}

/// Checks that exactly `metric` of `place` is reported, with the facts that explain it, and nothing else.
fn check(
    nodes: u32,
    fault: &dyn Fn(u32, u32) -> String,
    metrics: &[Metric],
    is_place: &dyn Fn(&Place, u32, u32) -> bool,
) {
    for seed in 1..=SEEDS {
        let node = (seed as u32 * 37) % nodes + 1;
        let gpu = seed as u32 % 8 + 1;
        let script = format!("nodes={nodes} seed={seed} {}", fault(node, gpu));
        let report = run(&script);
        assert!(report.simulated, "{script}");
        for metric in metrics {
            let named = report.findings.iter().any(|noted| {
                noted.metric() == Some(*metric)
                    && noted.sure
                    && noted.or.is_empty()
                    && is_place(&noted.place, node, gpu)
            });
            assert!(named, "{script}: {metric} not named in {:?}", report.findings);
        }
        for noted in &report.findings {
            assert!(
                is_place(&noted.place, node, gpu),
                "{script}: {noted:?} accuses another"
            );
        }
        assert_eq!(report.outcome, Outcome::Critical, "{script}");
    }
}

fn of_node(place: &Place, node: u32) -> bool {
    place.node().is_some_and(|found| {
        found.as_str().trim_start_matches("sim").trim_start_matches('0') == node.to_string()
    })
}

fn of_gpu(place: &Place, node: u32, gpu: u32) -> bool {
    matches!(place, Place::Gpu { gpu: id, .. } if id.as_str().ends_with(&format!("{gpu:x}")))
        && of_node(place, node)
}

#[test]
fn a_slow_gpu() {
    for nodes in SIZES {
        check(
            nodes,
            &|node, gpu| format!("slow-gpu={node}.{gpu}x1.2"),
            &[Metric::Gemm],
            &of_gpu,
        );
    }
}

#[test]
fn a_narrow_slot() {
    for nodes in SIZES {
        let metrics = [Metric::HostToDevice, Metric::DeviceToHost];
        check(
            nodes,
            &|node, gpu| format!("narrow-slot={node}.{gpu}"),
            &metrics,
            &of_gpu,
        );
    }
}

#[test]
fn a_half_speed_nic() {
    for nodes in SIZES {
        let is_node = |place: &Place, node, _| of_node(place, node);
        check(
            nodes,
            &|node, _| format!("half-nic={node}"),
            &[Metric::PairBusbw],
            &is_node,
        );
    }
}

#[test]
fn rails_tell_the_port() {
    for seed in 1..=SEEDS {
        let report = run_in(Mode::Full, &format!("nodes=16 seed={seed} half-nic=5"));
        let places: Vec<String> = report
            .findings
            .iter()
            .map(|noted| noted.place.to_string())
            .collect();
        assert!(
            places.contains(&"port rail 0 of node sim05".to_owned()),
            "{places:?}"
        );
        assert!(
            places.iter().all(|place| place.ends_with("node sim05")),
            "{places:?}"
        );
        let clean = run_in(Mode::Full, &format!("nodes=16 seed={seed}"));
        assert_eq!((clean.findings, clean.outcome), (Vec::new(), Outcome::Ok));
        assert!(clean.carried.iter().all(|carried| &*carried.transport == "sim"));
    }
}

#[test]
fn delay_and_loss() {
    let is_node = |place: &Place, node, _| of_node(place, node);
    check(
        16,
        &|node, _| format!("delay={node}"),
        &[Metric::PairLatency],
        &is_node,
    );
    check(
        16,
        &|node, _| format!("loss={node}"),
        &[Metric::PairLoss],
        &is_node,
    );
}

#[test]
fn two_nodes_have_the_slow_gpu_the_slot_and_the_port_named() {
    check(
        2,
        &|node, gpu| format!("slow-gpu={node}.{gpu}x1.2"),
        &[Metric::Gemm],
        &of_gpu,
    );
    check(
        2,
        &|node, gpu| format!("narrow-slot={node}.{gpu}"),
        &[Metric::HostToDevice],
        &of_gpu,
    );
    for seed in 1..=SEEDS {
        let report = run(&format!("nodes=2 seed={seed} half-nic=2"));
        assert!(
            report.findings.iter().all(|noted| of_node(&noted.place, 2)) && !report.findings.is_empty(),
            "{:?}",
            report.findings
        );
    }
}

#[test]
fn a_clean_fleet_accuses_nobody() {
    for nodes in SIZES.into_iter().chain([2, 3, 5, 16]) {
        for seed in 1..=SEEDS {
            let report = run(&format!("nodes={nodes} seed={seed}"));
            assert_eq!(report.findings, [], "nodes={nodes} seed={seed}");
            assert_eq!(report.outcome, Outcome::Ok, "nodes={nodes} seed={seed}");
        }
    }
}

#[test]
fn one_way_and_one_that_is_absent() {
    let report = run("nodes=16 half-way=3-4");
    let places: Vec<String> = report
        .findings
        .iter()
        .map(|noted| noted.place.to_string())
        .collect();
    assert_eq!(places, ["the path between sim03 and sim04"]);
    assert!(report.bad_nodes().is_empty());
    let report = run("nodes=16 absent=4");
    assert_eq!(
        report
            .bad_nodes()
            .iter()
            .map(|node| node.as_str())
            .collect::<Vec<_>>(),
        ["sim04"]
    );
}

#[test]
fn scripts_that_are_not_understood() {
    for (script, wanted) in [
        ("nodes=0", "\"nodes=0\": 1 to 16,384 nodes of 1 to 16 GPUs"),
        ("slow-gpu=1", "\"slow-gpu=1\": must be NODE.GPU"),
        ("half-nic", "\"half-nic\": words are KEY=VALUE"),
        (
            "half-nic=9",
            "\"HalfNic(9)\": there is no such node or GPU in this fleet",
        ),
    ] {
        assert_eq!(SimFleet::parse(script).unwrap_err().to_string(), wanted);
    }
}
