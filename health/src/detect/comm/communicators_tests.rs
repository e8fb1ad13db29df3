//! Tests of transfer times, of which rank waits for which, and of how much is kept.

use super::communicators::Comms;
use crate::Policy;
use crate::detect::step::plan_tests::plan;
use crate::event::{Comm, Group};
use crate::id::Rank;

fn group(comm: u64, ranks: &[u32], comms: &mut Comms) {
    for rank in ranks {
        comms.join(&Group {
            rank: Rank(*rank),
            restart: 0,
            comm,
            size: ranks.len() as u32,
            name: "".into(),
        });
    }
}

/// One step of a communicator, in milliseconds by member. `None` stands for a member that does not report.
fn step(comm: u64, step: u64, ranks: &[u32], ms: &[Option<f64>], comms: &mut Comms) {
    for (rank, ms) in ranks.iter().zip(ms) {
        let Some(ms) = ms else { continue };
        comms.add(&Comm {
            rank: Rank(*rank),
            restart: 0,
            step,
            comm,
            collectives: 1,
            bytes: 1000,
            dur_ns: (ms * 1e6) as u64,
            exposed_ns: None,
            unfit: 0,
            gpu: false,
            functions: Vec::new(),
        });
    }
}

/// Runs steps of one communicator of four ranks on two nodes, with each step's transfer in milliseconds.
fn is_slow_after(transfers: impl Fn(u64) -> f64, steps: u64, late_ms: f64) -> bool {
    let plan = plan(2, 2, (4, 1, 1), 1);
    let limits = Policy::default().detector.link;
    let mut comms = Comms::default();
    let ranks = [0, 1, 2, 3];
    group(1, &ranks, &mut comms);
    for at in 1..=steps {
        let transfer = transfers(at);
        // From step 30 on the last rank is late, and its peers wait for it.
        let waits = if at >= 30 { late_ms } else { 0.0 };
        let ms = [waits, waits, waits, 0.0].map(|waits| Some(transfer + waits));
        step(1, at, &ranks, &ms, &mut comms);
        comms.judge(&plan, &limits, at);
    }
    comms.is_slow_outside(Rank(0)) == Some(true)
}

#[test]
fn what_is_slow_and_what_only_waits() {
    for (name, expected, is_slow) in [
        ("steady", false, is_slow_after(|_| 10.0, 100, 0.0)),
        ("late members", false, is_slow_after(|_| 10.0, 100, 50.0)),
        (
            "twice as long",
            true,
            is_slow_after(|at| if at > 40 { 20.0 } else { 10.0 }, 100, 0.0),
        ),
        (
            "twice as long, and members late",
            true,
            is_slow_after(|at| if at > 40 { 20.0 } else { 10.0 }, 100, 50.0),
        ),
        (
            "for ten steps only",
            false,
            is_slow_after(|at| if (40..50).contains(&at) { 20.0 } else { 10.0 }, 100, 0.0),
        ),
        (
            "a fifth longer",
            false,
            is_slow_after(|at| if at > 40 { 12.0 } else { 10.0 }, 100, 0.0),
        ),
        (
            "in order again",
            false,
            is_slow_after(|at| if (40..80).contains(&at) { 20.0 } else { 10.0 }, 120, 0.0),
        ),
        (
            "varying by itself",
            false,
            is_slow_after(|at| [4.0, 30.0, 9.0, 14.0][at as usize % 4], 200, 0.0),
        ),
    ] {
        assert_eq!(is_slow, expected, "{name}");
    }
}

/// Transfers vary between 20 and 40 ms, and the first steps were short by chance. The later steps are normal and must
/// not raise a finding. Transfers that take twice as long must raise one.
#[test]
fn first_steps_that_were_short_by_chance() {
    let varied = |at: u64| match at {
        0..=21 => 20.0 + (at * 7 % 5) as f64,
        _ => 20.0 + (at * 7 % 21) as f64,
    };
    let lucky = |at: u64| {
        if (600..640).contains(&at) {
            33.0 + (at % 3) as f64
        } else {
            varied(at)
        }
    };
    assert!(!is_slow_after(lucky, 640, 0.0));
    assert!(is_slow_after(
        |at| if at > 600 { 3.0 } else { 1.0 } * varied(at),
        640,
        0.0
    ));
}

/// Eight pipelines of two stages. Even the shortest wait in a step varies from 5 to 25 ms; in the first pipeline it is
/// `first_ms` or slightly more.
fn is_first_of_stages_slow(first_ms: f64) -> bool {
    let plan = plan(2, 8, (8, 1, 2), 4);
    let limits = Policy::default().detector.link;
    let mut comms = Comms::default();
    for first in 0..8_u32 {
        group(10 + u64::from(first), &[first, first + 8], &mut comms);
    }
    for at in 1..=60 {
        for first in 0..8_u32 {
            let usual = 5.0 + ((8 * at + 5 * u64::from(first)) % 21) as f64;
            let own = if first == 0 {
                first_ms + (at % 2) as f64
            } else {
                usual
            };
            let ranks = [first, first + 8];
            step(
                10 + u64::from(first),
                at,
                &ranks,
                &[Some(own + 30.0), Some(own)],
                &mut comms,
            );
        }
        comms.judge(&plan, &limits, at);
    }
    comms.get(10).is_some_and(|comm| comm.is_slow)
}

#[test]
fn stages_that_wait_long_by_chance_are_no_slow_link() {
    assert!(
        !is_first_of_stages_slow(21.0),
        "as long as others' long ones, and even"
    );
    assert!(is_first_of_stages_slow(30.0), "longer than any other's");
}

#[test]
fn a_step_without_most_of_its_members_says_nothing() {
    let plan = plan(2, 2, (4, 1, 1), 1);
    let limits = Policy::default().detector.link;
    let mut comms = Comms::default();
    let ranks = [0, 1, 2, 3];
    group(1, &ranks, &mut comms);
    for at in 1..=120 {
        // From step 40 on, the last two ranks do not report. They are the ones that do not wait.
        let last = (at < 40).then_some(10.0);
        step(1, at, &ranks, &[Some(60.0), Some(60.0), last, last], &mut comms);
        comms.judge(&plan, &limits, at);
    }
    assert_eq!(comms.is_slow_outside(Rank(0)), Some(false));
}

#[test]
fn lateness_is_followed_upstream() {
    // Two stages, eight pipelines; ranks r and r + 8 form one pipeline.
    let plan = plan(2, 8, (8, 1, 2), 4);
    let mut comms = Comms::default();
    for first in 0..8_u32 {
        group(10 + u64::from(first), &[first, first + 8], &mut comms);
    }
    for at in 1..=20 {
        for first in 0..8_u32 {
            // In pipeline 3 the first stage is slow by 40 ms, and the second stage waits for it in its receives.
            let (own, next) = if first == 3 { (5.0, 60.0) } else { (20.0, 20.0) };
            let ms = [Some(own), Some(next)];
            step(10 + u64::from(first), at, &[first, first + 8], &ms, &mut comms);
        }
    }
    assert_eq!(
        comms.victim_of(Rank(11), 0.040, &plan),
        Some(Rank(3)),
        "the second stage is a victim"
    );
    assert_eq!(
        comms.victim_of(Rank(3), 0.040, &plan),
        None,
        "the first is late by itself"
    );
    assert_eq!(
        comms.victim_of(Rank(11), 0.200, &plan),
        None,
        "its wait explains too little"
    );
    assert_eq!(
        comms.victim_of(Rank(5), 0.040, &plan),
        None,
        "nothing is wrong here"
    );
}

/// A hook writes the records of many steps together, and each rank writes at a different time. Every step must still
/// close with all members.
#[test]
fn ranks_that_tell_of_many_steps_at_once() {
    let (plan, limits) = (plan(2, 1, (2, 1, 1), 1), Policy::default().detector.link);
    let mut comms = Comms::default();
    group(1, &[0, 1], &mut comms);
    for burst in 0..4 {
        let slow = if burst < 3 { 1.0 } else { 2.0 };
        for (rank, waits) in [(0, 5.0), (1, 0.0)] {
            for at in burst * 48..(burst + 1) * 48 {
                step(1, at + 1, &[rank], &[Some(slow + waits)], &mut comms);
            }
        }
        comms.judge(&plan, &limits, (burst + 1) * 48);
    }
    assert_eq!(comms.is_slow_outside(Rank(0)), Some(true));
}

#[test]
fn memberships_are_bounded() {
    let mut comms = Comms::default();
    for comm in 0..1000 {
        group(comm, &[0, 1], &mut comms);
    }
    assert_eq!(comms.of(Rank(0)).count(), 8);
    assert_eq!(comms.iter().count(), 8);
    // Steps that no other member ever reports must not accumulate.
    for at in 1..10_000 {
        step(3, at, &[0], &[Some(1.0)], &mut comms);
    }
    assert!(comms.get(3).unwrap().open_steps() <= 65);
}
