//! Tests bad nodes that have the key. They have another version, send garbage, or die during a measurement.

use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use paceline_nccl_bench::preflight::{Expected, Lead, Mode, attend, lead};
use paceline_seal::{Key, dial};
use serde_json::{Value, json};

use super::{Given, me, names, problems, well};

/// The purpose of the stream, the same in every version.
const CONTROL: &str = "paceline preflight control";

/// Runs a preflight of three nodes. n1 leads, n2 is healthy, and `play` acts as n3 and gets its first message.
fn beside(play: impl FnOnce(String, Value) + Send + 'static) -> Vec<String> {
    beside_one(well(100.0), play)
}

fn beside_one(n2: Given, play: impl FnOnce(String, Value) + Send + 'static) -> Vec<String> {
    let begun = Instant::now();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let first = listener.local_addr().unwrap().to_string();
    let wait = Duration::from_secs(10);
    let at = first.clone();
    let second = thread::spawn(move || attend(&at, &me("n2", 1), &n2, wait, &mut |_| ()));
    let hello = json!({ "protocol": 2, "paceline": "0.1.0", "node": "n3", "job": "j1", "port": 1 });
    let third = thread::spawn(move || play(first, hello));
    let expected = Expected {
        count: 3,
        names: names(3),
    };
    let lead_by = Lead {
        listener,
        expected,
        mode: Mode::Quick,
        wait,
        min_busbw: None,
        past: &|_| Ok(Vec::new()),
    };
    let report = lead(lead_by, &me("n1", 1), &well(100.0), &mut |_, _, _| ()).unwrap();
    assert_eq!(second.join().unwrap().unwrap(), report, "the others went on");
    third.join().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", report.phases);
    let bad: Vec<String> = report.bad_nodes().iter().map(ToString::to_string).collect();
    assert_eq!(bad, ["n3"]);
    problems(&report)
}

fn meet(first: &str) -> (paceline_seal::Sealed, Instant) {
    let soon = Instant::now() + Duration::from_secs(20);
    let stream = TcpStream::connect(first).unwrap();
    (
        dial(stream, &Key::from_bytes([1; 32]), CONTROL, soon).unwrap(),
        soon,
    )
}

#[test]
fn another_version_is_turned_away_and_named() {
    let problems = beside(|first, mut hello| {
        let (mut stream, soon) = meet(&first);
        hello["protocol"] = 99.into();
        hello["paceline"] = "9.9.9".into();
        stream.send(hello.to_string().as_bytes(), soon).unwrap();
        let answer = String::from_utf8(stream.receive(1 << 20, soon).unwrap()).unwrap();
        assert!(
            answer.contains("paceline 9.9.9, whose preflight speaks version 99"),
            "{answer}"
        );
    });
    assert_eq!(problems.len(), 1, "{problems:?}");
    let wanted =
        "n3 rendezvous: was rejected (127.0.0.1): it runs paceline 9.9.9, whose preflight speaks version 99";
    assert!(problems[0].starts_with(wanted), "{problems:?}");
}

#[test]
fn garbage_of_one_who_knows_the_key_costs_only_itself() {
    let problems = beside(|first, hello| {
        let (mut stream, soon) = meet(&first);
        stream.send(hello.to_string().as_bytes(), soon).unwrap();
        stream.receive(1 << 20, soon).unwrap();
        stream.receive(1 << 20, soon).unwrap();
        stream.send(b"\xff\xfe no JSON at all", soon).unwrap();
        // The node stays connected, so that waiting for its end takes until the deadline.
        thread::sleep(Duration::from_secs(5));
    });
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(
        problems[0].starts_with("n3 snapshot: snapshot: connection lost: message"),
        "{problems:?}"
    );
}

#[test]
fn an_answer_to_another_question_is_none() {
    let problems = beside(|first, hello| {
        let (mut stream, soon) = meet(&first);
        stream.send(hello.to_string().as_bytes(), soon).unwrap();
        stream.receive(1 << 20, soon).unwrap();
        stream.receive(1 << 20, soon).unwrap();
        let answer = json!({ "id": 77, "result": { "Ok": {} }, "port": 1 });
        stream.send(answer.to_string().as_bytes(), soon).unwrap();
        thread::sleep(Duration::from_secs(8));
    });
    assert_eq!(problems, ["n3 snapshot: snapshot: no answer within 3 s"]);
}

#[test]
fn a_node_that_ends_when_it_has_answered_is_waited_for_no_more() {
    let slow = Given {
        hangs: Some(Duration::from_secs(2)),
        ..well(100.0)
    };
    let problems = beside_one(slow, |first, hello| {
        let (mut stream, soon) = meet(&first);
        stream.send(hello.to_string().as_bytes(), soon).unwrap();
        stream.receive(1 << 20, soon).unwrap();
        for _phase in ["snapshot", "work"] {
            let ask: Value = serde_json::from_slice(&stream.receive(1 << 20, soon).unwrap()).unwrap();
            let answer = json!({ "id": ask["id"], "result": { "Ok": {} }, "port": 1 });
            stream.send(answer.to_string().as_bytes(), soon).unwrap();
        }
        // n2 still works.
    });
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(
        problems[0].starts_with("n3 work: work: connection lost: "),
        "{problems:?}"
    );
}

#[test]
fn a_node_that_dies_while_it_measures_with_others_is_named() {
    let problems = beside(|first, _| {
        let dying = Given {
            dies_with_others: true,
            ..well(100.0)
        };
        let wait = Duration::from_secs(3);
        let died = thread::spawn(move || attend(&first, &me("n3", 1), &dying, wait, &mut |_| ()));
        assert!(died.join().is_err());
    });
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(
        problems[0].starts_with("n3 pairs, round ") && problems[0].contains("connection lost: "),
        "{problems:?}"
    );
}
