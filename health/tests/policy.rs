//! A journal may contain any value that the policy accepts. Whatever such a value does to verdicts, the detector must
//! continue.

#![allow(clippy::unwrap_used)] // A test that cannot continue fails.

use paceline_health::event::{Event, PolicyChange};
use paceline_health::sim::{World, WorldSpec};
use paceline_health::{Detector, Frame, Policy, Time};

/// Returns the journal of a job in which every rule applies.
fn journal() -> Vec<(Time, Frame)> {
    let mut spec = WorldSpec::parse("nodes=2 gpus=3 steps=70 sigma=0.01 checkpoint-every=25").unwrap();
    for fault in [
        "slow rank=3 factor=1.5 from=15",
        "heat gpu=5 from=5s",
        "gap node=1 from=8s for=12s",
        "silent rank=2 from=65",
    ] {
        spec.faults.push(fault.parse().unwrap());
    }
    let mut world = World::new(spec).unwrap();
    std::iter::from_fn(|| world.next()).collect()
}

/// Runs the detector with one value changed in the middle. Returns the verdicts as text.
fn fold(journal: &[(Time, Frame)], key: &str, value: f64) -> String {
    let mut detector = Detector::new(Policy::default());
    let mut said = String::new();
    for (n, (at, frame)) in journal.iter().enumerate() {
        if n == journal.len() / 3 {
            let change = PolicyChange {
                key: key.into(),
                value,
                by: "set".into(),
            };
            let event = Event::Policy(change);
            detector.observe(
                *at,
                &Frame {
                    event,
                    agent: 0,
                    ..frame.clone()
                },
            );
        }
        detector.observe(*at, frame);
        while let Some(verdict) = detector.poll() {
            said += &serde_json::to_string(&verdict).unwrap();
        }
    }
    detector.advance(Time(u64::MAX / 2));
    said + &serde_json::to_string(&detector.report()).unwrap()
}

#[test]
fn no_value_that_is_taken_stops_the_fold() {
    let journal = journal();
    let plain = fold(&journal, "nonsense", 1.0);
    assert!(plain.contains("straggler"), "{plain}");
    let mut different = 0;
    let keys = Policy::default().keys();
    let observed = keys.iter().position(|key| key.starts_with("observe.")).unwrap();
    // Of the keys of observed findings, one is enough.
    for key in &keys[..=observed] {
        // Use the two most extreme values that are valid. A count accepts no fraction, and a switch accepts only 1.
        let taken = |value: &f64| Policy::default().apply(key, *value).is_ok();
        for value in [1e9, 1e-12, 1.0].into_iter().filter(taken).take(2) {
            different += usize::from(fold(&journal, key, value) != plain);
        }
    }
    assert!(different > 5, "values matter: {different}");
}
