//! Tests of the detector with handmade frames. Tests with complete simulated jobs are in the transcripts.

mod sampled;

use std::time::Duration;

use super::*;
use crate::event::Step;
use crate::event::{Attach, Beat, Phases, Pulse, Signal, StepKind};
use crate::frame::{Provenance, SCHEMA_VERSION};
use crate::id::Rank;
use crate::verdict::{Finding, Severity, State, Subject};

/// A job whose ranks are on one node and step together.
struct Job {
    detector: Detector,
    seq: u64,
    at: Time,
    chance: u64,
}

impl Job {
    fn new(ranks: u32) -> Job {
        let mut job = Job {
            detector: Detector::new(Policy::default()),
            seq: 0,
            at: Time::ZERO,
            chance: 1,
        };
        for rank in 0..ranks {
            job.see(Event::Attach(Attach {
                rank: Rank(rank),
                local_rank: rank,
                world_size: ranks,
                restart: 0,
                pid: 100 + rank,
                gpu: None,
                role: "".into(),
                framework: "test".into(),
            }));
        }
        job
    }

    fn see(&mut self, event: Event) {
        self.seq += 1;
        let frame = Frame {
            v: SCHEMA_VERSION,
            node: "n1".into(),
            agent: 1,
            seq: self.seq,
            provenance: Provenance::Live,
            event,
        };
        self.detector.observe(self.at, &frame);
    }

    /// Returns noise from -1 to 1 of no particular quality.
    fn noise(&mut self) -> f64 {
        self.chance = self
            .chance
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.chance >> 33) as f64 / f64::from(1_u32 << 30) - 1.0
    }

    fn step(&mut self, step: u64, selfs: &[f64]) {
        self.step_of(step, selfs, true);
    }

    /// Sends a step of all ranks. Phases are included if `is_timed` is true.
    fn step_of(&mut self, step: u64, selfs: &[f64], is_timed: bool) {
        let noisy: Vec<f64> = selfs
            .iter()
            .map(|own| own * (1.0 + 0.01 * self.noise()))
            .collect();
        let dur = noisy.iter().copied().fold(0.0, f64::max) + 0.002;
        self.at = self.at + Duration::from_secs_f64(dur);
        for (rank, own) in (0..).zip(noisy) {
            let ns = |seconds: f64| (seconds * 1e9) as u64;
            let phases = Phases {
                compute_ns: ns(own),
                wait_ns: ns(dur - own),
                ..Phases::default()
            };
            self.see(Event::Step(Step {
                rank: Rank(rank),
                restart: 0,
                step,
                kind: StepKind::Train,
                dur_ns: ns(dur),
                phases: is_timed.then_some(phases),
                micro_batches: 1,
                tokens: 0,
                signal: if is_timed { Signal::S2 } else { Signal::S0 },
                sum_sq: 0,
                expert_tokens: 0,
            }));
        }
    }

    fn verdicts(&mut self) -> Vec<Verdict> {
        std::iter::from_fn(|| self.detector.poll()).collect()
    }
}

#[test]
fn the_slow_rank_is_named_and_its_cost_is_that_of_the_job() {
    for (slow, by_step) in [(1.25, 30), (1.10, 60)] {
        let mut job = Job::new(4);
        for step in 1..=by_step {
            job.step(step, &[0.04, 0.04, 0.04 * slow, 0.04]);
        }
        let verdicts = job.verdicts();
        let [verdict] = verdicts.as_slice() else {
            panic!("{slow}: {verdicts:?}")
        };
        assert_eq!(verdict.finding, Finding::Straggler);
        assert!(
            matches!(verdict.subject, Subject::Rank { rank: Rank(2), .. }),
            "{verdict:?}"
        );
        let report = job.detector.report();
        let ratio = report.verdicts[0].slowdown_ratio.unwrap();
        assert!((ratio / slow - 1.0).abs() < 0.01, "{ratio} {slow}");
        let rows = by_step - verdict.since_step.unwrap() + 1;
        let lost = rows as f64 * 0.04 * (slow - 1.0) * 4.0 / 3600.0;
        let ratio = report.verdicts[0].lost_gpu_hours / lost;
        assert!((ratio - 1.0).abs() < 0.2, "{ratio}");
    }
}

#[test]
fn equal_ranks_are_not_accused_and_a_recovered_one_is_cleared() {
    let mut job = Job::new(4);
    for step in 1..=2000 {
        job.step(step, &[0.04; 4]);
    }
    assert!(job.verdicts().is_empty());
    for step in 2001..=2050 {
        job.step(step, &[0.04, 0.05, 0.04, 0.04]);
    }
    for step in 2051..=2100 {
        job.step(step, &[0.04; 4]);
    }
    let verdicts = job.verdicts();
    assert_eq!(verdicts.len(), 2, "{verdicts:?}");
    assert_eq!(verdicts[0].since_step, Some(2001));
    assert_eq!(verdicts[1].state, State::Cleared);
}

#[test]
fn the_rank_that_has_not_arrived_is_named() {
    let mut job = Job::new(4);
    for step in 1..=20 {
        job.step(step, &[0.04; 4]);
    }
    for second in 1..=70_u64 {
        job.at = job.at + Duration::from_secs(1);
        let pulse = |rank| Pulse {
            rank: Rank(rank),
            restart: 0,
            step: 21,
            phase: if rank == 1 {
                crate::event::Phase::Compute
            } else {
                crate::event::Phase::Wait
            },
            idle_ns: second * 1_000_000_000,
            alive: true,
        };
        job.see(Event::Beat(Beat {
            ranks: (0..4).map(pulse).collect(),
            ..Beat::default()
        }));
    }
    let verdicts = job.verdicts();
    let found: Vec<_> = verdicts.iter().map(|v| (v.finding, v.severity)).collect();
    let silent = Finding::RankSilent;
    assert_eq!(
        found,
        [(silent, Severity::Info), (silent, Severity::Critical)],
        "{verdicts:?}"
    );
    assert!(matches!(verdicts[0].subject, Subject::Rank { rank: Rank(1), .. }));
}

#[test]
fn an_unheard_node_is_blind_at_its_deadline_whoever_asks_when() {
    let mut live = Job::new(4);
    live.step(1, &[0.04; 4]);
    let heard = live.at;
    live.detector.advance(heard + Duration::from_secs(5));
    live.detector.advance(heard + Duration::from_secs(9));
    let mut late = Job::new(4);
    late.step(1, &[0.04; 4]);
    late.detector.advance(heard + Duration::from_secs(100));
    let (live, late) = (live.verdicts(), late.verdicts());
    assert_eq!(live, late);
    assert_eq!(live[0].finding, Finding::TelemetryBlind);
}

/// The end of a rank is reported at once, although its last steps may arrive after it.
#[test]
fn a_rank_died_in_the_step_after_its_last() {
    let mut job = Job::new(4);
    for step in 1..=20 {
        job.step(step, &[0.04; 4]);
    }
    job.see(Event::Trouble(crate::event::Trouble {
        rank: Some(Rank(1)),
        kind: crate::event::TroubleKind::Error,
        says: "ValueError: labels".into(),
        code: Some(1),
    }));
    job.step(21, &[0.04; 4]);
    job.step(22, &[0.04; 4]);
    let report = job.detector.report();
    let died = &report.verdicts[0];
    assert_eq!((died.finding, died.since_step), (Finding::RankDied, Some(23)));
}

#[test]
fn a_rank_that_cannot_be_is_told_and_nobody_waits_for_it() {
    for (rank, world_size) in [(9, 4), (u32::MAX, 4), (4, u32::MAX)] {
        let mut job = Job::new(4);
        job.see(Event::Attach(Attach {
            rank: Rank(rank),
            local_rank: 0,
            world_size,
            restart: 0,
            pid: 7,
            gpu: None,
            role: "".into(),
            framework: "test".into(),
        }));
        for step in 1..=30 {
            job.step(step, &[0.04, 0.04, 0.05, 0.04]);
        }
        let report = job.detector.report();
        let note_start = format!("rank {rank} reports a world size of {world_size}");
        assert!(
            report
                .coverage
                .notes
                .iter()
                .any(|note| note.starts_with(&note_start)),
            "{:?}",
            report.coverage.notes
        );
        assert_eq!(report.world_size, 4);
        if rank != 9 {
            assert_eq!(job.verdicts().len(), 1, "{rank} of {world_size}");
        }
    }
}

/// A number beyond all limits must not affect earlier data, and neither must a repeated frame.
#[test]
fn what_is_not_to_be_believed_changes_nothing() {
    let mut job = Job::new(4);
    for step in 1..=10 {
        job.step(step, &[0.04; 4]);
    }
    let again = Event::Attach(Attach {
        rank: Rank(1),
        local_rank: 1,
        world_size: 4,
        restart: 0,
        pid: 7,
        gpu: None,
        role: "".into(),
        framework: "test".into(),
    });
    let end = job.seq;
    job.seq = 1;
    job.see(again);
    job.seq = end;
    job.see(Event::Mark(crate::event::Mark {
        rank: Rank(2),
        step: u64::MAX,
        kind: "checkpoint".into(),
        value: 0,
    }));
    job.step(MAX_STEP, &[0.04; 4]);
    for step in 11..=40 {
        job.step(step, &[0.04, 0.04, 0.05, 0.04]);
    }
    let verdicts = job.verdicts();
    assert_eq!(verdicts.len(), 1, "{verdicts:?}");
    assert_eq!(verdicts[0].since_step, Some(11));
    let report = job.detector.report();
    assert_eq!(report.coverage.steps_ratio, Some(1.0));
    assert_eq!(report.coverage.frames_lost, 5);
}

/// The log of a job covers all of its ranks, so no others are expected, and no time counts as lost because of that.
#[test]
fn a_log_speaks_for_all() {
    let mut job = Job::new(0);
    job.see(Event::Attach(Attach {
        rank: Rank(0),
        local_rank: 0,
        world_size: 8,
        restart: 0,
        pid: 0,
        gpu: None,
        role: "".into(),
        framework: "log of test".into(),
    }));
    for step in 0..50 {
        job.step(step, &[0.04]);
    }
    let cost = job.detector.report().cost;
    assert!(cost.lost_gpu_hours < 0.01 * cost.gpu_hours, "{cost:?}");
}

/// Frames of an earlier sidecar of the node were delayed by a network. They fill their gap, and nothing else of them
/// counts.
#[test]
fn late_frames_of_an_earlier_incarnation() {
    let mut job = Job::new(2);
    let frame = |agent, seq, event| Frame {
        v: SCHEMA_VERSION,
        node: "n1".into(),
        agent,
        seq,
        provenance: Provenance::Live,
        event,
    };
    // Frames 1 and 2 of the first sidecar have arrived, and 3 to 5 are still in flight. A second sidecar, which has a
    // smaller number, has replaced it.
    let first = job.detector.roster.members().count();
    let mut second = 0;
    for rank in 0..2 {
        second += 1;
        let again = Attach {
            rank: Rank(rank),
            local_rank: rank,
            world_size: 2,
            restart: 0,
            pid: 200 + rank,
            gpu: None,
            role: "".into(),
            framework: "test".into(),
        };
        job.detector
            .observe(Time(5_000_000_000), &frame(0x11, second, Event::Attach(again)));
    }
    let heard = job.detector.roster.last_heard(&"n1".into());
    let shape = job.detector.roster.shape;
    let old = Attach {
        rank: Rank(0),
        local_rank: 0,
        world_size: 2,
        restart: 0,
        pid: 100,
        gpu: None,
        role: "".into(),
        framework: "test".into(),
    };
    let at = Time(9_000_000_000);
    // The fifth frame arrives first. Two frames are missing until they arrive too, and each counts only once.
    let bye = crate::event::Bye {
        reason: "exit".into(),
    };
    let lost = |job: &Job| job.detector.roster.frames_lost();
    job.detector.observe(at, &frame(1, 5, Event::Bye(bye)));
    assert_eq!(lost(&job), 2);
    job.detector.observe(at, &frame(1, 3, Event::Attach(old)));
    job.detector
        .observe(at, &frame(1, 4, Event::Exit(crate::event::Exit { code: 1 })));
    job.detector
        .observe(at, &frame(1, 4, Event::Exit(crate::event::Exit { code: 1 })));
    assert_eq!(lost(&job), 0);
    let roster = &job.detector.roster;
    assert_eq!(roster.last_heard(&"n1".into()), heard, "no sign of life");
    assert_eq!(
        (roster.members().count(), roster.shape),
        (first, shape),
        "no epoch"
    );
    assert!(roster.members().all(|(_, member)| !member.ended));
    let (_, node) = roster.nodes().next().unwrap();
    assert!(!node.left && node.exit.is_none());
    assert_eq!(roster.gaps.iter().count(), 1, "one sidecar followed one");
    // The second sidecar continues where it was.
    job.detector
        .observe(at, &frame(0x11, second + 1, Event::Beat(Beat::default())));
    assert_eq!((lost(&job), job.detector.roster.gaps.iter().count()), (0, 1));
}
