use super::*;
use crate::event::Collective;

const COMM: u64 = 7;

/// A rank's report on a step, with its time in each collective in milliseconds.
fn told(rank: u32, step: u64, each_ms: &[u64]) -> Collectives {
    let one = |(sequence, ms): (u64, &u64)| Collective {
        function: 1,
        sequence,
        bytes: 1 << 20,
        dur_ns: ms * 1_000_000,
    };
    Collectives {
        rank: Rank(rank),
        restart: 0,
        step,
        comm: COMM,
        each: (0..).zip(each_ms).map(one).collect(),
        left_out: 0,
    }
}

/// Single collectives with a request that covers all reports of these tests.
fn asked() -> PerCollective {
    PerCollective {
        wants: vec![Want {
            comm: COMM,
            restart: 0,
            until: 1000,
        }],
        ..PerCollective::default()
    }
}

#[track_caller]
fn check(name: &str, rows: &[&[u64]], last: &[u32], transfer_ms: Option<u64>) {
    let mut exact = asked();
    for (rank, row) in (0..).zip(rows) {
        exact.add(&told(rank, 5, row));
    }
    let transfers = exact.close(COMM, rows.len() as u32, 5);
    let transfers: Vec<u64> = transfers.iter().map(|(_, s)| (s * 1e3).round() as u64).collect();
    let named: Vec<u32> = exact
        .came_last(COMM, 5)
        .into_iter()
        .flatten()
        .map(|rank| rank.0)
        .collect();
    assert_eq!(
        (named, transfers.first().copied()),
        (last.to_vec(), transfer_ms),
        "{name}"
    );
}

#[test]
fn what_single_collectives_say() {
    check(
        "nobody is late",
        &[&[5, 5], &[5, 5], &[5, 5], &[5, 5]],
        &[],
        Some(10),
    );
    check(
        "one is, to both",
        &[&[25, 25], &[5, 5], &[25, 25], &[25, 25]],
        &[1],
        Some(10),
    );
    check(
        "two are, each to one: their sums are even, and longer than the transfer",
        &[&[25, 5], &[5, 25], &[25, 25], &[25, 25]],
        &[0, 1],
        Some(10),
    );
    check(
        "two are, to the same one: who was last cannot be told, and the shortest is the transfer",
        &[&[5, 5], &[5, 5], &[25, 5], &[25, 5]],
        &[],
        Some(10),
    );
    check(
        "all transfers take longer: that is no wait for anybody",
        &[&[15, 15], &[15, 15], &[15, 16], &[16, 15]],
        &[],
        Some(30),
    );
    check(
        "each of seven is alone in one, by a little: chance",
        &[
            &[4, 7, 6, 6, 6, 6, 6],
            &[6, 4, 7, 6, 6, 6, 6],
            &[6, 6, 4, 7, 6, 6, 6],
            &[6, 6, 6, 4, 7, 6, 6],
            &[6, 6, 6, 6, 4, 7, 6],
            &[6, 6, 6, 6, 6, 4, 7],
            &[7, 6, 6, 6, 6, 6, 4],
        ],
        &[],
        Some(41),
    );
}

#[test]
fn what_is_left_out_tells_no_transfer() {
    let mut exact = asked();
    for rank in 0..4 {
        let each: &[u64] = if rank == 1 { &[5, 25] } else { &[25, 25] };
        let mut did = told(rank, 5, each);
        if rank == 3 {
            did.each.pop();
            did.left_out = 1;
        }
        exact.add(&did);
    }
    assert_eq!(exact.close(COMM, 4, 5), []);
    assert_eq!(exact.came_last(COMM, 5), Some(&[Rank(1)][..]));
}

#[test]
fn where_all_was_too_much_the_sums_speak() {
    let mut exact = asked();
    for rank in 0..4 {
        let left_out = 9;
        exact.add(&Collectives {
            left_out,
            ..told(rank, 5, &[])
        });
    }
    assert_eq!(exact.close(COMM, 4, 5), []);
    assert_eq!(exact.came_last(COMM, 5), None);
}

#[test]
fn too_few_say_nothing_and_a_second_word_counts_for_nothing() {
    let mut exact = asked();
    exact.add(&told(0, 5, &[5, 5]));
    for _ in 0..4 {
        exact.add(&told(1, 5, &[25, 25]));
    }
    assert_eq!(exact.close(COMM, 4, 5), []);
    assert_eq!(exact.came_last(COMM, 5), None);
}

#[test]
fn what_nobody_asked_for_is_not_kept() {
    let mut exact = asked();
    let other = Collectives {
        comm: COMM + 1,
        ..told(0, 5, &[5])
    };
    exact.add(&other);
    exact.add(&told(0, 1001, &[5]));
    assert!(exact.open.is_empty());
    for step in 0..1000 {
        exact.add(&told(0, step, &[5]));
    }
    assert_eq!(exact.open.len(), MOST_OPEN);
}

fn comm(size: u32, collectives: u32, is_suspect: bool, is_slow: bool) -> Comm {
    let mut comm = Comm::default();
    (comm.size, comm.collectives) = (size, collectives);
    (comm.is_suspect, comm.is_slow) = (is_suspect, is_slow);
    comm
}

#[test]
fn what_is_asked_for() {
    let mut all: BTreeMap<u64, Comm> = [
        (1, comm(4, 200, false, true)),
        (2, comm(4, 200, true, false)),
        (3, comm(4, 200, false, false)),
        (4, comm(2, 200, true, false)),
        (5, comm(4, 1, true, false)),
        (6, comm(4096, 200, true, false)),
    ]
    .into();
    let mut exact = PerCollective::default();
    let asked = |exact: &PerCollective| exact.wants().iter().map(|want| want.comm).collect::<Vec<u64>>();
    exact.ask(&all, &BTreeSet::from([3]), 0, 100);
    assert_eq!(
        asked(&exact),
        [2, 1, 3],
        "not pairs, not one, not what would flood the journal"
    );
    assert!(exact.wants().iter().all(|want| want.until == 100 + STEPS));
    // Single collectives for the same trouble are requested again only after a long time, and for a new one after a
    // break. The number of requests is limited.
    exact.ask(&all, &BTreeSet::from([3]), 0, 500 + STEPS);
    assert!(asked(&exact).is_empty(), "it is over, and rests");
    all.insert(2, comm(4, 200, false, false));
    exact.ask(&all, &BTreeSet::from([3]), 0, 504 + STEPS);
    all.insert(2, comm(4, 200, true, false));
    exact.ask(&all, &BTreeSet::from([3]), 0, 508 + STEPS);
    assert_eq!(asked(&exact), [2]);
    exact.ask(&all, &BTreeSet::from([3]), 0, 100 + STEPS + REST);
    assert_eq!(asked(&exact), [1, 3]);
    all.extend((10..100).map(|id| (id, comm(4, 200, true, false))));
    exact.ask(&all, &BTreeSet::new(), 0, 104 + STEPS + REST);
    assert_eq!(exact.wants().len(), MOST_WANTS);
}
