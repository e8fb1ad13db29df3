//! Dumps that PyTorch 2.15 wrote on the virtual GPU (tests/hangs, in which rank 2 hangs in step 150), with the paths
//! changed.

use std::collections::BTreeMap;

use super::*;
use crate::id::Rank;
use crate::verdict::Cause;

macro_rules! dumps {
    ($set:literal, $($rank:literal)*) => {
        BTreeMap::from([$((
            Rank($rank),
            Dump::decode(include_bytes!(concat!("../../tests/flight_recorder/", $set, "/rank_", $rank))).unwrap(),
        )),*])
    };
}

#[track_caller]
fn is(dumps: &BTreeMap<Rank, Dump>, says: &str, suspects: &[u32], cause: Cause) -> Vec<String> {
    let compared = Comparison::of(dumps);
    assert_eq!(compared.says, says);
    let named: Vec<u32> = compared.suspects.iter().map(|rank| rank.0).collect();
    assert_eq!((&*named, compared.cause), (suspects, cause));
    let positions = compared.positions.iter();
    positions
        .map(|position| {
            let state = if position.is_pending { "in" } else { "after" };
            let ranks: Vec<String> = position.ranks.iter().map(ToString::to_string).collect();
            format!(
                "{}: {state} {} {}",
                ranks.join(" "),
                position.collective,
                position.at
            )
        })
        .collect()
}

#[test]
fn a_rank_that_is_missing() {
    let says = "rank 2 has not entered all_reduce #156 of group 0 (16.2 KiB), 3 other ranks have";
    let dumps = dumps!("missing", 0 1 2 3);
    let positions = is(&dumps, says, &[2], Cause::Unknown);
    // Collectives of the backward pass come from a thread without Python frames.
    let expected = [
        "2: after all_reduce #155 of group 0 (16.2 KiB) ",
        "0 1 3: in all_reduce #156 of group 0 (16.2 KiB) ",
    ];
    assert_eq!(positions, expected);
}

#[test]
fn a_rank_that_is_missing_and_left_no_dump() {
    let says = "3 of 4 ranks have entered all_reduce #156 of group 0 (16.2 KiB), none of them has finished it; rank 2 \
        left no dump";
    let dumps = dumps!("missing-without-dump", 0 1 3);
    let positions = is(&dumps, says, &[], Cause::Unknown);
    assert_eq!(positions, ["0 1 3: in all_reduce #156 of group 0 (16.2 KiB) "]);
}

#[test]
fn a_rank_in_another_collective() {
    let says = "operations differ in collective #156 of group 0: all_reduce (16 B) on rank 2, all_gather (16 B) on ranks 0-1, 3";
    let dumps = dumps!("another-collective", 0 1 2 3);
    let positions = is(&dumps, says, &[2], Cause::CollectiveMismatch);
    let expected = [
        "2: in all_reduce #156 of group 0 (16 B) train.py:151 in in_step",
        "0 1 3: in all_gather #156 of group 0 (16 B) train.py:146 in in_step",
    ];
    assert_eq!(positions, expected);
}

#[test]
fn ranks_that_are_in_a_barrier() {
    let says = "operations differ in collective #156 of group 0: all_reduce (16.2 KiB) on rank 2, barrier on ranks 0-1, 3";
    let dumps = dumps!("barrier", 0 1 2 3);
    is(&dumps, says, &[2], Cause::CollectiveMismatch);
}

fn entry(group: &str, sequence: u64, name: &str, bytes: u64, is_completed: bool) -> dump::Entry {
    dump::Entry {
        group: group.to_owned(),
        sequence,
        name: name.to_owned(),
        message: dump::ends(name),
        bytes: (bytes, bytes),
        types: "Float".to_owned(),
        is_completed,
        at: None,
    }
}

/// Dumps of ranks 0, 1, ... in groups with these members.
fn job<const N: usize>(groups: &[(&str, &[u32])], entries: [Vec<dump::Entry>; N]) -> BTreeMap<Rank, Dump> {
    let group = |(name, members): &(&str, &[u32])| {
        let group = dump::Group {
            name: (*name).to_owned(),
            description: "pp".to_owned(),
            members: members.iter().copied().map(Rank).collect(),
        };
        ((*name).to_owned(), group)
    };
    let ranks = entries.into_iter().enumerate();
    ranks
        .map(|(rank, entries)| {
            let rank = Rank(rank as u32);
            let of_rank = groups
                .iter()
                .map(group)
                .filter(|(_, group)| group.members.contains(&rank));
            let dump = Dump {
                groups: of_rank.collect(),
                entries,
                is_whole: true,
            };
            (rank, dump)
        })
        .collect()
}

#[test]
fn sizes_that_differ() {
    let all = |bytes| {
        vec![
            entry("0", 1, "all_reduce", 4, true),
            entry("0", 2, "all_reduce", bytes, false),
        ]
    };
    let dumps = job(&[("0", &[0, 1, 2])], [all(8), all(8), all(64)]);
    let says = "sizes differ in all_reduce #2 of pp: 64 B on rank 2, 8 B on ranks 0-1";
    is(&dumps, says, &[2], Cause::CollectiveMismatch);
    // Of two halves neither is the one that differs; of an all-to-all sizes may differ.
    let dumps = job(&[("0", &[0, 1])], [all(8), all(64)]);
    let says = "sizes differ in all_reduce #2 of pp: 8 B on rank 0, 64 B on rank 1";
    is(&dumps, says, &[], Cause::CollectiveMismatch);
    let uneven = |bytes| vec![entry("0", 1, "all_to_all", bytes, false)];
    let dumps = job(&[("0", &[0, 1])], [uneven(8), uneven(64)]);
    let says = "all 2 ranks have entered all_to_all #1 of pp (8 B), none of them has finished it";
    is(&dumps, says, &[], Cause::Unknown);
}

/// Rank 2 of a pipeline waits for rank 1, which waits for rank 0, which has enqueued nothing.
#[test]
fn messages_are_followed_to_their_sender() {
    let recv = |name: &str| vec![entry("0", 1, name, 4, false)];
    let pipeline = [vec![], recv("recv 1<-0"), recv("recv 2<-1")];
    let says = "rank 1 waits in recv 1<-0 of pp, and rank 0 has not entered it";
    is(&job(&[("0", &[0, 1, 2])], pipeline), says, &[0], Cause::Unknown);
}

/// Ranks 0 and 1 wait for each other in two groups; a rank that is missing in one and waits in none is named before.
#[test]
fn who_waits_is_not_who_is_missing() {
    let first = || entry("1", 1, "all_reduce", 4, false);
    let second = || entry("2", 1, "all_reduce", 4, false);
    let groups: [(&str, &[u32]); 2] = [("1", &[0, 1]), ("2", &[1, 2])];
    // Rank 1 waits for rank 2, and rank 0 for rank 1.
    let says = "rank 2 has not entered all_reduce #1 of pp (4 B), 1 other rank has";
    is(
        &job(&groups, [vec![first()], vec![second()], vec![]]),
        says,
        &[2],
        Cause::Unknown,
    );
}

#[test]
fn one_order_and_another() {
    let first = || entry("1", 1, "all_reduce", 4, false);
    let second = || entry("2", 1, "all_reduce", 4, false);
    let groups: [(&str, &[u32]); 2] = [("1", &[0, 1, 2]), ("2", &[0, 1, 2])];
    let usual = || vec![first(), second()];
    let dumps = job(&groups, [usual(), vec![second(), first()], usual()]);
    let says =
        "rank 1 entered all_reduce #1 of pp (4 B) before all_reduce #1 of pp (4 B), 2 other ranks after it";
    is(&dumps, says, &[1], Cause::Unknown);
}

#[test]
fn a_job_that_goes_on() {
    let dumps = job(
        &[("0", &[0, 1])],
        [vec![], vec![entry("0", 1, "all_reduce", 4, true)]],
    );
    is(&dumps, "no collective is pending in 2 dumps", &[], Cause::Unknown);
}

/// Without any one dump of a healthy rank the same is said of the same rank.
#[test]
fn a_quarter_of_the_dumps_is_lost() {
    for lost in [0, 1, 3] {
        for mut dumps in [
            dumps!("missing", 0 1 2 3),
            dumps!("another-collective", 0 1 2 3),
            dumps!("barrier", 0 1 2 3),
        ] {
            dumps.remove(&Rank(lost));
            let compared = Comparison::of(&dumps);
            assert_eq!(compared.suspects, [Rank(2)], "{}", compared.says);
            assert_eq!(compared.without_dump, [Rank(lost)]);
        }
    }
}
