//! Tests preflights among threads on loopback, with normal nodes, and with bad nodes whose attacks must fail.

#![allow(clippy::unwrap_used)] // These are tests and their shared code.

mod nccl;
mod nodes;
mod simulated;
mod unfinished;

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use paceline_health::id::NodeId;
use paceline_health::preflight::{Metric, Outcome, Place, Report, Sample};
use paceline_nccl_bench::preflight::{
    Expected, Failed, Found, Launch, Lead, Limits, Me, Mode, PreflightError, Tools, TransportChoice, attend,
    lead,
};
use paceline_nccl_bench::transport::Deadline;
use paceline_seal::Key;

/// A node with given measurements. With it, the tests cover everything between nodes.
#[derive(Clone, Default)]
struct Given {
    gflops: f64,
    /// True if the node dies (from the others' point of view) when it gets a work task.
    dies: bool,
    /// True if the node dies when it gets a task with other nodes.
    dies_with_others: bool,
    /// How long the node hangs instead of answering a work task.
    hangs: Option<Duration>,
}

impl Tools for Given {
    fn snapshot(&self, _: &NodeId, _: &Deadline) -> Result<Found, Failed> {
        Ok(Found {
            model: "test".into(),
            ..Found::default()
        })
    }

    fn work(&self, node: &NodeId, round: u32, _: &Limits, _: &Deadline) -> Result<Found, Failed> {
        if let Some(time) = self.hangs {
            thread::sleep(time);
        }
        assert!(!self.dies, "this node dies: the test wants it");
        Ok(Found {
            samples: vec![Sample {
                place: Place::Node { node: node.clone() },
                metric: Metric::CpuGemm,
                conditions: "test".into(),
                rail: None,
                round,
                value: self.gflops,
                spread: 0.0,
                passes: 3,
                bytes: 0,
            }],
            ..Found::default()
        })
    }

    fn local(
        &self,
        _: &NodeId,
        _: u32,
        _: &TransportChoice,
        _: &Limits,
        _: &Deadline,
    ) -> Result<Found, Failed> {
        Ok(Found::default())
    }

    fn launch(&self) -> Launch {
        assert!(!self.dies_with_others, "this node dies: the test wants it");
        Launch::default()
    }
}

fn me(node: &str, key: u8) -> Me {
    Me {
        node: node.into(),
        job: "j1".into(),
        key: Key::from_bytes([key; 32]),
        paceline: "0.1.0".into(),
    }
}

fn names(count: usize) -> Vec<String> {
    (1..=count).map(|n| format!("n{n}")).collect()
}

/// Runs a preflight of `count` nodes including `others` (the first leads, and is healthy).
fn preflight(
    count: usize,
    wait: Duration,
    others: Vec<(Me, Given)>,
) -> (Report, Vec<Result<Report, PreflightError>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let first = listener.local_addr().unwrap().to_string();
    let members: Vec<_> = others
        .into_iter()
        .map(|(me, given)| {
            let first = first.clone();
            thread::spawn(move || attend(&first, &me, &given, wait, &mut |_| ()))
        })
        .collect();
    let given = Given {
        gflops: 100.0,
        ..Given::default()
    };
    let report = lead(
        Lead {
            listener,
            expected: Expected {
                count,
                names: names(count),
            },
            mode: Mode::Quick,
            wait,
            min_busbw: None,
            past: &|_| Ok(Vec::new()),
        },
        &me("n1", 1),
        &given,
        &mut |_, _, _| (),
    )
    .unwrap();
    let ended = |_| Err(PreflightError::Refused { why: "died".into() });
    let results = members
        .into_iter()
        .map(|member| member.join().unwrap_or_else(ended))
        .collect();
    (report, results)
}

fn well(gflops: f64) -> Given {
    Given {
        gflops,
        ..Given::default()
    }
}

fn problems(report: &Report) -> Vec<String> {
    report
        .problems
        .iter()
        .map(|problem| {
            let node = problem.node.as_ref().map_or("-", NodeId::as_str);
            format!("{node} {}: {}", problem.phase, problem.what)
        })
        .collect()
}

#[test]
fn four_nodes_and_a_slow_one() {
    let begun = Instant::now();
    let others = vec![
        (me("n2", 1), well(101.0)),
        (me("n3", 1), well(50.0)),
        (me("n4", 1), well(99.0)),
    ];
    let (report, results) = preflight(4, Duration::from_secs(10), others);
    assert_eq!(problems(&report), Vec::<String>::new());
    let slow: Vec<String> = report
        .findings
        .iter()
        .filter(|noted| noted.metric() == Some(Metric::CpuGemm))
        .map(|noted| noted.place.to_string())
        .collect();
    assert_eq!(slow, ["node n3"]);
    assert_eq!(report.outcome, Outcome::Critical);
    // All nodes have the same report.
    for result in results {
        assert_eq!(result.unwrap(), report);
    }
    for metric in [
        Metric::PairBusbw,
        Metric::PairLatency,
        Metric::PairLoss,
        Metric::AllBusbw,
    ] {
        let count = report
            .samples
            .iter()
            .filter(|sample| sample.metric == metric)
            .count();
        assert!(count >= 1, "{metric}: {count}");
    }
    assert!(begun.elapsed() < Duration::from_secs(60));
    assert!(report.seconds < 60.0);
}

#[test]
fn a_node_that_never_comes_is_named_in_time() {
    let begun = Instant::now();
    let (report, _) = preflight(3, Duration::from_secs(2), vec![(me("n2", 1), well(100.0))]);
    assert_eq!(problems(&report), ["n3 rendezvous: did not come in time"]);
    assert_eq!(report.outcome, Outcome::Critical);
    assert_eq!(
        report.bad_nodes().iter().map(NodeId::as_str).collect::<Vec<_>>(),
        ["n3"]
    );
    // The two nodes that connected were judged.
    assert!(
        report
            .samples
            .iter()
            .any(|sample| sample.metric == Metric::PairBusbw)
    );
    assert!(begun.elapsed() < Duration::from_secs(40));
}

#[test]
fn a_node_that_dies_is_named_and_the_others_go_on() {
    let dying = Given {
        dies: true,
        ..well(100.0)
    };
    let others = vec![(me("n2", 1), dying), (me("n3", 1), well(100.0))];
    let (report, results) = preflight(3, Duration::from_secs(5), others);
    let problems = problems(&report);
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(
        problems[0].starts_with("n2 work: work: connection lost: "),
        "{problems:?}"
    );
    assert!(
        report
            .samples
            .iter()
            .any(|sample| sample.place == Place::pair(&"n1".into(), &"n3".into()))
    );
    assert!(results[1].is_ok());
}

#[test]
fn a_node_that_hangs_is_named_by_the_deadline() {
    let hanging = Given {
        hangs: Some(Duration::from_secs(10)),
        ..well(100.0)
    };
    let others = vec![(me("n2", 1), well(100.0)), (me("n3", 1), hanging)];
    let (report, _) = preflight(3, Duration::from_secs(5), others);
    assert_eq!(problems(&report), ["n3 work: work: no answer within 6 s"]);
}

#[test]
fn another_key_is_told_on_both_sides() {
    let others = vec![(me("n2", 7), well(100.0))];
    let (report, results) = preflight(2, Duration::from_secs(2), others);
    let problems = problems(&report);
    assert!(problems[0].contains("n2 rendezvous"), "{problems:?}");
    let said = results[0].as_ref().unwrap_err().to_string();
    assert!(said.contains("does not have this job's key"), "{said}");
}

#[test]
fn a_stranger_and_a_second_of_the_same_name_are_turned_away() {
    let mut stranger = me("n7", 1);
    stranger.job = Arc::from("j1");
    let mut of_another_job = me("n2", 1);
    of_another_job.job = "j2".into();
    let others = vec![(stranger, well(100.0)), (of_another_job, well(100.0))];
    let (report, results) = preflight(2, Duration::from_secs(2), others);
    assert_eq!(
        problems(&report),
        ["n2 rendezvous: was rejected (127.0.0.1): it belongs to job j2"]
    );
    let said: Vec<String> = results
        .iter()
        .map(|result| result.as_ref().unwrap_err().to_string())
        .collect();
    assert!(
        said[0].contains("n7 is not among the nodes of this preflight"),
        "{said:?}"
    );
    assert!(said[1].contains("it belongs to job j2"), "{said:?}");
}

#[test]
fn garbage_at_the_door_holds_nobody_up() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let first = listener.local_addr().unwrap();
    // Some of these strangers are silent, and some send garbage.
    let mut strangers: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(first).unwrap()).collect();
    for stranger in strangers.iter_mut().step_by(2) {
        stranger.write_all(&[0xff; 4096]).unwrap();
    }
    let other = thread::spawn(move || {
        attend(
            &first.to_string(),
            &me("n2", 1),
            &well(100.0),
            Duration::from_secs(10),
            &mut |_| (),
        )
    });
    let begun = Instant::now();
    let report = lead(
        Lead {
            listener,
            expected: Expected {
                count: 2,
                names: names(2),
            },
            mode: Mode::Quick,
            wait: Duration::from_secs(10),
            min_busbw: Some(1e6),
            past: &|_| Ok(Vec::new()),
        },
        &me("n1", 1),
        &well(100.0),
        &mut |_, _, _| (),
    )
    .unwrap();
    assert_eq!(problems(&report), Vec::<String>::new());
    assert!(report.phases[0].1 < 4.0, "{:?}", report.phases);
    assert!(begun.elapsed() < Duration::from_secs(40));
    // The user's requirement is not met.
    assert!(
        report
            .findings
            .iter()
            .any(|noted| noted.metric() == Some(Metric::PairBusbw))
    );
    assert!(other.join().unwrap().is_ok());
}

#[test]
fn a_first_node_that_never_comes_is_an_error_in_time() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let begun = Instant::now();
    let result = attend(
        &free.to_string(),
        &me("n2", 1),
        &well(1.0),
        Duration::from_secs(1),
        &mut |_| (),
    );
    assert!(
        matches!(result, Err(PreflightError::FirstAbsent { .. })),
        "{result:?}"
    );
    assert!(begun.elapsed() < Duration::from_secs(3));
}
