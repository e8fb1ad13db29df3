use super::*;
use crate::event::{CommEntered, Group};

const ALL_REDUCE: u8 = 1;
const ALL_GATHER: u8 = 3;

/// Ranks, each with its last collectives `(communicator, function, sequence, bytes)`.
fn evidence(ranks: &[&[(u64, u8, u64, u64)]]) -> EnteredEvidence {
    let mut evidence = EnteredEvidence::default();
    for (rank, last) in (0..).map(Rank).zip(ranks) {
        let mut comms: BTreeMap<u64, Vec<LastCollective>> = BTreeMap::new();
        for (comm, function, sequence, bytes) in *last {
            comms
                .entry(*comm)
                .or_default()
                .push((*function, *sequence, *bytes).into());
        }
        let comms = comms.into_iter().map(|(comm, each)| CommEntered {
            comm,
            each,
            ago_ns: 0,
        });
        let answer = Entered {
            rank,
            restart: 0,
            comms: comms.collect(),
            whole: true,
        };
        evidence.take(Time(5), &answer);
    }
    evidence
}

/// Communicators 7 and 9, with four ranks each.
fn comms() -> Comms {
    let mut comms = Comms::default();
    for (comm, name) in [(7, "dp"), (9, "tp")] {
        for rank in (0..4).map(Rank) {
            comms.join(&Group {
                rank,
                restart: 0,
                comm,
                size: 4,
                name: name.into(),
            });
        }
    }
    comms
}

fn says(evidence: &mut EnteredEvidence) -> Option<(String, Cause)> {
    evidence.compare(Time(5));
    let none_missing = || Some((evidence.says_of_none_missing(&comms())?, Cause::Unknown));
    evidence.says_of_all(&comms()).or_else(none_missing)
}

#[test]
fn one_is_missing() {
    let [before, after] = [[(7, ALL_REDUCE, 99, 8)], [(7, ALL_REDUCE, 100, 4096)]];
    let mut all = evidence(&[&after, &after, &before, &after]);
    let expected = "rank 2 has not entered all_reduce #100 of dp (4.0 KiB), 3 other ranks have";
    assert_eq!(says(&mut all), Some((expected.to_owned(), Cause::Unknown)));
    let one = all.says_of(Rank(2), &comms());
    assert_eq!(
        one.as_ref().map(|(says, _)| &**says),
        Some("has not entered all_reduce #100 of dp (4.0 KiB), 3 other ranks have")
    );
    assert_eq!(all.says_of(Rank(1), &comms()), None);
    // The answers are from an earlier silence, so they do not count.
    assert_eq!(all.version(Time(6)), 0);
    all.compare(Time(6));
    assert_eq!(all.says_of_all(&comms()), None);
}

#[test]
fn two_call_in_another_order() {
    let first = [(7, ALL_REDUCE, 5, 8), (9, ALL_REDUCE, 4, 8)];
    let second = [(7, ALL_REDUCE, 4, 8), (9, ALL_REDUCE, 5, 8)];
    let mut all = evidence(&[&first, &first, &second, &first]);
    let expected = "rank 2 has not entered all_reduce #5 of dp (8 B), 3 other ranks have; it entered all_reduce #5 of tp (8 B) instead";
    assert_eq!(
        says(&mut all),
        Some((expected.to_owned(), Cause::CollectiveMismatch))
    );
}

#[test]
fn two_are_entered_by_all_in_another_order() {
    let answer = |rank: u32, order: [u64; 2]| Entered {
        rank: Rank(rank),
        restart: 0,
        comms: order
            .map(|comm| CommEntered {
                comm,
                each: vec![(ALL_REDUCE, comm, 8).into()],
                ago_ns: 0,
            })
            .to_vec(),
        whole: true,
    };
    let mut all = EnteredEvidence::default();
    for rank in [0, 1, 3] {
        all.take(Time(5), &answer(rank, [9, 7]));
    }
    all.take(Time(5), &answer(2, [7, 9]));
    let expected =
        "rank 2 entered all_reduce #9 of tp (8 B) before all_reduce #7 of dp (8 B), 3 other ranks after it";
    assert_eq!(says(&mut all), Some((expected.to_owned(), Cause::Unknown)));
}

#[test]
fn another_function_and_another_size() {
    let gather = [(7, ALL_GATHER, 51, 8), (7, ALL_REDUCE, 99, 8)];
    let reduce = [(7, ALL_REDUCE, 100, 8), (7, ALL_GATHER, 50, 8)];
    let (text, cause) = says(&mut evidence(&[&gather, &reduce, &gather])).unwrap();
    assert_eq!(cause, Cause::CollectiveMismatch);
    assert!(
        text.starts_with("rank 1 has not entered all_gather #51 of dp"),
        "{text}"
    );
    assert!(
        text.ends_with("it entered all_reduce #100 of dp (8 B) instead"),
        "{text}"
    );
    let (text, cause) = says(&mut evidence(&[
        &[(7, ALL_REDUCE, 99, 8)],
        &[(7, ALL_REDUCE, 99, 8)],
        &[(7, ALL_REDUCE, 99, 4)],
    ]))
    .unwrap();
    assert_eq!(cause, Cause::CollectiveMismatch);
    assert_eq!(
        text,
        "sizes differ in all_reduce #99 of dp: 4 B on rank 2, 8 B on ranks 0-1"
    );
}

#[test]
fn none_is_missing() {
    let last = [(7, ALL_REDUCE, 99, 8)];
    let expected = (
        "all 4 ranks have entered all_reduce #99 of dp (8 B)".to_owned(),
        Cause::Unknown,
    );
    assert_eq!(says(&mut evidence(&[&last, &last, &last, &last])), Some(expected));
    assert_eq!(says(&mut evidence(&[&last, &last, &last])), None);
    assert_eq!(says(&mut EnteredEvidence::default()), None);
}

#[test]
fn the_first_of_a_function_and_one_too_many() {
    // The other ranks gather for the first time, while rank 2 reduces.
    let gather = [(7, ALL_GATHER, 0, 16), (7, ALL_REDUCE, 149, 16)];
    let reduce = [(7, ALL_REDUCE, 150, 16)];
    let mut all = evidence(&[&gather, &gather, &reduce, &gather]);
    let expected = "rank 2 has not entered all_gather #0 of dp (16 B), 3 other ranks have; it entered all_reduce #150 of dp (16 B) instead";
    assert_eq!(
        says(&mut all),
        Some((expected.to_owned(), Cause::CollectiveMismatch))
    );
    let [before, after] = [[(7, ALL_REDUCE, 149, 16)], [(7, ALL_REDUCE, 150, 16)]];
    let mut all = evidence(&[&before, &before, &after, &before]);
    let expected = "rank 2 has entered all_reduce #150 of dp (16 B), 3 other ranks have not";
    assert_eq!(says(&mut all), Some((expected.to_owned(), Cause::Unknown)));
}

#[test]
fn another_size_is_said_of_the_rank_that_has_it() {
    let [usual, other] = [[(7, ALL_REDUCE, 150, 16384)], [(7, ALL_REDUCE, 150, 4)]];
    let mut all = evidence(&[&usual, &usual, &other, &usual]);
    all.compare(Time(5));
    let of = |rank| all.says_of(Rank(rank), &comms());
    let expected = "sizes differ in all_reduce #150 of dp: 4 B on rank 2, 16.0 KiB on ranks 0-1, 3";
    assert_eq!(of(2), Some((expected.to_owned(), Cause::CollectiveMismatch)));
    assert_eq!(of(1), None);
}
