//! Prose must be wrapped at 120 columns.

use super::{lines, none, written};
use crate::read;

const COLUMNS: usize = 120;

/// Returns the prose lines that are too long. Rows of tables are skipped, because they cannot be wrapped.
fn wide(name: &str, page: &str) -> Vec<String> {
    let long = lines(page)
        .into_iter()
        .map(|line| (line.text.chars().count(), line))
        .filter(|(columns, line)| *columns > COLUMNS && !line.is_table());
    long.map(|(columns, line)| format!("{name}:{}: {columns} columns", line.number))
        .collect()
}

#[test]
fn prose_fits_its_columns() {
    let found: Vec<String> = written()
        .iter()
        .flat_map(|page| wide(page, &read(page)))
        .collect();
    none(&found);
}

#[test]
fn a_long_line_is_found() {
    let (fits, long) = ("x".repeat(120), "é".repeat(121));
    assert_eq!(
        wide("p", &format!("{fits}\n| {long} |\n```\n{long}\n```\n")),
        [""; 0]
    );
    assert_eq!(wide("p", &format!("\n{long}\n")), ["p:2: 121 columns"]);
}
