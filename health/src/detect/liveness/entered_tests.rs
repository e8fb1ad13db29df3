use super::*;
use crate::event::CommEntered;

const ALL_REDUCE: u8 = 1;
const ALL_GATHER: u8 = 3;

/// Ranks with the last collectives `(communicator, function, sequence, bytes)` of each.
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
        let comms = comms.into_iter().map(|(comm, each)| CommEntered { comm, each });
        let told = Entered {
            rank,
            restart: 0,
            comms: comms.collect(),
        };
        evidence.take(Time(5), &told);
    }
    evidence
}

fn says(evidence: &EnteredEvidence) -> Option<(String, Cause)> {
    evidence.says_of_all(Time(5), &Comms::default())
}

#[test]
fn one_is_missing() {
    let [before, after] = [[(7, ALL_REDUCE, 99, 8)], [(7, ALL_REDUCE, 100, 4096)]];
    let all = evidence(&[&after, &after, &before, &after]);
    let expected = "rank 2 has not entered all_reduce 100 (4.0 KiB), 3 other ranks have";
    assert_eq!(says(&all), Some((expected.to_owned(), Cause::Unknown)));
    let one = all.says_of(Rank(2), Time(5), &Comms::default());
    assert_eq!(
        one.as_ref().map(|(says, _)| &**says),
        Some("has not entered all_reduce 100 (4.0 KiB), 3 other ranks have")
    );
    assert_eq!(all.says_of(Rank(1), Time(5), &Comms::default()), None);
    // Of an earlier silence.
    assert_eq!(all.says_of_all(Time(6), &Comms::default()), None);
    assert_eq!(all.version(Time(6)), 0);
}

#[test]
fn two_call_in_another_order() {
    let first = [(7, ALL_REDUCE, 5, 8), (9, ALL_REDUCE, 4, 8)];
    let second = [(7, ALL_REDUCE, 4, 8), (9, ALL_REDUCE, 5, 8)];
    let all = evidence(&[&first, &first, &second, &first]);
    let expected = "rank 2 has not entered all_reduce 5 (8 B), 3 other ranks have; it entered all_reduce 5 (8 B) instead";
    assert_eq!(says(&all), Some((expected.to_owned(), Cause::CollectiveMismatch)));
}

#[test]
fn two_are_entered_by_all_in_another_order() {
    let told = |rank: u32, order: [u64; 2]| Entered {
        rank: Rank(rank),
        restart: 0,
        comms: order
            .map(|comm| CommEntered {
                comm,
                each: vec![(ALL_REDUCE, comm, 8).into()],
            })
            .to_vec(),
    };
    let mut all = EnteredEvidence::default();
    for rank in [0, 1, 3] {
        all.take(Time(5), &told(rank, [9, 7]));
    }
    all.take(Time(5), &told(2, [7, 9]));
    let expected = "rank 2 entered all_reduce 9 (8 B) before all_reduce 7 (8 B), 3 other ranks after it";
    assert_eq!(says(&all), Some((expected.to_owned(), Cause::CollectiveMismatch)));
}

#[test]
fn another_function_and_another_size() {
    let gather = [(7, ALL_GATHER, 51, 8), (7, ALL_REDUCE, 99, 8)];
    let reduce = [(7, ALL_REDUCE, 100, 8), (7, ALL_GATHER, 50, 8)];
    let (text, cause) = says(&evidence(&[&gather, &reduce, &gather])).unwrap();
    assert_eq!(cause, Cause::CollectiveMismatch);
    assert!(text.starts_with("rank 1 has not entered all_gather 51"), "{text}");
    assert!(
        text.ends_with("it entered all_reduce 100 (8 B) instead"),
        "{text}"
    );
    let (text, cause) = says(&evidence(&[
        &[(7, ALL_REDUCE, 99, 8)],
        &[(7, ALL_REDUCE, 99, 8)],
        &[(7, ALL_REDUCE, 99, 4)],
    ]))
    .unwrap();
    assert_eq!(cause, Cause::CollectiveMismatch);
    assert_eq!(
        text,
        "sizes differ in all_reduce 99: 4 B on rank 2, 8 B on ranks 0-1"
    );
}

#[test]
fn none_is_missing() {
    let last = [(7, ALL_REDUCE, 99, 8)];
    let expected = (
        "all 2 ranks have entered all_reduce 99 (8 B)".to_owned(),
        Cause::Unknown,
    );
    assert_eq!(says(&evidence(&[&last, &last])), Some(expected));
    assert_eq!(says(&evidence(&[&last])), None);
    assert_eq!(says(&EnteredEvidence::default()), None);
}

#[test]
fn the_first_of_a_function_and_one_too_many() {
    // The others gather for the first time, where rank 2 reduces.
    let gather = [(7, ALL_GATHER, 0, 16), (7, ALL_REDUCE, 149, 16)];
    let reduce = [(7, ALL_REDUCE, 150, 16)];
    let all = evidence(&[&gather, &gather, &reduce, &gather]);
    let expected = "rank 2 has not entered all_gather 0 (16 B), 3 other ranks have; it entered all_reduce 150 (16 B) instead";
    assert_eq!(says(&all), Some((expected.to_owned(), Cause::CollectiveMismatch)));
    let [before, after] = [[(7, ALL_REDUCE, 149, 16)], [(7, ALL_REDUCE, 150, 16)]];
    let all = evidence(&[&before, &before, &after, &before]);
    let expected = "rank 2 has entered all_reduce 150 (16 B), 3 other ranks have not";
    assert_eq!(says(&all), Some((expected.to_owned(), Cause::Unknown)));
}

#[test]
fn another_size_is_said_of_the_rank_that_has_it() {
    let [usual, other] = [[(7, ALL_REDUCE, 150, 16384)], [(7, ALL_REDUCE, 150, 4)]];
    let all = evidence(&[&usual, &usual, &other, &usual]);
    let of = |rank| all.says_of(Rank(rank), Time(5), &Comms::default());
    let expected = "sizes differ in all_reduce 150: 4 B on rank 2, 16.0 KiB on ranks 0-1, 3";
    assert_eq!(of(2), Some((expected.to_owned(), Cause::CollectiveMismatch)));
    assert_eq!(of(1), None);
}
