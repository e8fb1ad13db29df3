//! Tests of the reason for a job's end.

use super::*;
use crate::event::{Beat, Exit, Phase, Pulse};
use crate::frame::{Provenance, SCHEMA_VERSION};
use crate::id::Rank;
use crate::time::Time;

/// Input language: `node kind [rank]` is a trouble and `node CODE` is an exit, in order. `again` means that another
/// group began, `forget` that the rank kept training, and `lost` lists nodes that became unreachable.
fn ending(said: &str, lost: &[&str]) -> Option<(Reason, Option<String>, Option<u32>)> {
    let mut endings = Endings::default();
    for words in said.split(", ").filter(|words| !words.is_empty()) {
        let mut words = words.split(' ');
        let (node, what) = (words.next().unwrap(), words.next().unwrap());
        let rank = words.next().map(|rank| Rank(rank.parse().unwrap()));
        if what == "again" {
            endings.survived();
            continue;
        }
        if what == "forget" {
            endings.forget(|lives| Some(lives) == rank);
            continue;
        }
        let event = match what.parse() {
            Ok(code) => Event::Exit(Exit { code }),
            Err(_) => Event::Trouble(Trouble {
                rank,
                kind: serde_json::from_value(what.into()).unwrap(),
                says: "words".into(),
                code: None,
            }),
        };
        endings.take(
            Time::ZERO,
            &Frame {
                v: SCHEMA_VERSION,
                node: node.into(),
                agent: 1,
                seq: 1,
                provenance: Provenance::Live,
                event,
            },
        );
    }
    let open: Vec<_> = lost.iter().map(|node| (NodeId::from(*node), true)).collect();
    let found = endings.judge(&open)?;
    Some((
        found.reason,
        found.node.map(|node| node.as_str().to_owned()),
        found.rank.map(|rank| rank.0),
    ))
}

#[test]
fn what_came_first_and_is_no_consequence() {
    let check = |said: &str, lost: &[&str], reason, node: &str, rank| {
        let node = (!node.is_empty()).then(|| node.to_owned());
        assert_eq!(ending(said, lost), Some((reason, node, rank)), "{said}");
    };
    check("a 0, b 0", &[], Reason::Success, "", None);
    // The command was asked to end, and it ended normally.
    check("a signal, a 0", &[], Reason::Stopped, "a", None);
    check("a error 3, a 0", &[], Reason::Success, "", None);
    // Troubles before an exit are dropped, but the order of the exit and the signal must be kept.
    check(
        "a error 3, a error 4, b 5, a forget 3, a forget 4, a signal, a 143",
        &[],
        Reason::Error,
        "b",
        None,
    );
    check(
        "a peer_lost 0, b error 3, a 1, b 1",
        &[],
        Reason::Error,
        "b",
        Some(3),
    );
    check(
        "a peer_lost 0, b collective_timeout 3, a 1, b 1",
        &[],
        Reason::CollectiveTimeout,
        "b",
        Some(3),
    );
    check(
        "a error 0, b gpu_memory 3, a 1, b 1",
        &[],
        Reason::OutOfMemory,
        "b",
        Some(3),
    );
    check(
        "b error 3, b 137, a oom_kill, a 137",
        &[],
        Reason::OutOfMemory,
        "a",
        None,
    );
    check(
        "a signal, b signal, b error 3, a 143, b 1",
        &[],
        Reason::Stopped,
        "a",
        None,
    );
    // The scheduler reports why it sent the signal.
    check(
        "a signal, b signal, a time_limit, a 143, b 143",
        &[],
        Reason::TimeLimit,
        "",
        None,
    );
    check("a signal, a cancelled, a 0", &[], Reason::Cancelled, "", None);
    check(
        "a signal, a requeued, b error 3, a 0, b 1",
        &[],
        Reason::Requeued,
        "",
        None,
    );
    check("a signal, a node_failed, a 0", &[], Reason::NodeLost, "", None);
    check(
        "a signal, a node_failed, a 143",
        &["b"],
        Reason::NodeLost,
        "",
        None,
    );
    check(
        "b error 3, a signal, a cancelled, b 1, a 143",
        &[],
        Reason::Error,
        "b",
        Some(3),
    );
    // One command failed, and srun then stopped the others.
    check("b 139, a signal, a 143", &[], Reason::Crashed, "b", None);
    check(
        "b 143, a signal, a preempted, a 143",
        &[],
        Reason::Preempted,
        "",
        None,
    );
    check("a peer_lost 0, a 1", &["b"], Reason::NodeLost, "b", None);
    // In an elastic job the lost node is no longer expected, so the last failure is the reason.
    check(
        "a peer_lost 0, b 137, a again, a 0, c 0",
        &[],
        Reason::Success,
        "",
        None,
    );
    check(
        "a error 0, a again, b error 3, a 1, b 1",
        &[],
        Reason::Error,
        "b",
        Some(3),
    );
    check("b signal, b 143, a again, a 0", &[], Reason::Success, "", None);
    check("a signal, a again, a 143", &[], Reason::Stopped, "a", None);
    check("a 143", &[], Reason::Stopped, "a", None);
    check("a 137", &[], Reason::Killed, "a", None);
    check("a 139", &[], Reason::Crashed, "a", None);
    check("a 7", &[], Reason::Error, "a", None);
}

#[test]
fn what_goes_on_has_not_ended() {
    assert_eq!(ending("", &[]), None);
    let endings = Endings {
        exits: vec![Exited {
            node: "a".into(),
            code: 1,
            after: 0,
        }],
        ..Endings::default()
    };
    assert_eq!(endings.judge(&[("b".into(), false)]), None);
    let mut endings = Endings::default();
    endings.troubles.push((
        "a".into(),
        Trouble {
            rank: Some(Rank(1)),
            kind: TroubleKind::Error,
            says: "words".into(),
            code: None,
        },
    ));
    assert_eq!(endings.judge(&[("a".into(), false)]), None);
    // The rank's process ended without an exit code.
    let end = endings.judge(&[]).unwrap();
    assert_eq!((end.reason, end.code), (Reason::Error, None));
}

fn frame(event: Event) -> Frame {
    Frame {
        v: SCHEMA_VERSION,
        node: "a".into(),
        agent: 1,
        seq: 1,
        provenance: Provenance::Live,
        event,
    }
}

/// With `train.py || true` the command exits with zero, but the error that ended a rank is reported.
#[test]
fn a_wrapper_that_ends_with_zero_hides_no_error() {
    let ended = |kind, says: &str| {
        let mut endings = Endings::default();
        let trouble = Trouble {
            rank: Some(Rank(1)),
            kind,
            says: says.into(),
            code: None,
        };
        for event in [Event::Trouble(trouble), Event::Exit(Exit { code: 0 })] {
            endings.take(Time::ZERO, &frame(event));
        }
        endings.judge(&[]).unwrap()
    };
    let end = ended(TroubleKind::Error, "ValueError: bad batch");
    assert_eq!((end.reason, end.code), (Reason::Success, Some(0)));
    assert_eq!(end.hidden().unwrap().rank, Some(Rank(1)));
    assert!(!end.is_in_order());
    // If a peer disconnects at the end, a job that exited with zero has not failed.
    assert!(ended(TroubleKind::PeerLost, "Connection closed by peer").is_in_order());
}

/// A killed rank reports nothing. Its peers report that they lost it, and the launcher stops the rest.
#[test]
fn who_was_killed_is_named_and_not_who_lost_him() {
    let mut endings = Endings::default();
    let gone = |rank, idle_ms: u64| Pulse {
        rank: Rank(rank),
        restart: 0,
        step: 125,
        phase: Phase::Compute,
        idle_ns: idle_ms * 1_000_000,
        alive: false,
    };
    let lost = |rank| {
        Event::Trouble(Trouble {
            rank: Some(Rank(rank)),
            kind: TroubleKind::PeerLost,
            says: "Connection closed by peer".into(),
            code: None,
        })
    };
    let ranks = vec![gone(0, 351), gone(1, 341), gone(2, 411), gone(3, 344)];
    let beat = Event::Beat(Beat {
        ranks,
        ..Beat::default()
    });
    for event in [lost(1), lost(3), beat, Event::Exit(Exit { code: 1 })] {
        endings.take(Time::ZERO, &frame(event));
    }
    let end = endings.judge(&[]).unwrap();
    assert_eq!(
        (end.reason, end.rank, end.code),
        (Reason::Crashed, Some(Rank(2)), None),
        "the code is that of its launcher"
    );
    assert_eq!(end.heard.len(), 2, "and what the others said");
}
