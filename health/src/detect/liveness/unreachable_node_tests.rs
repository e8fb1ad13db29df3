use std::collections::{BTreeMap, BTreeSet};

use crate::detect::Detector;
use crate::event::{Beat, Event};
use crate::frame::{Frame, Provenance, SCHEMA_VERSION};
use crate::policy::Policy;
use crate::time::Time;
use crate::verdict::{State, Subject, Verdict};

const MS: u64 = 1_000_000;

/// A job with nodes that report or do not, and the verdicts on these nodes.
struct Job {
    detector: Detector,
    seq: BTreeMap<u32, u64>,
    now_ms: u64,
    raised: BTreeMap<String, Verdict>,
    told: usize,
}

impl Job {
    fn new() -> Job {
        Job {
            detector: Detector::new(Policy::default()),
            seq: BTreeMap::new(),
            now_ms: 0,
            raised: BTreeMap::new(),
            told: 0,
        }
    }

    fn beat(&mut self, node: u32) {
        let seq = self.seq.entry(node).or_default();
        *seq += 1;
        let frame = Frame {
            v: SCHEMA_VERSION,
            node: format!("n{node}").as_str().into(),
            agent: 1,
            seq: *seq,
            provenance: Provenance::Live,
            event: Event::Beat(Beat::default()),
        };
        self.detector.observe(Time(self.now_ms * MS), &frame);
        self.listen();
    }

    /// Advances by a tenth of a second. The nodes in `heard` report once per second.
    fn tick(&mut self, heard: impl IntoIterator<Item = u32>) {
        self.now_ms += 100;
        self.detector.advance(Time(self.now_ms * MS));
        for node in heard {
            if u64::from(node) % 10 == self.now_ms / 100 % 10 {
                self.beat(node);
            }
        }
        self.listen();
    }

    fn wait(&mut self, seconds: u64, heard: std::ops::Range<u32>) {
        (0..seconds * 10).for_each(|_| self.tick(heard.clone()));
    }

    fn listen(&mut self) {
        while let Some(verdict) = self.detector.poll() {
            self.told += 1;
            let subject = match &verdict.subject {
                Subject::Node { node } => node.to_string(),
                Subject::Job { .. } => "all".to_owned(),
                other => panic!("{other:?}"),
            };
            match verdict.state {
                State::Cleared => assert!(self.raised.remove(&subject).is_some(), "{subject}"),
                _ => drop(self.raised.insert(subject, verdict)),
            }
        }
    }

    fn names(&self) -> Vec<&str> {
        self.raised.keys().map(String::as_str).collect()
    }
}

#[test]
fn a_few_have_a_verdict_each() {
    let mut job = Job::new();
    job.wait(3, 0..20);
    job.wait(8, 0..15);
    assert_eq!(job.names(), ["n15", "n16", "n17", "n18", "n19"]);
    job.wait(2, 0..20);
    assert_eq!(job.names(), [""; 0]);
    assert_eq!(job.told, 10);
}

/// A switch fails. Of 600 nodes, 512 are lost, and all but five of these come back.
#[test]
fn many_have_one_together_and_the_last_are_named() {
    let mut job = Job::new();
    job.wait(3, 0..600);
    job.wait(10, 512..600);
    let told = job.told;
    assert!((9..=12).contains(&told), "{told}");
    let all = &job.raised["all"];
    let unheard = &all.evidence[0];
    assert_eq!((&*unheard.what, unheard.peers), ("unheard_nodes", Some(600.0)));
    assert!((500.0..=512.0).contains(&unheard.value), "{unheard:?}");
    // Most nodes come back, so hundreds must no longer be reported as missing.
    job.wait(3, 100..600);
    let still = job.raised["all"].evidence[0].value;
    assert!((100.0..=160.0).contains(&still), "{still}");
    job.wait(3, 5..600);
    assert_eq!(job.names(), ["n0", "n1", "n2", "n3", "n4"]);
    job.wait(2, 0..600);
    assert_eq!(job.names(), [""; 0]);
}

/// In any order of events, every unreachable node is covered by a verdict, and no other node is.
#[test]
fn nobody_is_forgotten() {
    let mut chance = 1_u64;
    let mut draw = |below: u64| {
        chance = chance
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (chance >> 33) % below
    };
    for _ in 0..30 {
        let mut job = Job::new();
        job.wait(2, 0..40);
        let mut lost: BTreeSet<u32> = BTreeSet::new();
        for _ in 0..8 {
            let count = draw(40);
            lost = (0..count).map(|_| draw(40) as u32).collect();
            let heard: Vec<u32> = (0..40).filter(|node| !lost.contains(node)).collect();
            let for_ticks = 80 + draw(60);
            (0..for_ticks).for_each(|_| job.tick(heard.iter().copied()));
            let names: BTreeSet<u32> = job
                .names()
                .iter()
                .filter_map(|name| name[1..].parse().ok())
                .collect();
            if lost.len() <= 8 {
                assert_eq!(names, lost);
            } else {
                assert!(names.is_subset(&lost) && job.raised.contains_key("all"));
            }
        }
        job.wait(8, 0..0);
        assert!(job.raised.contains_key("all"), "{:?} {lost:?}", job.names());
        job.wait(2, 0..40);
        assert_eq!(job.names(), [""; 0]);
    }
}
