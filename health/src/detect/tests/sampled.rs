//! Jobs in which the hook times the phases of only one step in a fixed number, as it does on GPUs to reduce the load on
//! the host.

use super::*;
use crate::event::{Comm, Group};
use crate::report::Report;

const FULL: u64 = 256;
const PERIOD: u64 = 32;
const EQUAL: [f64; 4] = [0.04; 4];
const SLOW: [f64; 4] = [0.04, 0.04, 0.05, 0.04];

/// Runs 1,200 steps. Rank 2 is slow in those that `is_slow` selects. With `beside`, the NCCL plugin reports an
/// all-reduce that overlaps with the work and shows nothing of rank 2's slowness.
fn run(period: u64, beside: bool, is_slow: impl Fn(u64) -> bool) -> (Vec<Verdict>, Report) {
    let selfs = |step| if is_slow(step) { SLOW } else { EQUAL };
    run_of(period, beside, selfs)
}

fn run_of(period: u64, beside: bool, selfs: impl Fn(u64) -> [f64; 4]) -> (Vec<Verdict>, Report) {
    let mut job = Job::new(4);
    for rank in 0..if beside { 4 } else { 0 } {
        job.see(Event::Group(Group {
            rank: Rank(rank),
            restart: 0,
            comm: 7,
            size: 4,
            name: "".into(),
        }));
    }
    for step in 1..=1200 {
        let is_timed = step < FULL || step % period == 0;
        for rank in 0..if beside { 4 } else { 0 } {
            job.see(Event::Comm(Comm {
                rank: Rank(rank),
                restart: 0,
                step,
                comm: 7,
                collectives: 8,
                bytes: 8 << 20,
                dur_ns: 4_000_000,
                exposed_ns: None,
                unfit: 0,
                gpu: true,
                functions: Vec::new(),
            }));
        }
        job.step_of(step, &selfs(step), is_timed);
    }
    (job.verdicts(), job.detector.report())
}

/// A rank that was found slow while every step was timed must stay reported, at the same cost, when few steps are
/// timed, however little collectives show.
#[test]
fn what_was_found_holds_between_samples() {
    let (_, all) = run(1, false, |step| step > 20);
    for beside in [false, true] {
        let (verdicts, report) = run(PERIOD, beside, |step| step > 20);
        assert_eq!(verdicts.len(), 1, "{beside}: {verdicts:?}");
        assert!(is_rank_2(&verdicts[0]), "{verdicts:?}");
        assert_eq!(report.verdicts[0].state, State::Raised);
        let lost = report.verdicts[0].lost_gpu_hours / all.verdicts[0].lost_gpu_hours;
        assert!((lost - 1.0).abs() < 0.05, "{beside}: {lost}");
        let impact = report.verdicts[0].impact_ratio.unwrap() / all.verdicts[0].impact_ratio.unwrap();
        assert!((impact - 1.0).abs() < 0.05, "{beside}: {impact}");
        let what_if = report.cost.what_if_step_s.unwrap() / all.cost.what_if_step_s.unwrap();
        assert!((what_if - 1.0).abs() < 0.02, "{beside}: {what_if}");
        let notes = report.coverage.notes.join("; ");
        assert!(!notes.contains("no phases"), "{notes}");
    }
}

/// A rank that becomes slow later must be reported after a few samples, as a rank and not as the whole job, with its
/// cost since then. The finding must end when the rank is as fast as its peers.
#[test]
fn a_rank_that_becomes_slow_between_samples() {
    for beside in [false, true] {
        let (verdicts, report) = run(PERIOD, beside, |step| step > 400);
        assert_eq!(verdicts.len(), 1, "{beside}: {verdicts:?}");
        assert!(is_rank_2(&verdicts[0]), "{verdicts:?}");
        let raised = verdicts[0].raised_step.unwrap();
        assert!(raised <= 400 + 8 * PERIOD, "{beside}: named at {raised}");
        let lost = report.verdicts[0].lost_gpu_hours / (800.0 * 0.01 * 4.0 / 3600.0);
        assert!((lost - 1.0).abs() < 0.1, "{beside}: {lost}");
        let (verdicts, report) = run(PERIOD, beside, |step| (401..800).contains(&step));
        assert_eq!(verdicts.len(), 2, "{beside}: {verdicts:?}");
        assert_eq!(report.verdicts[0].state, State::Cleared, "{beside}");
        let lost = report.verdicts[0].lost_gpu_hours / (400.0 * 0.01 * 4.0 / 3600.0);
        assert!((lost - 1.0).abs() < 0.2, "{beside}: {lost}");
    }
}

/// If all ranks become slower, it must be a finding of the job, within a few samples.
#[test]
fn all_ranks_that_become_slow_between_samples() {
    for beside in [false, true] {
        let (verdicts, _) = run_of(PERIOD, beside, |step| [if step > 400 { 0.05 } else { 0.04 }; 4]);
        assert_eq!(verdicts.len(), 1, "{beside}: {verdicts:?}");
        assert_eq!(verdicts[0].finding, Finding::AllRanksSlow);
    }
}

fn is_rank_2(verdict: &Verdict) -> bool {
    let subject = matches!(verdict.subject, Subject::Rank { rank: Rank(2), .. });
    verdict.finding == Finding::Straggler && subject
}
