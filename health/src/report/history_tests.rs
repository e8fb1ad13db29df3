use super::*;
use crate::report::step_snapshot::{LEVEL, cell, ratio};

fn seen(step: u64, cells: Vec<u8>) -> StepSnapshot {
    StepSnapshot {
        step,
        restart: 0,
        kind: StepKind::Train,
        signal: Signal::S2,
        at_s: step as f64 * 0.1,
        p50_s: 0.1,
        p99_s: 0.11,
        max_s: 0.12,
        phases_s: Some([0.01, 0.07, 0.01, 0.01, 0.0]),
        cells,
    }
}

fn after(steps: u64, cells: impl Fn(u64) -> Vec<u8>) -> History {
    let mut record = Record::default();
    for step in 1..=steps {
        record.take(&seen(step, cells(step)));
    }
    record.told()
}

#[test]
fn of_few_steps_and_ranks_each_is_there() {
    let told = after(3, |step| vec![LEVEL, LEVEL + step as u8, ABSENT]);
    assert_eq!((told.ranks_a_row, told.is_self), (1, true));
    let cells: Vec<&[u8]> = told.columns.iter().map(|column| &*column.cells).collect();
    assert_eq!(cells, [[128, 129, 0], [128, 130, 0], [128, 131, 0]]);
    assert!(
        told.columns
            .iter()
            .all(|column| column.steps == 1 && column.p50_s == Some(0.1))
    );
}

#[test]
fn many_steps_stay_few_columns_and_none_is_lost() {
    for steps in [191, 192, 193, 1_000, 5_003] {
        let told = after(steps, |step| {
            vec![LEVEL, if step > steps / 2 { 150 } else { LEVEL }]
        });
        let columns = &told.columns;
        assert!(columns.len() <= MOST_COLUMNS, "{steps}: {}", columns.len());
        assert_eq!(columns.iter().map(|column| column.steps).sum::<u64>(), steps);
        assert_eq!(columns.last().map(|column| column.step), Some(steps));
        assert!(columns.windows(2).all(|two| two[0].step < two[1].step));
        let slow = columns.iter().filter(|column| column.cells[1] == 150).count();
        assert!(
            slow.abs_diff(columns.len() / 2) <= 2,
            "{steps}: {slow} of {}",
            columns.len()
        );
        assert!(columns.iter().all(|column| column.cells[0] == LEVEL));
    }
}

#[test]
fn of_many_ranks_the_slowest_of_a_row_shows() {
    let told = after(400, |_| {
        let mut cells = vec![LEVEL; 16_384];
        cells[5_000] = 160;
        cells
    });
    assert_eq!(told.ranks_a_row, 128);
    let last = told.columns.last().expect("columns");
    assert_eq!(last.cells.len(), 128);
    let slow: Vec<usize> = (0..128).filter(|row| last.cells[*row] != LEVEL).collect();
    assert_eq!((slow, last.cells[39]), (vec![39], 160));
    let bytes = serde_json::to_string_pretty(&told).expect("plain").len();
    assert!(bytes < 120_000, "{bytes} bytes");
}

#[test]
fn a_group_that_grows_has_rows_of_more_ranks() {
    let mut record = Record::default();
    record.take(&seen(1, vec![140; 100]));
    let mut larger = seen(2, vec![LEVEL; 300]);
    larger.restart = 1;
    record.take(&larger);
    let told = record.told();
    assert_eq!(told.ranks_a_row, 4);
    let rows: Vec<usize> = told.columns.iter().map(|column| column.cells.len()).collect();
    assert_eq!(rows, [25, 75]);
    assert_eq!(told.columns[0].cells, vec![140; 25]);
}

#[test]
fn means_are_weighed_and_a_checkpoint_is_no_ordinary_step() {
    let mut record = Record {
        each: 4,
        ..Record::default()
    };
    for (step, p50_s, kind) in [
        (1, 0.1, StepKind::Train),
        (2, 0.3, StepKind::Train),
        (3, 9.0, StepKind::Checkpoint),
    ] {
        record.take(&StepSnapshot {
            p50_s,
            kind,
            max_s: p50_s * 2.0,
            ..seen(step, vec![cell(0.0), cell(f64::ln(1.25))])
        });
    }
    let told = record.told();
    let [column] = &told.columns[..] else {
        panic!("{told:?}")
    };
    assert_eq!((column.steps, column.apart, column.max_s), (3, 1, 18.0));
    assert!((column.p50_s.expect("ordinary") - 0.2).abs() < 1e-9);
    assert!((ratio(column.cells[1]).expect("there") - 1.25).abs() < 0.01);
    let other = Column {
        steps: 6,
        p50_s: Some(0.5),
        cells: vec![ABSENT, 100],
        ..column.clone()
    };
    let both = column.with(&other);
    assert_eq!((both.steps, both.apart), (9, 2));
    assert!((both.p50_s.expect("ordinary") - (0.2 * 2.0 + 0.5 * 5.0) / 7.0).abs() < 1e-9);
    assert_eq!(both.cells[0], ABSENT, "absent in most of the steps");
}

#[test]
fn whoever_is_absent_half_of_the_time_is_so() {
    for (present, wanted) in [(0, ABSENT), (2, ABSENT), (3, LEVEL), (4, LEVEL)] {
        let mut open = Open::default();
        for step in 0..4 {
            open.take(&seen(step, vec![if step < present { LEVEL } else { ABSENT }]));
        }
        assert_eq!(open.cell(open.cells[0]), wanted, "{present} of 4");
    }
}

#[test]
fn json_brings_it_back() {
    let told = after(300, |step| vec![LEVEL, (step % 250) as u8]);
    let text = serde_json::to_string(&told).expect("plain");
    assert_eq!(
        serde_json::from_str::<History>(&text).expect("what was written"),
        told
    );
}
