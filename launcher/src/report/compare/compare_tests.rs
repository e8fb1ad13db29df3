use paceline_health::report::history::{Column, History};
use paceline_health::report::{Cost, Installed, PartTimes};
use paceline_health::verdict::{Cause, Finding};

use super::*;
use crate::html::tests::assert_balanced;
use crate::report::samples::{rank, report, verdict};

const STYLE: Style = Style {
    color: false,
    unicode: false,
    width: 90,
};

/// Returns a history of `columns` columns with ten steps each. A step takes about `mean_s`, and varies by the share
/// `scatter`.
fn history(columns: u64, mean_s: f64, scatter: f64) -> History {
    let column = |number: u64| {
        // The values follow a periodic pattern, because consecutive steps are correlated in a similar way.
        let off = [0.0, 0.6, 1.0, 0.5, -0.2, -0.9, -0.7, -0.3][number as usize % 8];
        Column {
            step: (number + 1) * 10,
            steps: 10,
            p50_s: Some(mean_s * (1.0 + scatter * off)),
            ..Column::default()
        }
    };
    History {
        ranks_a_row: 1,
        is_self: true,
        columns: (0..columns).map(column).collect(),
    }
}

fn timed(mean_s: f64, scatter: f64) -> Report {
    let mut report = report(Vec::new());
    report.history = Some(history(100, mean_s, scatter));
    report
}

#[test]
fn a_shift_is_told_when_it_is_beyond_what_the_runs_scatter() {
    for (b_s, scatter, wanted) in [
        (0.100, 0.02, Told::Same),
        (0.1005, 0.0001, Told::Same),
        (0.108, 0.02, Told::Worse),
        (0.092, 0.02, Told::Better),
        (0.103, 0.4, Told::Same),
    ] {
        let (a, b) = (timed(0.1, scatter), timed(b_s, scatter));
        let shift = shift::of(&a, &b).unwrap();
        assert_eq!(Told::of(Some(&shift)), wanted, "{b_s} {scatter}: {shift:?}");
        let [low, high] = shift.interval.unwrap();
        assert!(low <= shift.ratio && shift.ratio <= high);
        assert!((shift.ratio - (b_s / 0.1 - 1.0)).abs() < 0.01, "{shift:?}");
    }
}

/// One hang in the middle counts as lost time, and not as variance that hides the speed of the steps.
#[test]
fn a_standstill_hides_no_regression() {
    let (a, mut b) = (timed(0.2, 0.02), timed(0.3, 0.02));
    b.history.as_mut().unwrap().columns[50].p50_s = Some(60.0);
    assert_eq!(Told::of(shift::of(&a, &b).as_ref()), Told::Worse);
}

#[test]
fn the_beginning_is_left_out_and_few_steps_tell_nothing() {
    let (mut a, b) = (timed(0.1, 0.01), timed(0.1, 0.01));
    for column in &mut a.history.as_mut().unwrap().columns[..4] {
        column.p50_s = Some(30.0);
    }
    assert_eq!(Told::of(shift::of(&a, &b).as_ref()), Told::Same);
    let mut few = timed(0.1, 0.01);
    few.history.as_mut().unwrap().columns.truncate(3);
    let shift = shift::of(&few, &b).unwrap();
    assert_eq!((shift.interval, Told::of(Some(&shift))), (None, Told::Unknown));
    let none = report(Vec::new());
    assert_eq!(Told::of(shift::of(&none, &b).as_ref()), Told::Unknown);
    let of = of((Path::new("a"), &none), (Path::new("b"), &b));
    assert!(of.says.starts_with("No comparison: "), "{}", of.says);
}

#[test]
fn a_damaged_history_is_no_reason_to_fail() {
    let mut broken = timed(0.1, 0.1);
    for column in &mut broken.history.as_mut().unwrap().columns {
        (column.steps, column.apart, column.p50_s) = (1, 9, Some(f64::NAN));
    }
    assert_eq!(shift::of(&broken, &timed(0.1, 0.1)), None);
}

fn two() -> Comparison {
    let times = |part, mean_s: f64| PartTimes {
        part,
        samples: 64_000,
        sum_s: 64_000.0 * mean_s,
        p50_s: mean_s,
        p90_s: mean_s * 1.05,
        p99_s: mean_s * 1.2,
        max_s: mean_s * 2.0,
    };
    let installed = |version: &str| {
        vec![Installed {
            version: version.into(),
            nodes: 8,
        }]
    };
    let mut a = timed(0.1, 0.02);
    a.times.parts = vec![
        times(Part::Step, 0.1),
        times(Part::Compute, 0.08),
        times(Part::Wait, 0.02),
    ];
    a.verdicts = vec![verdict(
        1,
        Finding::SlowCheckpoint,
        Subject::Job { job: "old".into() },
        Cause::Unknown,
    )];
    a.cost = Cost {
        gpu_hours: 100.0,
        lost_gpu_hours: 4.0,
        goodput_ratio: Some(0.96),
        ..Cost::default()
    };
    a.versions = [
        ("nccl".into(), installed("2.27.3")),
        ("driver".into(), installed("570.1")),
    ]
    .into();
    let mut b = timed(0.125, 0.02);
    // These numbers include stalls and the start. The sentence does not.
    a.times.parts[0].p50_s = 0.12;
    b.times.parts = vec![
        times(Part::Step, 0.125),
        times(Part::Compute, 0.08),
        times(Part::Wait, 0.045),
    ];
    b.times.parts[0].p50_s = 0.17;
    b.verdicts = vec![
        verdict(
            1,
            Finding::SlowCheckpoint,
            Subject::Job { job: "new".into() },
            Cause::Unknown,
        ),
        verdict(2, Finding::Straggler, rank(5), Cause::Thermal),
    ];
    b.cost = Cost {
        gpu_hours: 100.0,
        lost_gpu_hours: 24.0,
        ..Cost::default()
    };
    b.versions = [
        ("nccl".into(), installed("2.28.0\x1b[31m")),
        ("driver".into(), installed("570.1")),
    ]
    .into();
    of((Path::new("runs/a"), &a), (Path::new("runs/b"), &b))
}

#[test]
fn the_text_is_this() {
    let wanted = "\
B is worse: 25 % slower (100.0 ms to 125.0 ms a steady step; 95 % interval +24.6 % to
+25.4 %), beyond the noise within the runs. The natural difference between two runs of the
same job cannot be determined from two runs.

A  runs/a: job j, 64 ranks, 1000 steps
B  runs/b: job j, 64 ranks, 1000 steps

                        A           B    change
steady step      100.0 ms    125.0 ms     +25 %
median, all      120.0 ms    170.0 ms     +42 %
p99, all         120.0 ms    150.0 ms     +25 %
compute           80.0 ms     80.0 ms       0 %
wait              20.0 ms     45.0 ms    +125 %
goodput              96 %   not known
lost                4.0 %        24 %  +20.0 pp
new in B     straggler of rank 5 on n1 (thermal)
version      nccl: 2.27.3 to 2.28.0␛[31m
";
    let text = text_of(&two());
    assert_eq!(text, wanted, "{text}");
}

fn text_of(found: &Comparison) -> String {
    show::text(found, STYLE)
}

#[test]
fn the_page_holds_the_same_and_is_balanced() {
    let page = show::page(&two());
    assert_balanced(&page);
    for part in [
        "● WORSE",
        "+25 %",
        "straggler of rank 5 on n1 (thermal)",
        "2.28.0␛[31m",
        "None.",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains('\x1b'));
}

#[test]
fn runs_of_other_sizes_tell_how_they_scale() {
    let (mut a, b) = (timed(0.1, 0.01), timed(0.125, 0.01));
    a.world_size = 8;
    let found = of((Path::new("a"), &a), (Path::new("b"), &b));
    assert!(
        found
            .says
            .contains("8 and 64 ranks: with the same work per rank, each rank keeps 80 %"),
        "{}",
        found.says
    );
}
