//! Renders a preflight as one HTML page without external resources. It has the result, a plot of each metric, the paths
//! between nodes, and the table.

mod matrix;
mod strip;

use std::fmt::Write as _;

use paceline_health::id::NodeId;
use paceline_health::preflight::{Outcome, PreflightTable, Report};
use paceline_health::verdict::Severity;
use paceline_nccl_bench::preflight::hosts::compress;

use super::show;
use crate::html::escape;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:68rem;margin:2rem auto;padding:0 1rem;\
--ink:#1b2733;--faint:#66747f;--line:#dde3e9;--well:#296590;--warn:#b26a00;--bad:#b3261e;--well-bg:#e3eef6;\
--warn-bg:#fbe8c8;--bad-bg:#f7d3cf;color:var(--ink);background:#fff}h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;\
margin:2rem 0 .4rem}table{border-collapse:collapse;font-size:13px}th,td{padding:.25rem .7rem;border-bottom:1px solid \
var(--line);text-align:right}th:first-child,td:first-child{text-align:left}.verdict{border-left:.4rem solid;\
padding:.4rem 1rem;margin:1rem 0}.ok{border-color:var(--well);background:var(--well-bg)}.warning{border-color:var(--warn);\
background:var(--warn-bg)}.critical{border-color:var(--bad);background:var(--bad-bg)}td.warning{background:var(--warn-bg)}\
td.critical{background:var(--bad-bg);font-weight:600}.faint{color:var(--faint);font-size:13px}.wide{overflow-x:auto}\
li{margin:.3rem 0}svg{max-width:100%;height:auto;display:block}svg text{fill:var(--ink);font:12px system-ui,sans-serif}\
svg .faint{fill:var(--faint)}@media(prefers-color-scheme:dark){body{--ink:#dce4ea;--faint:#98a6b1;--line:#2b363f;\
--well:#6fb1de;--warn:#f0b04d;--bad:#ff8a80;--well-bg:#16303f;--warn-bg:#46340f;--bad-bg:#4d1f1b;background:#11171c}}";

/// Maximum number of rows of the table. With more nodes, only those with findings are shown.
const ROWS: usize = 128;

/// Renders the page.
pub(super) fn page(report: &Report) -> String {
    let (_, outcome) = show::outcome(report.outcome);
    let table = PreflightTable::default();
    let mut text = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>Preflight of {job}: {outcome}</title><style>{STYLE}</style><h1>Preflight of {job}</h1>",
        job = escape(report.job.as_str()),
    );
    text += &verdict(report);
    text += &findings(report);
    text += &strip::all(report, &table);
    text += &matrix::ways(report, &table);
    text += &nodes(report);
    text += &phases(report);
    text + "</html>\n"
}

fn class(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Ok => "ok",
        Outcome::Warning | Outcome::Unknown => "warning",
        Outcome::Critical => "critical",
    }
}

fn of_severity(severity: Option<Severity>) -> &'static str {
    match severity {
        Some(Severity::Critical) => "critical",
        Some(Severity::Warning) => "warning",
        _ => "",
    }
}

fn verdict(report: &Report) -> String {
    let (_, outcome) = show::outcome(report.outcome);
    let gpus: u32 = report.nodes.values().map(|row| row.gpus).sum();
    let mut text = format!(
        "<div class=\"verdict {}\"><b>{outcome}</b>",
        class(report.outcome)
    );
    let bad = report.bad_nodes();
    if !bad.is_empty() {
        let list = compress(bad.iter().map(NodeId::as_str));
        let _ = write!(text, ": leave out <b>{}</b>", escape(&list));
    }
    let _ = write!(
        text,
        "</div><p class=\"faint\">{}{} nodes, {gpus} GPUs, {:.1} s, {} comparisons, {}, paceline {}</p>",
        if report.simulated {
            "<b>SIMULATED</b>: none of this was measured; "
        } else {
            ""
        },
        report.nodes.len(),
        report.seconds,
        report.comparisons,
        escape(&report.mode),
        escape(&report.paceline)
    );
    text
}

fn findings(report: &Report) -> String {
    if report.findings.is_empty() && report.problems.is_empty() {
        return String::new();
    }
    let mut text = "<h2>Findings</h2><ul>".to_owned();
    for noted in &report.findings {
        let _ = write!(
            text,
            "<li><b>{}</b> {}<br><span class=\"faint\">{}</span>",
            noted.severity.name(),
            escape(&show::sentence(noted)),
            escape(&noted.advice)
        );
    }
    for problem in &report.problems {
        let node = problem.node.as_ref().map_or("", NodeId::as_str);
        let _ = write!(
            text,
            "<li><b>{}</b> {} {} <span class=\"faint\">({})</span>",
            if problem.lost { "lost" } else { "not done" },
            escape(node),
            escape(&problem.what),
            escape(&problem.phase)
        );
    }
    text + "</ul>"
}

fn nodes(report: &Report) -> String {
    let metrics = show::metrics(report.nodes.values());
    if metrics.is_empty() {
        return String::new();
    }
    let all = report.nodes.len() <= ROWS;
    let named = |node: &NodeId| {
        report
            .findings
            .iter()
            .any(|noted| noted.place.node() == Some(node))
    };
    let mut text = "<h2>Nodes</h2><p class=\"faint\">The worst of a node's GPUs, the best of its paths.</p>\
                    <div class=\"wide\"><table><tr><th>node"
        .to_owned();
    for metric in &metrics {
        let (head, unit, _) = show::unit(*metric);
        let _ = write!(text, "<th>{head}<br><span class=\"faint\">{unit}</span>");
    }
    let mut shown = 0;
    for (node, row) in report
        .nodes
        .iter()
        .filter(|(node, row)| all || named(node) || !row.there)
    {
        shown += 1;
        if shown > ROWS {
            break;
        }
        let absent = if row.there { "" } else { " (absent)" };
        let _ = write!(text, "<tr><td>{}{absent}", escape(node.as_str()));
        for metric in &metrics {
            let (_, _, scale) = show::unit(*metric);
            let value = row.values.get(metric);
            let value = value.map_or_else(|| "–".to_owned(), |value| show::number(value * scale));
            let severity = show::severity(&report.findings, node, *metric);
            let _ = write!(text, "<td class=\"{}\">{value}", of_severity(severity));
        }
    }
    text += "</table></div>";
    let left = report.nodes.len().saturating_sub(shown);
    if left > 0 {
        let _ = write!(
            text,
            "<p class=\"faint\">and {left} more nodes without findings</p>"
        );
    }
    text
}

fn phases(report: &Report) -> String {
    let mut text = "<h2>Phases</h2><p class=\"faint\">".to_owned();
    let parts: Vec<String> = report
        .phases
        .iter()
        .map(|(phase, seconds)| format!("{} {seconds:.1} s", escape(phase)))
        .collect();
    text += &parts.join(" · ");
    text + "</p>"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preflight::gate::sample::report;

    #[test]
    fn what_nodes_call_themselves_stays_text() {
        let mut report = report(3, &["n2"]);
        report.job = "<script>alert(1)</script>".into();
        report.problems[0].what = "<img src=x onerror=y>".into();
        let page = page(&report);
        assert!(!page.contains("<script") && !page.contains("<img"), "{page}");
        assert!(
            page.contains("&lt;script&gt;") && page.contains("leave out <b>n2</b>"),
            "{page}"
        );
    }
}
