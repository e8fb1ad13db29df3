//! Tests complete worlds against their truth: cost, coverage, and subjects that must not be named.

use paceline_health::event::Event;
use paceline_health::id::Rank;
use paceline_health::report::Report;
use paceline_health::sim::{Truth, World, WorldSpec};
use paceline_health::verdict::{Cause, Finding, State, Subject, Verdict};
use paceline_health::{Detector, Policy};

fn watch(text: &str, faults: &[&str]) -> (Report, Vec<Truth>) {
    let mut spec = WorldSpec::parse(text).expect(text);
    spec.faults = faults.iter().map(|fault| fault.parse().expect(fault)).collect();
    let mut world = World::new(spec).expect("a world");
    let mut detector = Detector::new(Policy::default());
    for (at, frame) in world.by_ref() {
        detector.observe(at, &frame);
    }
    (detector.report(), world.truth().to_vec())
}

fn of_rank(report: &Report, finding: Finding, whom: u32) -> Vec<&Verdict> {
    let named = |verdict: &&Verdict| {
        verdict.finding == finding && matches!(verdict.subject, Subject::Rank { rank, .. } if rank.0 == whom)
    };
    report.verdicts.iter().filter(named).collect()
}

/// report.json contains the last state of each incident. A cleared incident has its final slowdown, not the one at
/// detection. At three quarters of the clock, compute takes 1.33 times as long.
#[test]
fn a_cleared_incident_tells_the_whole_of_it() {
    let (report, _) = watch("gpus=8 steps=900 seed=19", &["heat gpu=5 from=30s until=120s"]);
    let verdicts = of_rank(&report, Finding::Straggler, 5);
    assert_eq!(verdicts[0].state, State::Cleared);
    let slowdown = verdicts[0].slowdown_ratio.expect("a straggler's slowdown");
    assert!((1.28..1.36).contains(&slowdown), "{slowdown}");
}

/// As docs/findings.md says, the time in which a node was unreachable is in `coverage.gaps`.
#[test]
fn a_node_that_was_not_heard_leaves_a_gap() {
    let (report, _) = watch(
        "nodes=2 gpus=4 steps=600 seed=32",
        &["hold node=1 from=40s for=20s"],
    );
    assert_eq!(report.coverage.gaps.len(), 1, "{:?}", report.coverage);
}

/// Missing data never counts as healthy. Samples that arrive after their row has closed are ignored, so coverage must
/// not count them.
#[test]
fn a_rank_that_is_always_late_is_named_or_noted() {
    let faults = ["late rank=3 by=5s", "slow rank=3 factor=1.25 from=100"];
    let (report, _) = watch("gpus=8 steps=600 seed=36", &faults);
    let named = !of_rank(&report, Finding::Straggler, 3).is_empty();
    assert!(
        named || !report.coverage.notes.is_empty(),
        "{:?}",
        report.coverage
    );
}

/// A beat lists the ranks that have attached and have not ended. A rank that is missing in it does not count as hung.
#[test]
fn a_rank_that_its_sidecar_no_longer_lists_is_not_silent() {
    let (report, _) = watch("gpus=8 steps=300 seed=36", &["late rank=3 by=6s"]);
    assert!(report.verdicts.is_empty(), "{:?}", report.verdicts);
}

/// A hang costs the whole job for as long as it lasts.
#[test]
fn a_hang_has_its_cost() {
    for fault in ["silent rank=6 from=100", "silent rank=all from=100"] {
        let (report, truth) = watch("nodes=2 gpus=4 steps=500 seed=24 hang=120s", &[fault]);
        let told = 3600.0 * report.verdicts[0].lost_gpu_hours;
        assert!(
            (told / truth[0].lost_gpu_s - 1.0).abs() < 0.05,
            "{told} for {fault}: {truth:?}"
        );
    }
}

/// A node that is unreachable for most of the job reduces the coverage.
#[test]
fn steps_of_a_lost_node_are_missed() {
    let (report, _) = watch("nodes=3 gpus=4 steps=500", &["gap node=2 from=40s"]);
    let ratio = report.coverage.steps_ratio.expect("steps");
    assert!((0.75..0.82).contains(&ratio), "{ratio}");
}

/// No rank is reported as slow in ten runs of 64 ranks, either with 5 % of all steps a third longer or with correlated
/// noise.
#[test]
fn healthy_ranks_stay_unnamed_under_heavy_tails_and_autocorrelation() {
    for noise in ["tail=0.05 sigma=0.02", "autocorrelation=0.9 sigma=0.11"] {
        for seed in 6000..6010 {
            let text = format!("nodes=8 gpus=8 steps=2000 readings=off seed={seed} {noise}");
            let (report, _) = watch(&text, &[]);
            // (A very long step can delay a rank for seconds. A finding about its silence is then correct.)
            let named = report
                .verdicts
                .iter()
                .find(|verdict| verdict.finding != Finding::RankSilent);
            assert!(named.is_none(), "{text}: {named:?}");
        }
    }
}

/// Until the statistical test is sure, the rank that looks slow is reported as undecided, with the number of steps that
/// the test still needs. After that, it is reported as a finding.
#[test]
fn who_looks_slow_is_noted_until_the_test_is_sure() {
    let mut spec = WorldSpec::parse("gpus=8 steps=600 sigma=0.11 seed=91").expect("a spec");
    let fault = "slow rank=2 factor=1.12 from=40";
    spec.faults.push(fault.parse().expect("a fault"));
    let mut detector = Detector::new(Policy::default());
    let (mut noted, mut named) = (None, None);
    for (at, frame) in World::new(spec).expect("a world") {
        detector.observe(at, &frame);
        while let Some(verdict) = detector.poll() {
            if verdict.finding == Finding::Straggler && named.is_none() {
                named = Some(detector.steps());
                assert!(
                    matches!(verdict.subject, Subject::Rank { rank: Rank(2), .. }),
                    "{verdict:?}"
                );
            }
        }
        if !matches!(frame.event, Event::Step(_)) || named.is_some() {
            continue;
        }
        let report = detector.report();
        if let Some(undecided) = report.undecided.filter(|_| noted.is_none()) {
            let note = report
                .coverage
                .notes
                .iter()
                .find(|note| note.contains("not certain yet"));
            assert!(note.is_some_and(|note| note.contains("rank 2")), "{note:?}");
            noted = Some((detector.steps(), undecided));
        }
    }
    let ((at, undecided), named) = (noted.expect("it is noted"), named.expect("it is named"));
    assert_eq!(undecided.rank, Rank(2));
    assert!((1.05..1.4).contains(&undecided.slowdown_ratio), "{undecided:?}");
    let (took, said) = ((named - at) as f64, undecided.steps_needed as f64);
    assert!(
        took > said / 5.0 && took < said * 5.0,
        "{took} steps instead of {said}"
    );
    assert_eq!(detector.report().undecided, None, "it is decided");
}

/// With a slow loader, and links in power saving between two kernels, no verdict reports a slow bus, even if there are
/// few readings.
#[test]
fn links_asleep_between_kernels_are_no_cause() {
    for seed in 0..40 {
        let text = format!("nodes=2 gpus=8 steps=300 seed={seed}");
        let mut spec = WorldSpec::parse(&text).expect("a spec");
        let fault = "slow rank=5 factor=1.3 from=100 cause=data-loading";
        spec.faults.push(fault.parse().expect("a fault"));
        let mut detector = Detector::new(Policy::default());
        for (at, frame) in World::new(spec).expect("a world") {
            detector.observe(at, &frame);
            while let Some(verdict) = detector.poll() {
                assert_ne!(verdict.cause, Cause::Pcie, "{text}: {verdict:?}");
            }
        }
        let report = detector.report();
        let verdicts = of_rank(&report, Finding::Straggler, 5);
        assert_eq!(verdicts[0].cause, Cause::DataLoading, "{text}: {:?}", verdicts[0]);
    }
}

/// Heat that affects the whole job is reported as the cause, and the action for a job with one rank does not mention
/// racks.
#[test]
fn heat_of_the_whole_job_is_named() {
    for (text, says) in [
        ("nodes=2 gpus=4 steps=400 seed=81", "Most GPUs"),
        ("gpus=1 steps=400 seed=84", "Its GPU"),
    ] {
        let (report, _) = watch(text, &["slow rank=all factor=1.15 from=200 cause=thermal"]);
        let slow = |verdict: &&Verdict| verdict.finding == Finding::AllRanksSlow;
        let verdict = report.verdicts.iter().find(slow).expect("it is slower");
        assert_eq!(verdict.cause, Cause::Thermal, "{text}: {verdict:?}");
        assert!(verdict.action.starts_with(says), "{text}: {}", verdict.action);
    }
}
