//! Formats the table as text.

use std::fmt::Write as _;

use super::baselines::NAMES;
use super::compare::Change;
use super::row::{Row, Table};
use crate::output::{Paint, Style};

/// Formats all rows: first our numbers with their targets, then those of the other rules.
pub(super) fn render(table: &Table, style: Style) -> String {
    let mut text = ours(table, style);
    text.push('\n');
    text.push_str(&others(&table.rows, style));
    let _ = writeln!(
        text,
        "{} worlds, {} seeds each{}, {:.0} s",
        table.runs,
        table.seeds,
        if table.tuning {
            " (those for tuning: nothing may be claimed of these numbers)"
        } else {
            ""
        },
        table.elapsed_s
    );
    text
}

fn ours(table: &Table, style: Style) -> String {
    let width = table
        .rows
        .iter()
        .map(|row| row.name.chars().count())
        .max()
        .unwrap_or(0);
    let mut text = String::new();
    let head = format!(
        "{:width$}  {:>10}  {:>11}  {:4}  {:>9}  95 % interval",
        "", "paceline", "target", "met", "samples"
    );
    let _ = writeln!(text, "{}", style.paint(Paint::Faint, head.trim_end()));
    for row in &table.rows {
        let value = format!("{:>10}", row.unit.show(row.value));
        let (paint, met) = match row.met {
            Some(true) => (Paint::Good, "yes"),
            Some(false) => (Paint::Bad, "NO"),
            None => (Paint::Strong, ""),
        };
        let line = format!(
            "{:width$}  {}  {:>11}  {}  {:>9}  {}",
            row.name,
            style.paint(paint, value),
            target(row),
            style.paint(paint, format!("{met:4}")),
            row.n,
            interval(row)
        );
        let _ = writeln!(text, "{}", line.trim_end());
        if !row.note.is_empty() {
            let _ = writeln!(text, "{:width$}  {}", "", style.paint(Paint::Faint, &row.note));
        }
    }
    text
}

fn target(row: &Row) -> String {
    let sign = match row.better {
        super::row::Better::Higher => ">=",
        super::row::Better::Lower => "<=",
    };
    row.target.map_or(String::new(), |target| {
        format!("{sign} {}", row.unit.show(Some(target)))
    })
}

fn interval(row: &Row) -> String {
    row.ci.map_or(String::new(), |[low, high]| {
        format!("{} to {}", row.unit.show(low), row.unit.show(high))
    })
}

/// Formats the rows that also have values of other rules, with one column for each rule.
fn others(rows: &[Row], style: Style) -> String {
    let shared: Vec<&Row> = rows.iter().filter(|row| !row.baselines.is_empty()).collect();
    if shared.is_empty() {
        return String::new();
    }
    let width = shared.iter().map(|row| row.name.chars().count()).max();
    let width = width.unwrap_or(0);
    let mut text = format!("{:width$}  {:>10}", "other rules, same samples", "paceline");
    for name in NAMES {
        let _ = write!(text, "  {name:>12}");
    }
    let mut text = format!("{}\n", style.paint(Paint::Faint, text));
    for row in shared {
        let _ = write!(text, "{:width$}  {:>10}", row.name, row.unit.show(row.value));
        for name in NAMES {
            let column = name.chars().count().max(12);
            let shown = row.unit.show_other(row.baselines.get(name).copied().flatten());
            let _ = write!(text, "  {shown:>column$}");
        }
        text.push('\n');
    }
    text.push('\n');
    text
}

/// Formats the differences from an older table.
pub(super) fn changes(changes: &[Change], style: Style) -> String {
    let mut text = String::new();
    for change in changes {
        let (paint, word) = match change.better {
            Some(true) => (Paint::Good, "better"),
            Some(false) => (Paint::Bad, "WORSE"),
            None => (Paint::Faint, "changed"),
        };
        let _ = writeln!(
            text,
            "{} {}: {} -> {}",
            style.paint(paint, format!("{word:7}")),
            change.name,
            change.before,
            change.after
        );
    }
    let worse = changes
        .iter()
        .filter(|change| change.better == Some(false))
        .count();
    let verdict = match (changes.len(), worse) {
        (0, _) => "nothing changed".to_owned(),
        (_, 0) => "nothing is worse".to_owned(),
        (_, worse) => format!("{worse} worse"),
    };
    let _ = writeln!(text, "compared: {verdict}");
    text
}
