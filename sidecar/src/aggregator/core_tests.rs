use std::fs;
use std::sync::Arc;

use paceline_health::Policy;
use paceline_health::event::{Agent, Attach, Bye, Exit, Phases, Signal, Step, StepKind};
use paceline_health::id::Rank;

use super::*;
use crate::aggregator::control;
use crate::aggregator::journal::lines::{Line, Lines};
use crate::sink::status::StatusStream;
use crate::uplink::wire::{Blob, encode_event};

fn plan(dir: &Path) -> Plan {
    Plan {
        job: "j".into(),
        node: "n".into(),
        run_dir: dir.to_owned(),
        policy: vec![("straggler.min_steps".to_owned(), 6.0)],
        remedy: Default::default(),
        reload: None,
        reported: None,
        journal: Default::default(),
        doors: Default::default(),
    }
}

pub(super) fn open(dir: &Path, now_ns: u64) -> Aggregator {
    Aggregator::open(plan(dir), StatusStream::to(std::io::sink()).0, now_ns).unwrap()
}

pub(super) fn batch(node: &str, agent: u64, first_seq: u64, events: &[Event]) -> Batch {
    let events = events
        .iter()
        .map(|event| Blob(encode_event(Provenance::Live, event)))
        .collect();
    Batch {
        v: SCHEMA_VERSION,
        job: "j".into(),
        node: node.into(),
        agent,
        after: 0,
        first_seq,
        events,
    }
}

fn upto(down: &Down) -> u64 {
    match down {
        Down::Ack(ack) => ack.upto,
        other => panic!("{other:?}"),
    }
}

pub(super) fn hello() -> Event {
    Event::Agent(Agent {
        paceline: Arc::from("0"),
        sources: Vec::new(),
        unix_ms: 0,
        rack: "".into(),
        versions: Default::default(),
    })
}

fn bye() -> Event {
    Event::Bye(Bye {
        reason: Arc::from("exit"),
    })
}

fn entries(dir: &Path) -> Vec<Entry> {
    let file = std::io::BufReader::new(fs::File::open(dir.join("journal.ndjson")).unwrap());
    Lines::new(file)
        .map(|line| match line.unwrap() {
            Line::Entry(entry) => *entry,
            other => panic!("{other:?}"),
        })
        .collect()
}

fn attach(rank: u32) -> Event {
    Event::Attach(Attach {
        rank: Rank(rank),
        local_rank: rank,
        world_size: 8,
        restart: 0,
        pid: 1,
        gpu: None,
        role: Arc::from(""),
        framework: Arc::from("test"),
    })
}

/// Returns a step of eight ranks. Rank 3 is 30 % slower, and its peers wait for it.
fn row(step: u64) -> Vec<Event> {
    (0..8u32)
        .map(|rank| {
            // Add deterministic noise of half a percent.
            let noise = (u64::from(rank) * 7_919 + step * 104_729) % 997;
            let own = (40_000_000 + noise * 200) * if rank == 3 { 13 } else { 10 } / 10;
            let wait_ns = 53_000_000_u64.saturating_sub(own);
            Event::Step(Step {
                rank: Rank(rank),
                restart: 0,
                step,
                kind: StepKind::Train,
                dur_ns: 53_000_000,
                phases: Some(Phases {
                    compute_ns: own,
                    wait_ns,
                    ..Phases::default()
                }),
                micro_batches: 1,
                tokens: 0,
                signal: Signal::S2,
                sum_sq: 0,
                expert_tokens: 0,
            })
        })
        .collect()
}

#[test]
fn acked_is_journaled_and_survives() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = open(dir.path(), 1_000);
    assert_eq!(
        upto(&first.take(
            &batch("n", 9, 1, &[hello(), Event::Exit(Exit { code: 3 })]),
            5_000
        )),
        2
    );
    drop(first);
    let mut second = open(dir.path(), 9_000);
    let again = batch("n", 9, 1, &[hello(), Event::Exit(Exit { code: 3 }), bye()]);
    assert_eq!(
        upto(&second.take(&again, 9_500)),
        3,
        "what it has already is taken once"
    );
    assert_eq!(second.present(), []);
    second.close(10_000);
    let lines: Vec<(u64, u64, u64)> = entries(dir.path())
        .iter()
        .map(|entry| (entry.n, entry.at_ns.0, entry.frame.seq))
        .collect();
    // The entries are the job, the policy, and two frames; then the job again (the policy is known), a goodbye, and the
    // end. Time continues after the restart.
    let wanted = [
        (1, 0, 1),
        (2, 0, 2),
        (3, 4_000, 1),
        (4, 4_000, 2),
        (5, 8_000, 3),
        (6, 8_500, 3),
        (7, 9_000, 4),
    ];
    assert_eq!(lines, wanted);
    let report: Report = serde_json::from_slice(&fs::read(dir.path().join("report.json")).unwrap()).unwrap();
    assert_eq!((report.exits.len(), report.coverage.frames_lost), (1, 0));
}

/// The verdicts of an interrupted run equal those that a replay of its journal gives, byte for byte.
#[test]
fn verdicts_are_a_function_of_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    let mut aggregator = open(dir.path(), 0);
    let mut seq = 0;
    let mut take = |aggregator: &mut Aggregator, events: &[Event], now_ns| {
        aggregator.take(&batch("n", 9, seq + 1, events), now_ns);
        seq += events.len() as u64;
        aggregator.tick(now_ns);
    };
    let mut begin = vec![hello()];
    begin.extend((0..8).map(attach));
    take(&mut aggregator, &begin, 1);
    for step in 1..=150u64 {
        if step == 140 {
            drop(aggregator);
            aggregator = open(dir.path(), step * 60_000_000);
        }
        take(&mut aggregator, &row(step), step * 60_000_000);
    }
    let named = |report: &Report| {
        report
            .verdicts
            .iter()
            .map(|verdict| verdict.subject.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(named(&aggregator.report()), ["rank 3 on n"]);
    take(&mut aggregator, &[bye()], 10_000_000_000);
    aggregator.close(10_000_000_000);
    let live = fs::read_to_string(dir.path().join("verdicts.ndjson")).unwrap();

    let mut detector = Detector::new(Policy::default());
    let mut folded = String::new();
    for entry in entries(dir.path()) {
        detector.observe(entry.at_ns, &entry.frame);
        while let Some(verdict) = detector.poll() {
            folded.push_str(&serde_json::to_string(&verdict).unwrap());
            folded.push('\n');
        }
    }
    assert!(!live.is_empty());
    assert_eq!(live, folded);
    let report: Report = serde_json::from_slice(&fs::read(dir.path().join("report.json")).unwrap()).unwrap();
    assert_eq!(named(&report), ["rank 3 on n"]);
}

#[test]
fn strangers_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut aggregator = open(dir.path(), 0);
    let stranger = Batch {
        job: "other".into(),
        ..batch("n", 1, 1, &[hello()])
    };
    assert!(matches!(aggregator.take(&stranger, 1), Down::Refused(_)));
    let newer = Batch {
        v: SCHEMA_VERSION + 1,
        ..batch("n", 1, 1, &[hello()])
    };
    assert!(matches!(aggregator.take(&newer, 1), Down::Refused(_)));
    let me = Hello {
        v: SCHEMA_VERSION,
        job: "other".into(),
        node: "n".into(),
        agent: 1,
    };
    assert!(matches!(aggregator.hello(&me), Down::Refused(_)));
    assert_eq!(entries(dir.path()).len(), 2, "nothing of it was written");
}

#[test]
fn a_node_is_missing_until_it_says_goodbye() {
    let dir = tempfile::tempdir().unwrap();
    let mut aggregator = open(dir.path(), 0);
    aggregator.take(&batch("a", 1, 1, &[hello()]), 1);
    aggregator.take(&batch("b", 1, 1, &[hello(), bye()]), 2);
    aggregator.take(&batch("b", 2, 1, &[hello()]), 3);
    aggregator.take(&batch("b", 1, 3, &[bye()]), 4);
    assert_eq!(
        aggregator.present(),
        ["a".into(), "b".into()],
        "an older incarnation's goodbye counts for nothing"
    );
    aggregator.take(&batch("b", 2, 2, &[bye()]), 5);
    aggregator.close(6);
    let last = entries(dir.path()).pop().unwrap();
    assert_eq!(
        last.frame.event,
        Event::End(End {
            missing: vec!["a".into()]
        })
    );
    let again = open(dir.path(), 7);
    assert_eq!(
        again.present(),
        ["a".into()],
        "a journal with somebody missing is continued"
    );
}

/// A second aggregator on the same run directory does not touch the first one's files.
#[test]
fn two_in_one_directory() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path(), 0);
    let second = open(dir.path(), 0);
    assert_eq!(
        (first.dir(), second.dir()),
        (dir.path(), dir.path().join("alone-n").as_path())
    );
}

/// Policy changes at run time are in the journal and survive a restart with the same flags. If a flag is dropped, its
/// value returns to the default.
#[test]
fn policy_changes_are_journaled_and_outlive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let key = "straggler.min_steps";
    let value = |aggregator: &Aggregator| aggregator.detector.policy().get(key);
    let mut first = open(dir.path(), 0);
    assert_eq!(value(&first), Some(6.0));
    let changed = first.change(&[(key.to_owned(), 9.0)], "set", 1).unwrap();
    assert_eq!((changed[0].was, changed[0].now), (6.0, 9.0));
    assert!(
        first
            .change(&[(key.to_owned(), 9.0)], "set", 2)
            .unwrap()
            .is_empty()
    );
    let bad = [(key.to_owned(), 8.0), ("nonsense".to_owned(), 1.0)];
    assert!(first.change(&bad, "set", 3).is_err());
    let told = |entry: &Entry| match &entry.frame.event {
        Event::Policy(change) => Some((change.by.to_string(), change.value)),
        _ => None,
    };
    let said: Vec<_> = entries(dir.path()).iter().filter_map(told).collect();
    assert_eq!(said, [("start".to_owned(), 6.0), ("set".to_owned(), 9.0)]);

    drop(first);
    let again = open(dir.path(), 4);
    assert_eq!(value(&again), Some(9.0), "the same flags say nothing new");
    drop(again);
    let bare = Plan {
        policy: Vec::new(),
        ..plan(dir.path())
    };
    let bare = Aggregator::open(bare, StatusStream::to(std::io::sink()).0, 5).unwrap();
    assert_eq!(value(&bare), Some(5.0), "a flag that was dropped");
}

/// A line injected into a kernel log is recorded under its node's name. It displaces none of the node's own frames.
#[test]
fn injected_lines_take_no_place_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let mut aggregator = open(dir.path(), 0);
    let Event::Attach(attached) = attach(0) else {
        panic!("an attach")
    };
    let attached = Event::Attach(Attach {
        gpu: Some("GPU-0".into()),
        ..attached
    });
    aggregator.take(&batch("m", 7, 1, &[hello(), attached]), 1);
    let lines = vec!["xid rank=0 code=31 x".parse().unwrap(); 3];
    aggregator.inject(&lines, true, 2).unwrap();
    let beat = Event::Beat(Default::default());
    aggregator.take(&batch("m", 7, 3, &[beat.clone(), beat.clone()]), 3);
    let report = aggregator.report();
    assert_eq!(report.coverage.gaps, [], "its sidecar was not started again");
    let entries = entries(dir.path());
    let faults = entries.iter().filter(|entry| {
        let frame = &entry.frame;
        matches!(frame.event, Event::GpuFault(_))
            && (frame.node.as_str(), frame.agent, frame.provenance) == ("m", OWN_AGENT, Provenance::Injected)
    });
    assert_eq!(faults.count(), 3);
    let beats = entries.iter().filter(|entry| entry.frame.event == beat);
    assert_eq!(beats.count(), 2);
}

/// An aggregator that is restarted with its original arguments uses the values that were reloaded from files since.
#[test]
fn what_files_said_outlives_an_aggregator() {
    let dir = tempfile::tempdir().unwrap();
    let open = |policy: &[(&str, f64)]| {
        let policy = policy.iter().map(|(key, value)| ((*key).to_owned(), *value));
        let reload = control::Reload::new(|| Err("not read".to_owned()));
        let plan = Plan {
            policy: policy.collect(),
            remedy: Default::default(),
            reload: Some(reload.without(vec!["blind.beat_missing_s".to_owned()])),
            ..plan(dir.path())
        };
        Aggregator::open(plan, StatusStream::to(std::io::sink()).0, 0).unwrap()
    };
    let start = [("blind.beat_missing_s", 7.0), ("impact.warning_ratio", 0.04)];
    let known = |aggregator: &Aggregator| -> Vec<f64> {
        let known = aggregator.known_of_files();
        assert!(known.iter().all(|(key, _)| key == "impact.warning_ratio"));
        known.into_iter().map(|(_, value)| value).collect()
    };
    let mut aggregator = open(&start);
    assert_eq!(known(&aggregator), [0.04]);
    let now = [("impact.warning_ratio".to_owned(), 0.05)];
    aggregator.change(&now, control::RELOAD, 1).unwrap();
    drop(aggregator);
    let aggregator = open(&start);
    assert_eq!(known(&aggregator), [0.05]);
    drop(aggregator);
    assert_eq!(known(&open(&[("impact.warning_ratio", 0.06)])), [0.06]);
}
