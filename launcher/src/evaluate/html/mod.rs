//! The evaluation as one HTML page without external resources: the table, plots and details.

mod plots;
mod svg;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::baselines::NAMES;
use super::row::{Better, Row, Table};
use super::score::{self, Case};
use crate::html::escape;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:68rem;margin:2rem auto;padding:0 1rem;\
color:#1b2733}h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2.2rem}table{border-collapse:collapse;font-size:13px}\
th,td{padding:.25rem .7rem;border-bottom:1px solid #dde3e9;text-align:right}th:first-child,td:first-child{\
text-align:left}.yes{color:#0b7a4b}.no{color:#b3261e;font-weight:600}.note{color:#66747f;font-size:12px}\
.wide{overflow-x:auto}svg{max-width:100%;height:auto}td.hit{background:#d7efe2}td.miss{background:#f7dcd9}\
@media(prefers-color-scheme:dark){body{background:#11171c;color:#dce4ea}th,td{border-color:#2b363f}td.hit{\
background:#123f2b}td.miss{background:#54211d}svg{background:#f6f8fa;border-radius:4px}}";

/// Maximum number of scenarios in the list of those with the most mistakes.
const WEAKEST: usize = 25;

/// Renders the page.
pub(super) fn page(table: &Table, cases: &[Case<'_>]) -> String {
    let mut text = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>Paceline: evaluation</title><style>{STYLE}</style>\
         <h1>Paceline {}: evaluation</h1><p>{} simulated jobs, {} seeds for each scenario{}. Intervals hold 95 %.</p>",
        escape(&table.paceline),
        table.runs,
        table.seeds,
        if table.tuning {
            "; the seeds are those for tuning, nothing may be claimed of these numbers"
        } else {
            ""
        }
    );
    text.push_str(&rows(table));
    text.push_str(&others(table));
    for (title, plot) in plots::all(cases) {
        let _ = write!(text, "<h2>{title}</h2>{plot}");
    }
    text.push_str(&confusion(cases));
    text.push_str(&weakest(cases));
    text.push_str("</html>\n");
    text
}

fn rows(table: &Table) -> String {
    let mut text =
        "<h2>Against the targets</h2><div class=\"wide\"><table><tr><th><th>paceline<th>target<th>met\
                    <th>samples<th>interval"
            .to_owned();
    for row in &table.rows {
        let sign = match row.better {
            Better::Higher => "≥",
            Better::Lower => "≤",
        };
        let target = row.target.map_or(String::new(), |target| {
            format!("{sign} {}", row.unit.show(Some(target)))
        });
        let (class, met) = match row.met {
            Some(true) => ("yes", "yes"),
            Some(false) => ("no", "no"),
            None => ("", ""),
        };
        let interval = row.ci.map_or(String::new(), |[low, high]| {
            format!("{} to {}", row.unit.show(low), row.unit.show(high))
        });
        let note = if row.note.is_empty() {
            String::new()
        } else {
            format!("<div class=\"note\">{}</div>", escape(&row.note))
        };
        let _ = write!(
            text,
            "<tr><td>{}{note}<td class=\"{class}\">{}<td>{target}<td class=\"{class}\">{met}<td>{}<td>{interval}",
            escape(&row.name),
            row.unit.show(row.value),
            row.n
        );
    }
    text + "</table></div>"
}

fn others(table: &Table) -> String {
    let shared: Vec<&Row> = table
        .rows
        .iter()
        .filter(|row| !row.baselines.is_empty())
        .collect();
    if shared.is_empty() {
        return String::new();
    }
    let mut text =
        "<h2>Other rules on the same samples</h2><div class=\"wide\"><table><tr><th><th>paceline".to_owned();
    for name in NAMES {
        let _ = write!(text, "<th>{}", escape(name));
    }
    for row in shared {
        let _ = write!(
            text,
            "<tr><td>{}<td><b>{}</b>",
            escape(&row.name),
            row.unit.show(row.value)
        );
        for name in NAMES {
            let _ = write!(
                text,
                "<td>{}",
                row.unit.show_other(row.baselines.get(name).copied().flatten())
            );
        }
    }
    text + "</table></div>"
}

/// Renders the confusion matrix of causes.
fn confusion(cases: &[Case<'_>]) -> String {
    let confusion = score::confusion(cases);
    let causes = confusion.causes();
    if causes.is_empty() {
        return String::new();
    }
    let mut said: Vec<_> = causes.iter().copied().map(Some).collect();
    for (_, other) in confusion.counts.keys() {
        if !said.contains(other) && other.is_some() {
            said.push(*other);
        }
    }
    said.push(None);
    let mut text =
        "<h2>Causes: true (rows) and said (columns)</h2><div class=\"wide\"><table><tr><th>".to_owned();
    for cause in &said {
        let _ = write!(text, "<th>{}", cause.map_or("not found", |cause| cause.name()));
    }
    text.push_str("<th>F1");
    for truth in causes {
        let _ = write!(text, "<tr><td>{}", truth.name());
        for cause in &said {
            let count = confusion.counts.get(&(truth, *cause)).copied().unwrap_or(0);
            let class = match (count, *cause == Some(truth)) {
                (0, _) => "",
                (_, true) => "hit",
                (_, false) => "miss",
            };
            let shown = if count == 0 {
                String::new()
            } else {
                count.to_string()
            };
            let _ = write!(text, "<td class=\"{class}\">{shown}");
        }
        let _ = write!(text, "<td>{:.2}", confusion.f1(truth));
    }
    text + "</table></div>"
}

/// The number of mistakes in one scenario, over all its seeds.
#[derive(Default)]
struct Weakness<'a> {
    worlds: u64,
    bad: u64,
    first: Option<&'a Case<'a>>,
    mistakes: BTreeMap<String, u64>,
}

/// Lists the scenarios with the most mistakes, with one command for each that repeats a failed simulation.
fn weakest(cases: &[Case<'_>]) -> String {
    let mut by_name: BTreeMap<&str, Weakness<'_>> = BTreeMap::new();
    for case in cases {
        let one = by_name.entry(&case.scenario.name).or_default();
        one.worlds += 1;
        let Some(failure) = score::failure(case) else {
            continue;
        };
        one.bad += 1;
        one.first.get_or_insert(case);
        for mistake in failure.mistakes {
            let kind = mistake.split(',').next().unwrap_or(&mistake);
            let kind = kind.split(" in step").next().unwrap_or(kind);
            *one.mistakes.entry(kind.to_owned()).or_default() += 1;
        }
    }
    let mut all: Vec<(&str, Weakness<'_>)> = by_name.into_iter().filter(|(_, one)| one.bad > 0).collect();
    // Sort by the share of mistakes, largest first. Equal ones stay in the order of their names.
    all.sort_by(|(_, a), (_, b)| (b.bad * a.worlds).cmp(&(a.bad * b.worlds)));
    if all.is_empty() {
        return "<h2>Weakest scenarios</h2><p>None: every world was judged as declared.".to_owned();
    }
    let mut text =
        "<h2>Weakest scenarios</h2><div class=\"wide\"><table><tr><th>scenario<th>worlds judged wrongly\
                    <th>most often<th>one of them"
            .to_owned();
    for (name, one) in all.iter().take(WEAKEST) {
        let often = one.mistakes.iter().max_by_key(|(_, count)| **count);
        let _ = write!(
            text,
            "<tr><td>{}<td>{} of {}<td>{}<td><code>{}</code>",
            escape(name),
            one.bad,
            one.worlds,
            often.map_or(String::new(), |(mistake, _)| escape(mistake)),
            one.first.map_or(String::new(), |case| escape(&case.job.command))
        );
    }
    text + "</table></div>"
}
