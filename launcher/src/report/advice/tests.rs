use std::collections::BTreeMap;

use paceline_health::id::Rank;
use paceline_health::report::{RankTimes, Usual};
use paceline_health::verdict::{Cause, Finding};

use super::*;
use crate::report::samples;

/// Returns a report of a job of four ranks. `data` and `wait` are the shares of a second for data loading and for the
/// shortest wait, and `gpus` are the GPUs' signals.
fn job(data: Option<f64>, wait: Option<f64>, gpus: &[(GpuSignal, f64)]) -> Report {
    let mut report = samples::report(Vec::new());
    let times = |part, seconds: f64| PartTimes {
        part,
        samples: 400,
        sum_s: 400.0 * seconds,
        p50_s: seconds,
        p90_s: seconds,
        p99_s: seconds,
        max_s: seconds,
    };
    report.times.parts = vec![times(Part::Step, 1.0)];
    report
        .times
        .parts
        .extend(data.map(|share| times(Part::Data, share)));
    let parts = |rank: u32| {
        let wait = wait.map(|wait| wait + f64::from(rank) * 0.1);
        let usual = wait.map(|p50_s| (Part::Wait, Usual { p50_s, p99_s: p50_s }));
        usual.into_iter().collect::<BTreeMap<_, _>>()
    };
    let rank = |rank| RankTimes {
        rank: Rank(rank),
        steps: 100,
        parts: parts(rank),
    };
    report.times.ranks = (0..4).map(rank).collect();
    report.gpu_means = gpus.iter().copied().collect();
    report
}

#[test]
fn the_first_question_that_holds_decides() {
    use GpuSignal::{
        DramActiveRatio as Dram, SmActiveRatio as Sm, TensorActiveRatio as Tensor, UtilizationRatio as Busy,
    };
    let healthy = [(Dram, 0.3), (Busy, 0.99), (Sm, 0.8), (Tensor, 0.4)];
    for (data, wait, gpus, bound, asked) in [
        (Some(0.4), Some(0.5), &healthy[..], "data-loading bound", 2),
        (Some(0.02), Some(0.3), &healthy, "communication bound", 3),
        (
            Some(0.02),
            Some(0.1),
            &[(Dram, 0.7), (Sm, 0.2)],
            "memory bound",
            4,
        ),
        (
            Some(0.0),
            Some(0.1),
            &[(Dram, 0.3), (Busy, 0.95), (Sm, 0.2)],
            "bound by small kernels",
            5,
        ),
        (
            Some(0.0),
            Some(0.1),
            &[(Dram, 0.3), (Busy, 0.95), (Sm, 0.9), (Tensor, 0.01)],
            "bound by compute without tensor cores",
            6,
        ),
        (Some(0.02), Some(0.1), &healthy, "compute bound", 6),
        (Some(0.02), Some(0.1), &[], "not known", 6),
        (None, None, &[], "not known", 6),
        // A number that was not measured does not count as good, but it does not hide the others either.
        (None, Some(0.3), &[], "communication bound", 3),
    ] {
        let advice = of(&job(data, wait, gpus)).unwrap();
        assert_eq!(
            (advice.bound, advice.questions.len()),
            (bound, asked),
            "{data:?} {wait:?} {gpus:?}"
        );
    }
}

/// The distortion by a straggler is not the job's own limit, and the findings already name it.
#[test]
fn a_job_that_is_held_up_is_told_so_first() {
    let mut report = job(Some(0.4), Some(0.5), &[]);
    report.verdicts = vec![samples::verdict(
        1,
        Finding::Straggler,
        samples::rank(3),
        Cause::Unknown,
    )];
    for (gpu_hours, bound) in [(10.0, FOUND), (100.0, "data-loading bound")] {
        report.cost.gpu_hours = gpu_hours;
        assert_eq!(of(&report).unwrap().bound, bound);
    }
}

#[test]
fn a_question_is_answered_as_far_as_its_numbers_are_known() {
    let number = |value, below| Number {
        name: "n",
        value,
        limit: 0.5,
        below,
    };
    for (numbers, wanted) in [
        (vec![number(Some(0.6), false)], Some(true)),
        (vec![number(Some(0.6), true)], Some(false)),
        (vec![number(None, false)], None),
        (vec![number(None, false), number(Some(0.1), false)], Some(false)),
        (vec![number(None, false), number(Some(0.9), false)], None),
    ] {
        assert_eq!(answer(&numbers), wanted, "{numbers:?}");
    }
}

#[test]
fn without_steps_nothing_is_said() {
    assert!(
        of(&samples::report(Vec::new()))
            .unwrap_err()
            .starts_with("Not measured")
    );
}

#[test]
fn the_text_says_it_only_where_a_number_does() {
    let style = crate::output::Style {
        color: false,
        unicode: false,
        width: 200,
    };
    let text = |report: &Report| {
        crate::report::block::render(report, &paceline_health::Policy::default(), style, &[])
    };
    let bound = text(&job(Some(0.4), Some(0.1), &[]));
    assert!(
        bound.contains("speed     data-loading bound: data loading, share of the step 40 %. Add loader"),
        "{bound}"
    );
    let unknown = text(&job(Some(0.01), Some(0.1), &[]));
    assert!(!unknown.contains("speed  "), "{unknown}");
}
