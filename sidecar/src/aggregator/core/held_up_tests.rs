use super::super::tests::{batch, hello, open};
use super::*;

/// The aggregator is stopped for a minute. Two nodes kept sending; a third was silent before and stays silent.
#[test]
fn who_was_held_up_accuses_nobody_of_it() {
    const SECOND: u64 = 1_000_000_000;
    let dir = tempfile::tempdir().unwrap();
    let mut aggregator = open(dir.path(), 0);
    let blind = |aggregator: &Aggregator| {
        let verdicts = aggregator.report().verdicts;
        verdicts
            .iter()
            .map(|verdict| verdict.subject.to_string())
            .collect::<Vec<_>>()
    };
    let mut seq = 0;
    let mut speak = |aggregator: &mut Aggregator, nodes: &[&str], at: u64| {
        seq += 1;
        for node in nodes {
            aggregator.take(&batch(node, 7, seq, &[hello()]), at * SECOND);
        }
        aggregator.tick(at * SECOND);
    };
    speak(&mut aggregator, &["a", "b", "c"], 1);
    (2..6).for_each(|at| speak(&mut aggregator, &["a", "b"], at));
    assert_eq!(blind(&aggregator), [""; 0]);
    // Both nodes have given up on the aggregator meanwhile. One of them reconnects late.
    for at in 66..130 {
        let back = if at < 110 { &["a"][..] } else { &["a", "b"] };
        speak(&mut aggregator, back, at);
        assert_eq!(blind(&aggregator), [""; 0], "at {at} s");
    }
    (130..140).for_each(|at| speak(&mut aggregator, &["a", "b"], at));
    assert_eq!(blind(&aggregator), ["node c"]);
    // The third node's last message was sent before all that.
    let since = aggregator.report().verdicts[0].since_s;
    assert!(since < 2.0, "{since}");
}

/// The aggregator is paused half of the time, for a few seconds each. One of two nodes is dead.
#[test]
fn who_is_held_up_again_and_again_sees_who_is_dead() {
    const SECOND: u64 = 1_000_000_000;
    let dir = tempfile::tempdir().unwrap();
    let mut aggregator = open(dir.path(), 0);
    for node in ["a", "b"] {
        aggregator.take(&batch(node, 7, 1, &[hello()]), SECOND);
    }
    let mut at = SECOND;
    for seq in 2..8 {
        at += SECOND * 5 / 2;
        aggregator.tick(at);
        (0..2).for_each(|second| {
            at += SECOND;
            aggregator.take(&batch("a", 7, 2 * seq + second, &[hello()]), at);
            aggregator.tick(at);
        });
    }
    let report = aggregator.report();
    let named: Vec<String> = report
        .verdicts
        .iter()
        .map(|verdict| verdict.subject.to_string())
        .collect();
    assert_eq!(named, ["node b"]);
    assert!(report.verdicts[0].since_s < 2.0, "{:?}", report.verdicts[0]);
}
