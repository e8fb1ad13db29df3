//! Converts a step to a column of the heat map. It has one byte for each rank, or for each group of ranks that share a
//! row.

use paceline_health::codec::base64;
use paceline_health::report::step_snapshot::{StepSnapshot, badness};
use serde_json::json;

/// Maximum number of rows, because more would not be readable. A megabyte of columns holds 512 columns with this many
/// rows, or 1,024 with half as many.
const ROWS: usize = 1024;

/// Returns the number of columns to keep for this many ranks.
pub fn columns(ranks: usize) -> usize {
    if ranks > ROWS / 2 { ROWS / 2 } else { ROWS }
}

/// Returns the number of ranks per row.
pub fn ranks_a_row(ranks: usize) -> usize {
    ranks.div_ceil(ROWS).max(1)
}

/// Returns the column as JSON: `[step, restart, kind, at_s, p50_s, p99_s, max_s, phases_s, ranks, ranks a row, cells,
/// who, is self-time]`. If rows have several ranks, `who` identifies the rank that the cell shows, by its index within
/// the row.
pub(super) fn column(seen: &StepSnapshot) -> String {
    let ranks = seen.cells.len();
    let bin = ranks_a_row(ranks);
    let (cells, who) = rows(&seen.cells, bin);
    let row = json!([
        seen.step,
        seen.restart,
        seen.kind.name(),
        micros(seen.at_s),
        micros(seen.p50_s),
        micros(seen.p99_s),
        micros(seen.max_s),
        seen.phases_s.map(|phases| phases.map(micros)),
        ranks,
        bin,
        base64::encode(&cells),
        (bin > 1).then(|| base64::encode(&who)),
        seen.signal != paceline_health::event::Signal::S0,
    ]);
    row.to_string()
}

fn micros(seconds: f64) -> f64 {
    (seconds * 1e6).round() / 1e6
}

/// Returns the worst cell of each row, and the index of its rank. The worst is a slow rank, otherwise an absent one,
/// otherwise the slowest.
fn rows(cells: &[u8], bin: usize) -> (Vec<u8>, Vec<u8>) {
    let worst = |row: &[u8]| {
        let mut worst = (row[0], 0);
        for (place, cell) in row.iter().enumerate().skip(1) {
            if badness(*cell) > badness(worst.0) {
                // From 261,121 ranks on, more than 255 ranks share a row. Ranks beyond that index are not identified.
                worst = (*cell, place.min(255) as u8);
            }
        }
        worst
    };
    cells.chunks(bin).map(worst).unzip()
}

#[cfg(test)]
mod tests {
    use paceline_health::event::{Signal, StepKind};
    use paceline_health::report::step_snapshot::{ABSENT, LEVEL, SLOW, cell};

    use super::*;

    fn seen(cells: Vec<u8>) -> StepSnapshot {
        StepSnapshot {
            step: 7,
            restart: 1,
            kind: StepKind::Checkpoint,
            signal: Signal::S2,
            at_s: 12.345_678_9,
            p50_s: 0.05,
            p99_s: 0.06,
            max_s: 0.07,
            phases_s: Some([0.01, 0.02, 0.0, 0.003, 0.0]),
            cells,
        }
    }

    #[test]
    fn of_few_ranks_each_has_its_row() {
        let text = column(&seen(vec![LEVEL, ABSENT, 150]));
        let wanted =
            r#"[7,1,"checkpoint",12.345679,0.05,0.06,0.07,[0.01,0.02,0.0,0.003,0.0],3,1,"gACW",null,true]"#;
        assert_eq!(text, wanted);
    }

    #[test]
    fn of_many_the_worst_of_a_row_is_named() {
        let slow = cell(f64::ln(1.05));
        assert_eq!(slow, SLOW, "5 % is slow");
        for (row, worst) in [
            ([LEVEL, 130, 127, 126], (130, 1)),
            ([LEVEL, 126, ABSENT, 130], (ABSENT, 2)),
            ([LEVEL, slow, ABSENT, 140], (140, 3)),
            ([ABSENT; 4], (ABSENT, 0)),
        ] {
            let (cells, who) = rows(&row, 4);
            assert_eq!((cells[0], who[0]), worst, "{row:?}");
        }
        let mut cells = vec![LEVEL; 16_384];
        cells[16_383] = 200;
        assert_eq!(ranks_a_row(cells.len()), 16);
        let (rows, who) = rows(&cells, 16);
        assert_eq!((rows.len(), rows[1023], who[1023]), (1024, 200, 15));
    }

    #[test]
    fn memory_has_a_bound() {
        for ranks in [1_usize, 8, 512, 513, 1024, 16_384, 200_000] {
            let rows = ranks.div_ceil(ranks_a_row(ranks));
            let column = column(&seen(vec![LEVEL; ranks]));
            assert!(rows <= ROWS && column.len() * columns(ranks) < 2 << 20, "{ranks}");
        }
    }
}
