//! Formats the summary of many runs as text and HTML.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use paceline_health::text::humanize::{count, money, percent, span};
use paceline_health::text::sanitize;

use super::{Node, Rollup, Share};
use crate::html::Html;
use crate::output::{Column, Paint, Style, columns, wrap};
use crate::report::clock;
use crate::report::page::{Head, STYLE, table};

/// Maximum number of rows of the tables on a terminal, and on a page.
const ROWS: usize = 10;
const PAGE_ROWS: usize = 200;
/// Maximum number of running jobs that are listed by name.
const RUNNING: usize = 3;
/// Maximum characters of a name in a table on a terminal.
const NAME: usize = 24;

pub(super) fn text(rollup: &Rollup, style: Style) -> String {
    let mut text = String::new();
    for (index, line) in heading(rollup).into_iter().enumerate() {
        let paint = if index == 0 { Paint::Strong } else { Paint::Faint };
        // Writing to a string does not fail.
        for line in wrap(&line, style.width) {
            let _ = writeln!(text, "{}", style.paint(paint, line));
        }
    }
    if rollup.total.runs == 0 {
        return text;
    }
    let causes = causes(rollup);
    let mut put = |table: String, all: usize| {
        let _ = write!(text, "\n{table}");
        if all > ROWS {
            let _ = writeln!(text, "and {} more (--json has all)", all - ROWS);
        }
    };
    let rows: Vec<_> = causes
        .iter()
        .take(ROWS)
        .map(|(cause, share)| {
            let of = percent(of_total(share.lost_gpu_hours, rollup));
            let (lost, cost) = (rollup.unit().text(share.lost_gpu_hours), price(share.lost_cost));
            (short(cause), [lost, of, cost, share.runs.to_string()])
        })
        .collect();
    let (lost, money, runs) = (
        Column::right("lost", 18),
        Column::right("money", 10),
        Column::right("runs", 6),
    );
    let others = [lost, Column::right("share", 7), money, runs];
    put(columns(("lost to", NAME), others, &rows, style), causes.len());
    let nodes = nodes(rollup);
    let rows: Vec<_> = nodes
        .iter()
        .take(ROWS)
        .map(|(name, node)| {
            let (lost, cost) = (rollup.unit().text(node.lost_gpu_hours), price(node.lost_cost));
            let (found, runs) = (node.findings.to_string(), node.runs.to_string());
            (short(name), [found, runs, lost, cost, kinds(node)])
        })
        .collect();
    let others = [
        Column::right("findings", 8),
        runs,
        lost,
        money,
        Column::words("what"),
    ];
    put(columns(("node", NAME), others, &rows, style), nodes.len());
    text
}

/// Formats the totals in a few lines.
fn heading(rollup: &Rollup) -> Vec<String> {
    let total = &rollup.total;
    let since = format!(
        "in the last {} below {}",
        long(rollup.since_s),
        sanitize::name(&rollup.below)
    );
    if total.runs == 0 {
        let mut lines = vec![format!("No report of a run that ended {since}.")];
        lines.extend(left_out(rollup));
        return lines;
    }
    let mut first = format!(
        "{} {since}: {} of {} lost",
        count(total.runs, "run"),
        rollup.unit().text(total.lost_gpu_hours),
        rollup.unit().text(total.gpu_hours)
    );
    if total.gpu_hours > 0.0 {
        first += &format!(" ({})", percent(total.lost_gpu_hours / total.gpu_hours));
    }
    if let Some(cost) = total.lost_cost {
        first += &format!(", worth {}", money(cost));
        if total.priced < total.runs {
            first += &format!(" in the {} that had a price", count(total.priced, "run"));
        }
    }
    let mut lines = vec![first];
    lines.push(match total.goodput_ratio {
        Some(goodput) => format!("goodput {}", percent(goodput)),
        None => "goodput not measured: no run made steady steps".to_owned(),
    });
    if total.lost_cost.is_none() {
        lines.push(
            "no price set: with --gpu-hour-price at the runs the report shows the loss in money".to_owned(),
        );
    }
    lines.extend(running(rollup));
    if total.not_live > 0 {
        let runs = count(total.not_live, "run");
        lines.push(format!(
            "findings of {runs} are not live (simulated, replayed, injected)"
        ));
    }
    lines.extend(left_out(rollup));
    lines
}

/// Returns a note about runs in progress.
fn running(rollup: &Rollup) -> Option<String> {
    let jobs: Vec<_> = rollup.runs.iter().filter(|run| run.running).collect();
    let named = jobs.iter().take(RUNNING).map(|run| short(&run.job));
    let names = named.collect::<Vec<_>>().join(", ");
    let more = match jobs.len().saturating_sub(RUNNING) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let runs = count(jobs.len() as u64, "run");
    (!jobs.is_empty()).then(|| format!("still running, counted up to now: {runs} ({names}{more})"))
}

fn left_out(rollup: &Rollup) -> Vec<String> {
    let mut lines = Vec::new();
    if !rollup.damaged.is_empty() {
        let reports = count(rollup.damaged.len() as u64, "report");
        let are = if rollup.damaged.len() == 1 { "is" } else { "are" };
        lines.push(format!("{reports} could not be read and {are} not included"));
    }
    if rollup.foreign > 0 {
        let files = count(rollup.foreign, "file");
        lines.push(format!("{files} of that name were not written by Paceline"));
    }
    lines
}

/// Formats a time span, such as `7 days`.
fn long(seconds: u64) -> String {
    match seconds {
        _ if seconds.is_multiple_of(86_400) => count(seconds / 86_400, "day"),
        _ if seconds.is_multiple_of(3_600) => count(seconds / 3_600, "hour"),
        _ if seconds.is_multiple_of(60) => count(seconds / 60, "minute"),
        _ => count(seconds, "second"),
    }
}

fn of_total(lost: f64, rollup: &Rollup) -> f64 {
    if rollup.total.lost_gpu_hours > 0.0 {
        lost / rollup.total.lost_gpu_hours
    } else {
        0.0
    }
}

fn price(cost: Option<f64>) -> String {
    cost.map_or("-".to_owned(), money)
}

fn short(name: &str) -> String {
    sanitize::clip(name, NAME - 1)
}

/// Returns the causes, the largest loss first.
fn causes(rollup: &Rollup) -> Vec<(&String, &Share)> {
    let mut causes: Vec<_> = rollup.by_cause.iter().collect();
    causes.sort_by(|a, b| {
        b.1.lost_gpu_hours
            .total_cmp(&a.1.lost_gpu_hours)
            .then(a.0.cmp(b.0))
    });
    causes
}

/// Returns the nodes, those with the most findings first, then by cost.
fn nodes(rollup: &Rollup) -> Vec<(&String, &Node)> {
    let mut nodes: Vec<_> = rollup.by_node.iter().collect();
    nodes.sort_by(|a, b| {
        let runs = Reverse(a.1.runs).cmp(&Reverse(b.1.runs));
        let lost = b.1.lost_gpu_hours.total_cmp(&a.1.lost_gpu_hours);
        runs.then(lost).then(a.0.cmp(b.0))
    });
    nodes
}

/// Lists the findings of a node, the most frequent first.
fn kinds(node: &Node) -> String {
    let mut kinds: Vec<(&&str, &u64)> = node.kinds.iter().collect();
    kinds.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
    let told = kinds.iter().take(3).map(|(kind, times)| match times {
        1 => (**kind).to_string(),
        times => format!("{kind} x{times}"),
    });
    let mut text = told.collect::<Vec<_>>().join(", ");
    if kinds.len() > 3 {
        text += ", ...";
    }
    text
}

/// Formats the summary as an HTML page.
pub(super) fn page(rollup: &Rollup) -> String {
    let mut html = Html::default();
    html.tag("<header><h1>Runs together</h1></header><main>");
    for (index, line) in heading(rollup).into_iter().enumerate() {
        html.element(
            if index == 0 {
                "<p><b>"
            } else {
                "<p><b class=\"plain\">"
            },
            line,
            "</b></p>",
        );
    }
    html.tag("<h2>Lost to</h2>");
    let row = |(cause, share): (&String, &Share)| {
        let of = percent(of_total(share.lost_gpu_hours, rollup));
        let lost = rollup.unit().text(share.lost_gpu_hours);
        vec![
            cause.clone(),
            lost,
            of,
            price(share.lost_cost),
            share.runs.to_string(),
        ]
    };
    let heads = [
        Head::Words("lost to"),
        Head::Number("lost"),
        Head::Number("share"),
        Head::Number("money"),
        Head::Number("runs"),
    ];
    html.part(table(&heads, causes(rollup).into_iter().take(PAGE_ROWS).map(row)));
    html.tag(
        "<h2>Nodes</h2><p class=\"faint\">Findings about the node, or about a rank or GPU of it. \
        Overlapping findings all count; findings without a node are above.</p>",
    );
    let row = |(name, node): (&String, &Node)| {
        let lost = rollup.unit().text(node.lost_gpu_hours);
        let (found, runs) = (node.findings.to_string(), node.runs.to_string());
        vec![
            name.clone(),
            runs,
            found,
            node.critical.to_string(),
            lost,
            price(node.lost_cost),
            kinds(node),
        ]
    };
    let heads = [
        Head::Words("node"),
        Head::Number("runs"),
        Head::Number("findings"),
        Head::Number("critical"),
        Head::Number("lost"),
        Head::Number("money"),
        Head::Words("what"),
    ];
    html.part(table(&heads, nodes(rollup).into_iter().take(PAGE_ROWS).map(row)))
        .tag("<h2>Runs</h2>")
        .part(runs(rollup));
    if !rollup.damaged.is_empty() {
        html.tag("<h2>Left out</h2>");
    }
    let damaged: BTreeMap<usize, &String> = rollup.damaged.iter().enumerate().take(PAGE_ROWS).collect();
    for why in damaged.values() {
        html.element("<p>", why, "</p>");
    }
    html.tag("</main>");
    Html::page("Runs together: paceline report", STYLE, html)
}

fn runs(rollup: &Rollup) -> Html {
    let rows = rollup.runs.iter().rev().take(PAGE_ROWS).map(|run| {
        vec![
            run.job.clone(),
            if run.running {
                "still runs".to_owned()
            } else {
                clock::utc(run.ended_unix_ms)
            },
            run.ranks.to_string(),
            span(run.duration_s),
            run.goodput_ratio.map_or("not measured".to_owned(), percent),
            rollup.unit().text(run.lost_gpu_hours),
            run.worst.clone().unwrap_or_default(),
            run.end.unwrap_or("not reported").to_owned(),
            run.place.display().to_string(),
        ]
    });
    let heads = [
        Head::Words("job"),
        Head::Words("ended (UTC)"),
        Head::Number("ranks"),
        Head::Number("lasted"),
        Head::Number("goodput"),
        Head::Number("lost"),
        Head::Words("worst finding"),
        Head::Words("end"),
        Head::Words("directory"),
    ];
    let mut html = table(&heads, rows);
    if rollup.runs.len() > PAGE_ROWS {
        let more = rollup.runs.len() - PAGE_ROWS;
        html.element(
            "<p class=\"faint\">",
            format_args!("and {more} more; --json has all"),
            "</p>",
        );
    }
    html
}
