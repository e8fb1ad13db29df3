use std::ops::Range;

use super::*;
use crate::policy::Policy;
use crate::sim::{World, WorldSpec};
use crate::verdict::Finding;

/// Returns the verdicts on a world whose journal lost the entries between these seconds, and the number of these
/// entries.
fn told(world: &str, fault: Option<&str>, lost_s: Range<f64>) -> (Vec<String>, u64) {
    let mut spec = WorldSpec::parse(world).unwrap();
    if let Some(fault) = fault {
        spec.faults.push(fault.parse().unwrap());
    }
    let world = World::new(spec).unwrap();
    let mut detector = Detector::new(Policy::default());
    let (mut told, mut lost) = (Vec::new(), 0);
    for (n, (at_ns, frame)) in (1..).zip(world) {
        if lost_s.contains(&at_ns.as_secs_f64()) {
            lost += 1;
            continue;
        }
        detector.read(&Entry { n, at_ns, frame });
        let news = std::iter::from_fn(|| detector.poll());
        told.extend(news.map(|verdict| format!("{} {}", verdict.finding.name(), verdict.subject)));
    }
    assert_eq!(detector.report().coverage.journal_lost, lost);
    (told, lost)
}

/// The journal records a restart of its aggregator as if it had been away for only a moment, but the sidecars need
/// seven seconds to find it. In the second case the entry about the restart is lost as well.
#[test]
fn nobody_is_accused_who_looks_for_an_aggregator_that_was_started_again() {
    for is_told in [true, false] {
        let world = World::new(WorldSpec::parse("nodes=4 gpus=4 steps=300 self=500ms").unwrap()).unwrap();
        let mut detector = Detector::new(Policy::default());
        let (mut n, mut is_back) = (0, false);
        for (at_ns, frame) in world {
            n += 1;
            let at_s = at_ns.as_secs_f64();
            if (60.0..67.0).contains(&at_s) {
                continue;
            }
            if at_s >= 60.0 && !std::mem::replace(&mut is_back, true) {
                let job = Job {
                    job: "simulated".into(),
                    paceline: "0".into(),
                    listened_to: None,
                };
                let began = Frame {
                    agent: AGGREGATOR,
                    event: Event::Job(job),
                    ..frame.clone()
                };
                // The clock of the restarted aggregator continued at the time of the last entry.
                let entry = Entry {
                    n,
                    at_ns: Time::from_secs_f64(60.0),
                    frame: began,
                };
                if is_told {
                    detector.read(&entry);
                }
                n += 1;
            }
            detector.read(&Entry { n, at_ns, frame });
        }
        let told: Vec<String> = std::iter::from_fn(|| detector.poll())
            .map(|verdict| verdict.subject.to_string())
            .collect();
        assert_eq!(told, [""; 0], "told: {is_told}");
    }
}

/// A disk was full for a minute, and the journal is read again.
#[test]
fn nobody_is_accused_of_a_hole() {
    for seed in 1..=4 {
        let (told, lost) = told(
            &format!("nodes=4 gpus=4 steps=400 self=500ms seed={seed}"),
            None,
            60.0..120.0,
        );
        assert!(lost > 1000, "{lost}");
        assert_eq!(told, [""; 0], "seed {seed}");
    }
}

#[test]
fn who_is_slow_before_and_behind_a_hole_is_found() {
    let world = "nodes=4 gpus=4 steps=600 self=500ms seed=3";
    let slow = "slow rank=5 factor=1.3 from=100";
    let (told, _) = told(world, Some(slow), 40.0..100.0);
    let straggler = Finding::Straggler.name();
    assert!(
        told.iter()
            .any(|said| said.starts_with(straggler) && said.contains("rank 5")),
        "{told:?}"
    );
    assert!(told.iter().all(|said| said.starts_with(straggler)), "{told:?}");
}
