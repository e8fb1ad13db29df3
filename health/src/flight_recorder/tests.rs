//! Dumps from tests/hangs. Rank 2 hangs in step 150. Some dumps are from PyTorch 2.15 on the virtual GPU. Others
//! (`real-gpu`) are from PyTorch 2.11 with NCCL 2.28.9 on an H100, with changed paths.

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
                position.operation,
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

/// The watchdog of the rank in the barrier has aborted it and recorded it as completed.
#[test]
fn a_rank_in_a_barrier_on_a_real_gpu() {
    let says = "operations differ in collective #156 of group 0: barrier on rank 2, all_reduce (16.2 KiB) on ranks 0-1, 3";
    let positions = is(
        &dumps!("real-gpu", 0 1 2 3),
        says,
        &[2],
        Cause::CollectiveMismatch,
    );
    let expected = [
        "2: after barrier #156 of group 0 train.py:198 in main",
        "0 1 3: in all_reduce #156 of group 0 (16.2 KiB) ",
    ];
    assert_eq!(positions, expected);
}

pub(super) fn entry(group: &str, sequence: u64, name: &str, bytes: u64, is_completed: bool) -> dump::Entry {
    let tensors = dump::Tensors {
        bytes,
        types: "Float".to_owned(),
    };
    let is_message = name.starts_with("send ") || name.starts_with("recv ");
    dump::Entry {
        group: group.to_owned(),
        sequence,
        name: name.to_owned(),
        message: is_message.then(|| dump::ends(name)),
        input: tensors.clone(),
        output: tensors,
        is_completed,
        at: None,
    }
}

/// Returns dumps of ranks 0, 1, ... in groups with the given members.
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
            let mut messages = BTreeMap::new();
            for entry in &entries {
                if let Some(message) = entry.message {
                    *messages.entry((entry.group.clone(), message)).or_default() += 1;
                }
            }
            let dump = Dump {
                groups: of_rank.collect(),
                entries,
                messages,
                is_whole: true,
                last_ns: 0,
            };
            (rank, dump)
        })
        .collect()
}

pub(super) fn all_reduce(group: &str, sequence: u64, is_completed: bool) -> dump::Entry {
    entry(group, sequence, "all_reduce", 4, is_completed)
}

#[test]
fn sizes_that_differ() {
    let all = |bytes| {
        vec![
            all_reduce("0", 1, true),
            entry("0", 2, "all_reduce", bytes, false),
        ]
    };
    let dumps = job(&[("0", &[0, 1, 2])], [all(8), all(8), all(64)]);
    let says = "sizes differ in all_reduce #2 of group 0 \"pp\": 64 B on rank 2, 8 B on ranks 0-1";
    is(&dumps, says, &[2], Cause::CollectiveMismatch);
    // Without a majority there is no suspect.
    let dumps = job(&[("0", &[0, 1])], [all(8), all(64)]);
    let says = "sizes differ in all_reduce #2 of group 0 \"pp\": 8 B on rank 0, 64 B on rank 1";
    is(&dumps, says, &[], Cause::CollectiveMismatch);
}

/// The parts of an all-gather, and the root's output of a gather, differ by design.
#[test]
fn sizes_that_may_differ() {
    let uneven = |name, input, output| {
        let mut uneven = entry("0", 1, name, input, false);
        uneven.output.bytes = output;
        vec![uneven]
    };
    for (name, [first, second]) in [
        ("all_to_all", [(8, 64), (64, 8)]),
        ("all_gather", [(8, 72), (64, 72)]),
        ("gather", [(8, 16), (8, 0)]),
        ("scatter", [(16, 8), (0, 8)]),
    ] {
        let dumps = job(
            &[("0", &[0, 1])],
            [uneven(name, first.0, first.1), uneven(name, second.0, second.1)],
        );
        let compared = Comparison::of(&dumps);
        assert!(
            compared.says.starts_with("all 2 ranks have entered"),
            "{}",
            compared.says
        );
    }
}

/// Rank 2 of a pipeline waits for rank 1, which waits for rank 0, which has enqueued nothing. The same is tested in the
/// reverse direction.
#[test]
fn messages_are_followed_to_their_sender() {
    let pending = |names: &[&str]| names.iter().map(|name| entry("0", 1, name, 4, false)).collect();
    let groups: [(&str, &[u32]); 1] = [("0", &[0, 1, 2])];
    let forward = [vec![], pending(&["recv 1<-0"]), pending(&["recv 2<-1"])];
    let says = "rank 1 waits in group 0 \"pp\" for a message from rank 0, which has not sent it";
    is(&job(&groups, forward), says, &[0], Cause::Unknown);
    let backward = [
        pending(&["recv 0<-1"]),
        pending(&["recv 1<-2", "send 1->0"]),
        vec![],
    ];
    let says = "rank 1 waits in group 0 \"pp\" for a message from rank 2, which has not sent it";
    is(&job(&groups, backward), says, &[2], Cause::Unknown);
    // A small message has completed on the sender.
    let sent = [
        vec![entry("0", 1, "send 0->1", 4, true)],
        pending(&["recv 1<-0"]),
        vec![],
    ];
    let says = "rank 1 waits in group 0 \"pp\" for a message from rank 0, which has entered it too";
    is(&job(&groups, sent), says, &[], Cause::Unknown);
    // The sender's dump is missing.
    let mut lost = job(&groups, [vec![], pending(&["recv 1<-0"]), vec![]]);
    lost.remove(&Rank(0));
    let says = "rank 1 waits in group 0 \"pp\" for a message from rank 0; rank 0 left no dump";
    is(&lost, says, &[], Cause::Unknown);
}

/// Eight ranks, two per tensor-parallel group, four per data-parallel group. Rank 3 has stopped before its
/// tensor-parallel collective, and the others of its data-parallel group wait for rank 2, which waits for rank 3.
/// Whichever two dumps are missing, no rank other than rank 3 is a suspect.
#[test]
fn who_waits_is_no_suspect() {
    let groups: [(&str, &[u32]); 6] = [
        ("tp0", &[0, 1]),
        ("tp1", &[2, 3]),
        ("tp2", &[4, 5]),
        ("tp3", &[6, 7]),
        ("dp0", &[0, 2, 4, 6]),
        ("dp1", &[1, 3, 5, 7]),
    ];
    let of = |rank: u32| {
        let (tp, dp) = (format!("tp{}", rank / 2), format!("dp{}", rank % 2));
        match rank {
            2 => vec![all_reduce(&dp, 1, true), all_reduce(&tp, 1, false)],
            3 => vec![all_reduce(&dp, 1, true)],
            _ => vec![
                all_reduce(&dp, 1, true),
                all_reduce(&tp, 1, true),
                all_reduce(&dp, 2, false),
            ],
        }
    };
    let all = || job(&groups, [0, 1, 2, 3, 4, 5, 6, 7].map(of));
    let said = Comparison::of(&all()).says;
    assert!(
        said.starts_with(
            "rank 3 has not entered all_reduce #2 of group dp1 \"pp\" (4 B), 3 other ranks have"
        ),
        "{said}"
    );
    for first in 0..8 {
        for second in first + 1..8 {
            let mut dumps = all();
            dumps.retain(|rank, _| ![first, second].contains(&rank.0));
            let compared = Comparison::of(&dumps);
            let expected = if [first, second].contains(&3) {
                vec![]
            } else {
                vec![Rank(3)]
            };
            assert_eq!(compared.suspects, expected, "{first} {second}: {}", compared.says);
        }
    }
}

/// Operations are enqueued before they run on the GPU, so only the first pending one counts.
#[test]
fn ranks_that_have_enqueued_more() {
    let stuck = |more: u64| {
        (1..=3 + more)
            .map(|sequence| all_reduce("0", sequence, sequence < 3))
            .collect()
    };
    let dumps = job(&[("0", &[0, 1, 2])], [stuck(1), stuck(9), stuck(0)]);
    let says = "all 3 ranks have entered all_reduce #3 of group 0 \"pp\" (4 B), none of them has finished it";
    is(&dumps, says, &[], Cause::Unknown);
    // The root of a broadcast can complete it without the others.
    let root = vec![
        all_reduce("0", 1, true),
        entry("0", 2, "broadcast", 4, true),
        all_reduce("0", 3, false),
    ];
    let dumps = job(&[("0", &[0, 1])], [root, vec![all_reduce("0", 1, true)]]);
    let says = "rank 1 has not entered all_reduce #3 of group 0 \"pp\" (4 B), 1 other rank has";
    is(&dumps, says, &[1], Cause::Unknown);
}

#[test]
fn one_order_and_another() {
    let groups: [(&str, &[u32]); 2] = [("1", &[0, 1, 2]), ("2", &[0, 1, 2])];
    let usual = || vec![all_reduce("1", 1, false), all_reduce("2", 1, false)];
    let other = vec![all_reduce("2", 1, false), all_reduce("1", 1, false)];
    let dumps = job(&groups, [usual(), other, usual()]);
    let says = "rank 1 entered all_reduce #1 of group 2 \"pp\" (4 B) before all_reduce #1 of group 1 \"pp\" (4 B), \
        2 other ranks after it";
    is(&dumps, says, &[1], Cause::Unknown);
}

#[test]
fn a_job_that_goes_on() {
    let dumps = job(&[("0", &[0, 1])], [vec![], vec![all_reduce("0", 1, true)]]);
    is(&dumps, "no operation is pending in 2 dumps", &[], Cause::Unknown);
}

/// If the dump of any one healthy rank is missing, the result names the same rank.
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
