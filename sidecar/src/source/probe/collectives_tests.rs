use super::*;
use paceline_ring::Function;

fn did(ticket: u32, step: u32, comm: u64, is_timed: bool) -> Collective {
    Collective {
        comm,
        bytes: 1 << 20,
        ticket,
        step,
        function: Function::AllReduce,
        channels: 8,
        is_timed,
        ..Collective::default()
    }
}

fn timed(ticket: u32, duration_ns: u64) -> Timed {
    Timed {
        start_ns: 1_000_000 * u64::from(ticket),
        duration_ns,
        ticket,
        channels: 8,
        ..Timed::default()
    }
}

/// Plays steps with two collectives each, in communicators 7 and 8. `take` selects the records that are not lost.
fn play(take: impl Fn(u32) -> bool, times: impl Fn(u32) -> Option<u64>) -> (Vec<event::Comm>, u64) {
    let mut collectives = Collectives::default();
    let mut sums = Vec::new();
    for ticket in 1..=20 {
        let of = did(
            ticket,
            10 + ticket / 2,
            7 + u64::from(ticket % 2),
            times(ticket).is_some(),
        );
        if take(ticket) {
            collectives.enqueued(&of, of.step.into());
        }
        // The times of the GPU arrive one collective late.
        if let Some(ns) = times(ticket - 1) {
            collectives.timed(&timed(ticket - 1, ns));
        }
        while let Some(done) = collectives.next(Rank(3), 0) {
            sums.extend(done.sums);
        }
    }
    (sums, collectives.in_part)
}

#[test]
fn sums_of_whole_steps() {
    let (sums, in_part) = play(|_| true, |ticket| Some(u64::from(ticket) * 100));
    let steps: Vec<u64> = sums.iter().map(|comm| comm.step).collect();
    // The first step was seen only in part, and the last one may still continue.
    assert_eq!(steps[..4], [11, 11, 12, 12]);
    assert_eq!(steps.last(), Some(&19));
    let two = [(sums[0].comm, sums[0].dur_ns), (sums[1].comm, sums[1].dur_ns)];
    assert_eq!(two, [(7, 200), (8, 300)]);
    assert!(
        sums.iter()
            .all(|comm| comm.gpu && comm.collectives == 1 && comm.bytes == 1 << 20)
    );
    assert_eq!(in_part, 0);
}

#[test]
fn a_step_in_part_is_no_sum() {
    let all = play(|_| true, |ticket| Some(u64::from(ticket))).0.len();
    let (sums, in_part) = play(|ticket| ticket != 9, |ticket| Some(u64::from(ticket)));
    assert_eq!(
        (sums.len(), in_part),
        (all - 4, 2),
        "a record was lost, of one step or the next"
    );
    let (sums, in_part) = play(|_| true, |ticket| (ticket != 9).then_some(u64::from(ticket)));
    assert_eq!((sums.len(), in_part), (all - 2, 1), "sampling began within it");
    let (sums, in_part) = play(|_| true, |ticket| Some(if ticket == 9 { 0 } else { 5 }));
    assert_eq!((sums.len(), in_part), (all - 2, 1), "the plugin gave one up");
    let (sums, in_part) = play(|_| true, |_| None);
    assert_eq!(
        (sums.len(), in_part),
        (0, 0),
        "steps that are not sampled are no loss"
    );
}

#[test]
fn what_never_ends_is_not_waited_for_for_ever() {
    let mut collectives = Collectives::default();
    let mut sums = 0;
    for ticket in 1..=200 {
        collectives.enqueued(&did(ticket, ticket, 7, true), ticket.into());
        if ticket != 5 {
            collectives.timed(&timed(ticket, 100));
        }
        while let Some(done) = collectives.next(Rank(0), 0) {
            sums += done.sums.len();
        }
    }
    assert_eq!((sums, collectives.in_part), (200 - 3, 1));
    assert!(collectives.waiting.is_empty());
}

/// The data stored for an endless step is limited. The step's end is still known, but its exposed time is not.
#[test]
fn a_step_of_very_many() {
    let mut collectives = Collectives::default();
    let many = 3 * beside::MOST as u32;
    for ticket in 1..=many + 2 {
        let step = if (2..=many).contains(&ticket) { 2 } else { ticket };
        collectives.enqueued(&did(ticket, step, 7, true), step.into());
        let start_ns = 1_000_000 * u64::from(ticket);
        collectives.timed(&Timed {
            start_ns,
            ..timed(ticket, 100)
        });
    }
    assert!(collectives.steps[&2].met.len() <= beside::MOST + 1);
    let done = collectives.next(Rank(0), 0).unwrap();
    assert_eq!(done.gpu_end_ns, Some(1_000_000 * u64::from(many) + 100));
    assert_eq!(
        (done.sums[0].collectives, done.sums[0].exposed_ns),
        (many - 1, None)
    );
}

/// Plays steps of a pipeline stage, which receives, sends, and takes part in the collective for the gradients.
fn stage(times: impl Fn(u32) -> Option<u64>) -> (Vec<event::Comm>, u64) {
    let mut collectives = Collectives::default();
    let mut sums = Vec::new();
    for ticket in 3..=60 {
        let (comm, function) = match ticket % 3 {
            0 => (8, Function::Receive),
            1 => (8, Function::Send),
            _ => (7, Function::AllReduce),
        };
        let of = Collective {
            function,
            bytes: 24,
            ..did(ticket, ticket / 3, comm, true)
        };
        let of = if comm == 7 {
            Collective { bytes: 1 << 20, ..of }
        } else {
            of
        };
        collectives.enqueued(&of, of.step.into());
        if let Some(ns) = times(ticket) {
            collectives.timed(&timed(ticket, ns));
        }
        while let Some(done) = collectives.next(Rank(3), 0) {
            sums.extend(done.sums);
        }
    }
    (sums, collectives.in_part)
}

#[test]
fn messages_are_sums_of_their_own() {
    let (sums, in_part) = stage(|ticket| Some(100_000 + u64::from(ticket)));
    assert_eq!(in_part, 0);
    let of: Vec<_> = sums
        .iter()
        .map(|sum| (sum.step, sum.comm, sum.collectives, sum.unfit, sum.bytes))
        .collect();
    assert_eq!(of[..2], [(2, 7, 1, 0, 1 << 20), (2, 8, 2, 2, 48)]);
    // Step 2 has tickets 6, 7 and 8. The receive and the gradients' collective were exposed.
    let exposed: Vec<_> = sums[..2].iter().map(|sum| (sum.dur_ns, sum.exposed_ns)).collect();
    assert_eq!(exposed, [(100_008, Some(100_008)), (200_013, Some(100_006))]);
    assert!(sums[1].functions.is_empty());
}

/// If the time of a message that usually has one is missing, the step has no sum, because the rank's waiting would look
/// like its own work.
#[test]
fn messages_that_are_not_timed_once() {
    let (sums, in_part) = stage(|ticket| (ticket != 31).then_some(100));
    let steps = |comm| {
        sums.iter()
            .filter(move |sum| sum.comm == comm)
            .map(|sum| sum.step)
    };
    assert!(steps(7).eq(steps(8)), "{sums:?}");
    assert!(steps(7).all(|step| step != 10) && in_part == 1, "{sums:?}");
}

/// None of these is a pipeline: ring attention, which overlaps with work; a gather, which only sends; and a
/// communicator that also has collectives.
#[test]
fn messages_of_no_pipeline() {
    let (send, receive) = (Function::Send, Function::Receive);
    for messages in [
        [(send, 1, 8), (receive, 3, 8)],
        [(send, 0, 8), (send, 0, 8)],
        [(send, 1, 7), (receive, 1, 7)],
    ] {
        let mut collectives = Collectives::default();
        let mut sums = Vec::new();
        for step in 1..=10 {
            let reduced = did(3 * step, step, 7, true);
            let mut all = vec![reduced];
            all.extend(
                (1..)
                    .zip(messages)
                    .map(|(at, (function, peer, comm))| Collective {
                        function,
                        sequence: peer,
                        ..did(3 * step + at, step, comm, true)
                    }),
            );
            for of in all {
                collectives.enqueued(&of, step.into());
                collectives.timed(&timed(of.ticket, 100_000));
            }
            sums.extend(
                collectives
                    .next(Rank(0), 0)
                    .into_iter()
                    .flat_map(|done| done.sums),
            );
        }
        assert!(sums.len() >= 8, "{messages:?}");
        let one = (7, 1, 0, 100_000);
        assert!(
            sums.iter()
                .all(|sum| (sum.comm, sum.collectives, sum.unfit, sum.dur_ns) == one),
            "{messages:?} {sums:?}"
        );
    }
}

/// NCCL may never return the times of a message. The gradients' sums must be sent anyway.
#[test]
fn messages_that_are_never_timed() {
    for never in [None, Some(0)] {
        let (sums, in_part) = stage(|ticket| if ticket % 3 == 1 { never } else { Some(100) });
        assert!(sums.iter().all(|sum| sum.comm == 7) && in_part == 0, "{sums:?}");
        assert!(sums.len() >= 20 - 2 - messages::MAX_STEPS, "{}", sums.len());
    }
}

#[test]
fn short_and_rooted_ones_are_counted_for_nothing() {
    let mut collectives = Collectives::default();
    for step in 1..=4 {
        let (a, b, c) = (3 * step, 3 * step + 1, 3 * step + 2);
        let number = u64::from(step);
        let short = Collective {
            bytes: 8,
            ..did(b, step, 7, false)
        };
        collectives.enqueued(&did(a, step, 7, true), number);
        collectives.enqueued(&short, number);
        let rooted = Collective {
            function: Function::Broadcast,
            ..did(c, step, 9, false)
        };
        collectives.enqueued(&rooted, number);
        collectives.timed(&timed(a, 100));
    }
    let sums = collectives.next(Rank(0), 0).unwrap().sums;
    assert_eq!(sums.len(), 1);
    assert_eq!((sums[0].collectives, sums[0].dur_ns, sums[0].step), (1, 100, 2));
}
