//! Jobs whose collectives overlap with compute, as in FSDP and DDP. Their ranks report no phases and no exposed time.
//! The tests check that slow ranks are found and that a healthy job has no finding.

use paceline_health::event::Event;
use paceline_health::sim::{World, WorldSpec};
use paceline_health::verdict::{Finding, Subject};
use paceline_health::{Detector, Policy};

const FSDP: &str = "gpus=8 framework=fsdp beside=32";
const JOBS: [&str; 7] = [
    FSDP,
    "nodes=4 gpus=8 framework=fsdp beside=80 transfer=4ms",
    "gpus=8 beside=8",
    "nodes=4 gpus=8 beside=100 transfer=2ms",
    "nodes=4 gpus=8 tp=4 beside=16",
    "nodes=4 gpus=8 tp=4 framework=fsdp beside=32",
    "nodes=4 gpus=8 tp=4 framework=fsdp beside=32 layout=undeclared",
];

/// Returns the findings with their rank or job, and a text with their details: step, slowdown, and reported loss
/// divided by the actual one.
fn said(world: &str, faults: &[&str], seed: u64) -> (Vec<(Finding, String)>, String) {
    let text = format!("{world} comms=gpu phases=off readings=off seed={seed}");
    let mut spec = WorldSpec::parse(&text).expect(world);
    spec.faults = faults.iter().map(|fault| fault.parse().expect(fault)).collect();
    let mut world = World::new(spec).expect(world);
    let mut detector = Detector::new(Policy::default());
    for (at, frame) in world.by_ref() {
        if let Event::Comm(did) = &frame.event {
            assert!(did.gpu, "as the plugin tells it");
        }
        detector.observe(at, &frame);
    }
    let truth_s = world.truth().first().map_or(0.0, |truth| truth.lost_gpu_s);
    let report = detector.report();
    let who = |subject: &Subject| match subject {
        Subject::Rank { rank, .. } => format!("rank {}", rank.0),
        Subject::Node { node } => node.0.to_string(),
        _ => "job".to_owned(),
    };
    let named = report
        .verdicts
        .iter()
        .map(|told| (told.finding, who(&told.subject)));
    let detail = report.verdicts.iter().map(|told| {
        format!(
            "{:?} {} step {:?} x{:.3} cost {:.2}",
            told.finding,
            who(&told.subject),
            told.raised_step,
            told.slowdown_ratio.unwrap_or(0.0),
            told.lost_gpu_hours * 3600.0 / truth_s
        )
    });
    let detail: Vec<String> = detail.collect();
    (named.collect(), detail.join("; "))
}

#[test]
#[ignore = "prints what is said of many worlds"]
fn survey() {
    const SEEDS: u64 = 2;
    for job in JOBS {
        for noise in ["", "sigma=0.02 autocorrelation=0.6 tail=0.02", "sigma=0.11"] {
            for factor in ["1", "1.05", "1.1", "1.25"] {
                for onset in ["1", "100"] {
                    for seed in 0..SEEDS {
                        if factor == "1" && onset == "1" {
                            continue;
                        }
                        let fault = format!("slow rank=2 factor={factor} from={onset}");
                        let faults: &[&str] = if factor == "1" { &[] } else { &[&fault] };
                        let (_, detail) =
                            said(&format!("{job} {noise} steps=300"), faults, 1_000_000_000 + seed);
                        println!("{job} | {noise} | {factor} from {onset}: {detail}");
                    }
                }
            }
        }
    }
}

#[test]
fn the_slow_rank_and_no_other() {
    for job in JOBS {
        for factor in ["1.1", "1.25"] {
            let fault = format!("slow rank=2 factor={factor} from=1");
            let (named, detail) = said(&format!("{job} steps=150"), &[&fault], 1_000_000_001);
            let expected = vec![(Finding::Straggler, "rank 2".to_owned())];
            assert_eq!(named, expected, "{job} {factor}: {detail}");
        }
    }
}

#[test]
fn nobody_where_nobody_is_slow() {
    for job in JOBS {
        let (named, detail) = said(&format!("{job} steps=300"), &[], 1_000_000_002);
        assert_eq!(named, [], "{job}: {detail}");
    }
}
