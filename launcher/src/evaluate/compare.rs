//! Compares the table of this evaluation with an older one.

use std::path::Path;

use super::row::{Better, Row, TABLE_VERSION, Table};
use crate::output::Usage;

/// A row whose value has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change {
    /// The name of the row.
    pub(super) name: String,
    /// The old value, as displayed.
    pub(super) before: String,
    /// The new value, as displayed.
    pub(super) after: String,
    /// True if the change is an improvement. `None` if the row was added or removed.
    pub(super) better: Option<bool>,
}

/// Reads an older table.
///
/// # Errors
/// [`Usage`], which names the file and what is wrong with it.
pub(super) fn read(path: &Path) -> Result<Table, Usage> {
    let complain =
        |problem: &dyn std::fmt::Display| Usage(format!("--compare: {}: {problem}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|problem| complain(&problem))?;
    let table: Table = serde_json::from_str(&text).map_err(|problem| complain(&problem))?;
    if table.schema_version != TABLE_VERSION {
        return Err(complain(&format_args!(
            "schema_version {}; this version reads {TABLE_VERSION}",
            table.schema_version
        )));
    }
    Ok(table)
}

/// Returns the changed rows in the order of the new table. Removed rows come last.
pub(super) fn compare(old: &Table, new: &Table) -> Vec<Change> {
    let find = |rows: &[Row], name: &str| rows.iter().find(|row| row.name == name).cloned();
    let mut changes = Vec::new();
    for row in &new.rows {
        match find(&old.rows, &row.name) {
            None => changes.push(Change {
                name: row.name.clone(),
                before: "not there".to_owned(),
                after: row.unit.show(row.value),
                better: None,
            }),
            Some(before) if before.value != row.value => changes.push(Change {
                name: row.name.clone(),
                before: row.unit.show(before.value),
                after: row.unit.show(row.value),
                better: Some(is_better(&before, row)),
            }),
            Some(_) => {}
        }
    }
    for row in &old.rows {
        if find(&new.rows, &row.name).is_none() {
            changes.push(Change {
                name: row.name.clone(),
                before: row.unit.show(row.value),
                after: "not there".to_owned(),
                better: None,
            });
        }
    }
    changes
}

/// Returns true if the new value is better. A missing value is worse than any value.
fn is_better(before: &Row, after: &Row) -> bool {
    match (before.value, after.value, after.better) {
        (None, now, _) => now.is_some(),
        (_, None, _) => false,
        (Some(before), Some(after), Better::Higher) => after > before,
        (Some(before), Some(after), Better::Lower) => after < before,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluate::row::Unit;

    fn table(rows: Vec<Row>) -> Table {
        Table {
            schema_version: TABLE_VERSION,
            paceline: String::new(),
            seeds: 1,
            tuning: false,
            runs: 1,
            elapsed_s: 0.0,
            rows,
        }
    }

    #[test]
    fn worse_is_what_moved_the_wrong_way() {
        let recall = |value| Row::at_least("recall", 0.99).with(value, 10);
        let steps = |value| Row::at_most("steps", 5.0).in_unit(Unit::Steps).with(value, 10);
        let old = table(vec![recall(0.9), steps(4.0), Row::at_least("gone", 1.0)]);
        let new = table(vec![recall(0.8), steps(f64::INFINITY), Row::at_least("new", 1.0)]);
        let said: Vec<(String, Option<bool>)> = compare(&old, &new)
            .into_iter()
            .map(|change| (change.name, change.better))
            .collect();
        let expected = [
            ("recall", Some(false)),
            ("steps", Some(false)),
            ("new", None),
            ("gone", None),
        ];
        assert_eq!(said, expected.map(|(name, better)| (name.to_owned(), better)));
        assert!(compare(&old, &old).is_empty());
        let back: Vec<Option<bool>> = compare(&new, &old).into_iter().map(|one| one.better).collect();
        assert_eq!(back, [Some(true), Some(true), None, None]);
    }
}
