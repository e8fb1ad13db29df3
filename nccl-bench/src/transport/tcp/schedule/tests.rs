//! Runs all ranks' schedules against each other in memory. Any order of transfers must give the correct result.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::*;
use crate::dtype::Dtype;
use crate::pattern;
use crate::transport::tcp::sum::sum;

/// A rank with its buffers. The elements are i32.
struct Rank {
    schedule: Schedule,
    input: Option<Vec<u8>>,
    output: Vec<u8>,
    sent: Vec<usize>,
    got: Vec<usize>,
}

/// Bytes in flight, by sender and receiver.
type Links = BTreeMap<(usize, usize), VecDeque<u8>>;

const ELEMENT: usize = 4;

impl Rank {
    fn new(plan: &Plan, rank: usize, algorithm: Algorithm) -> Rank {
        let schedule = schedule(plan, rank, algorithm);
        let own = pattern::input(plan, rank);
        let mut output = vec![0xA5; space(plan)];
        let at = input(plan, rank).at;
        if plan.in_place {
            output[at..at + own.len()].copy_from_slice(&own);
        }
        if let Some(piece) = schedule.copy {
            output[piece.range()].copy_from_slice(&own[piece.at - at..][..piece.len]);
        }
        let (sends, receives) = (schedule.sends.len(), schedule.receives.len());
        let mut input = vec![0; at];
        input.extend(own);
        let input = (!plan.in_place).then_some(input);
        Rank {
            schedule,
            input,
            output,
            sent: vec![0; sends],
            got: vec![0; receives],
        }
    }

    fn space(&self, space: Space, at: usize) -> Vec<u8> {
        let from = self
            .input
            .as_ref()
            .filter(|_| space == Space::Input)
            .unwrap_or(&self.output);
        from[at..at + ELEMENT].to_vec()
    }

    /// Transfers one element of the first unfinished piece to or from `peer`, if possible. Returns true if it was
    /// possible.
    fn step(&mut self, rank: usize, peer: usize, out: bool, links: &mut Links) -> bool {
        if out {
            let open = |i: &usize| self.schedule.sends[*i].peer == peer && !self.send_done(*i);
            let Some(i) = (0..self.sent.len()).find(open) else {
                return false;
            };
            let send = &self.schedule.sends[i];
            if self.sent[i] >= self.schedule.sendable(i, &self.got) {
                return false;
            }
            let bytes = self.space(send.from, send.piece.at + self.sent[i]);
            links.entry((rank, peer)).or_default().extend(bytes);
            self.sent[i] += ELEMENT;
        } else {
            let open = |i: &usize| self.schedule.receives[*i].peer == peer && !self.receive_done(*i);
            let Some(i) = (0..self.got.len()).find(open) else {
                return false;
            };
            let receive = self.schedule.receives[i].clone();
            let link = links.entry((peer, rank)).or_default();
            if link.is_empty() || self.got[i] >= self.schedule.receivable(i, &self.sent, &self.got) {
                return false;
            }
            let came: Vec<u8> = link.drain(..ELEMENT).collect();
            let at = receive.piece.at + self.got[i];
            let own = receive.add.map(|own| self.space(own, at));
            let out = &mut self.output[at..at + ELEMENT];
            match own {
                Some(own) => sum(Dtype::I32, out, Some(&own), &came),
                None => out.copy_from_slice(&came),
            }
            self.got[i] += ELEMENT;
        }
        true
    }

    fn send_done(&self, i: usize) -> bool {
        self.sent[i] == self.schedule.sends[i].piece.len
    }

    fn receive_done(&self, i: usize) -> bool {
        self.got[i] == self.schedule.receives[i].piece.len
    }

    fn done(&self) -> bool {
        (0..self.sent.len()).all(|i| self.send_done(i)) && (0..self.got.len()).all(|i| self.receive_done(i))
    }
}

/// Runs all ranks to the end, in an order selected by `seed`.
fn play(plan: &Plan, algorithm: Algorithm, seed: u64) {
    let mut ranks: Vec<Rank> = (0..plan.ranks)
        .map(|rank| Rank::new(plan, rank, algorithm))
        .collect();
    let mut links = Links::new();
    let mut moves = Vec::new();
    for (rank, state) in ranks.iter().enumerate() {
        let peers = state.schedule.peers();
        moves.extend(
            peers
                .iter()
                .flat_map(|peer| [(rank, *peer, true), (rank, *peer, false)]),
        );
    }
    let mut random = seed;
    while ranks.iter().any(|rank| !rank.done()) {
        // Some transfers are delayed, which means that they happen only if no other transfer is possible. The selection
        // of the delayed ones changes occasionally.
        random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let lazy = |turn: usize| scramble(random ^ (turn as u64) << 40).is_multiple_of(2);
        let mut ever = false;
        for eager in [true, false] {
            let mut moved = true;
            while moved {
                moved = false;
                for turn in (0..moves.len()).filter(|turn| !eager || !lazy(*turn)) {
                    let (rank, peer, out) = moves[turn];
                    moved |= ranks[rank].step(rank, peer, out, &mut links);
                }
                ever |= moved;
                if !eager {
                    break;
                }
            }
        }
        assert!(ever, "nothing can go on: {algorithm:?} {plan:?}");
    }
    assert!(
        links.values().all(VecDeque::is_empty),
        "bytes are left over: {plan:?}"
    );
    for (rank, state) in ranks.iter().enumerate() {
        let output = &state.output[result(plan, rank).range()];
        assert_eq!(
            pattern::wrong(plan, rank, output),
            0,
            "rank {rank}, {algorithm:?}: {plan:?}"
        );
    }
}

/// Returns a pseudorandom number (the finalizer of splitmix64, public domain).
fn scramble(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_order_gives_the_right_result(
        ranks in 1usize..18,
        elements in 1u64..80,
        root in 0usize..18,
        collective in prop::sample::select(Collective::ALL.to_vec()),
        algorithm in prop::sample::select(Algorithm::ALL.to_vec()),
        in_place: bool,
        seed: u64,
    ) {
        if let Ok(plan) = Plan::new(collective, Dtype::I32, elements * ELEMENT as u64, ranks) {
            let in_place = in_place && collective.in_place();
            play(&Plan { in_place, root: root % ranks, ..plan }, algorithm, seed);
        }
    }

    #[test]
    fn a_split_covers_everything_once_between_elements(
        elements in 0usize..10_000,
        element in prop::sample::select(vec![2usize, 4]),
        parts in 1usize..70,
    ) {
        let bytes = elements * element;
        let pieces: Vec<Piece> = (0..parts).map(|index| split(bytes, element, parts, index)).collect();
        let mut end = 0;
        for piece in &pieces {
            prop_assert_eq!(piece.at, end);
            prop_assert!(piece.len.is_multiple_of(element));
            end = piece.range().end;
        }
        prop_assert_eq!(end, bytes);
        let longest = pieces.iter().map(|piece| piece.len).max().unwrap_or(0);
        let shortest = pieces.iter().map(|piece| piece.len).min().unwrap_or(0);
        prop_assert!(longest - shortest <= element);
    }
}

#[test]
fn the_ring_and_the_halves_send_as_little_as_possible() {
    for algorithm in [Algorithm::Ring, Algorithm::Halving] {
        let plan = Plan::new(Collective::AllReduce, Dtype::F32, 8 << 20, 8).unwrap();
        let sent: usize = schedule(&plan, 3, algorithm)
            .sends
            .iter()
            .map(|send| send.piece.len)
            .sum();
        assert_eq!(sent, 2 * 7 * (1 << 20), "{algorithm:?}");
    }
}
