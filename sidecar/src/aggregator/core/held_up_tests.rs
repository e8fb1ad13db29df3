use super::super::tests::{batch, hello, open};
use super::*;

/// It is stopped for a minute; two nodes went on speaking, a third said nothing before and says nothing after.
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
    for at in 66..70 {
        speak(&mut aggregator, &["a", "b"], at);
        assert_eq!(blind(&aggregator), [""; 0], "at {at} s");
    }
    (70..73).for_each(|at| speak(&mut aggregator, &["a", "b"], at));
    assert_eq!(blind(&aggregator).len(), 1, "{:?}", blind(&aggregator));
}
