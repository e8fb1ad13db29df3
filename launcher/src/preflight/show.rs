//! Formats a preflight's report as text: a table of nodes and metrics, the findings, and the actions.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use paceline_health::id::NodeId;
use paceline_health::preflight::{Metric, NodeRow, Noted, Outcome, Place, Report};
use paceline_health::text::humanize::count;
use paceline_health::text::sanitize;
use paceline_health::verdict::Severity;

use crate::output::{Paint, Style, wrap};

/// Maximum number of rows of a table. With more nodes, only those with findings are shown.
const ROWS: usize = 40;
/// Maximum number of nodes with which a matrix of the paths between them is shown.
const MATRIX: usize = 16;

/// Renders the whole report.
pub(super) fn render(report: &Report, style: Style) -> String {
    let mut text = head(report, style);
    text += &carried(report, style);
    text += &table(&report.nodes, &report.findings, ROWS, style);
    text += &matrix(report, style);
    for noted in &report.findings {
        text += &finding(noted, style);
    }
    for problem in &report.problems {
        let node = problem
            .node
            .as_ref()
            .map_or(String::new(), |node| format!("node {node}: "));
        let paint = if problem.lost { Paint::Bad } else { Paint::Warn };
        let mark = style.paint(paint, style.glyph("✗", "x"));
        let line = format!("{node}{} ({})", problem.what, problem.phase);
        let _ = writeln!(text, "{mark} {}", sanitize::clip(&line, sanitize::SENTENCE));
    }
    if !report.unsteady.is_empty() {
        let places: BTreeSet<String> = report
            .unsteady
            .iter()
            .map(|(place, _)| place.to_string())
            .take(8)
            .collect();
        let names: Vec<String> = places.into_iter().collect();
        let _ = writeln!(text, "too noisy for a conclusion: {}", names.join(", "));
    }
    let bad = report.bad_nodes();
    if !bad.is_empty() {
        let list = paceline_nccl_bench::preflight::hosts::compress(bad.iter().map(NodeId::as_str));
        let _ = writeln!(text, "leave out: {}", style.paint(Paint::Strong, list));
    }
    text
}

fn head(report: &Report, style: Style) -> String {
    let gpus: u32 = report.nodes.values().map(|node| node.gpus).sum();
    let summary = Summary {
        mode: &report.mode,
        simulated: report.simulated,
        nodes: report.nodes.len() as u64,
        gpus: gpus.into(),
        seconds: report.seconds,
        comparisons: report.comparisons as u64,
        outcome: report.outcome,
    };
    format!("preflight {}\n", summary.line(style))
}

/// The values for a one-line summary of the result.
pub(crate) struct Summary<'a> {
    pub(crate) mode: &'a str,
    pub(crate) simulated: bool,
    pub(crate) nodes: u64,
    pub(crate) gpus: u64,
    pub(crate) seconds: f64,
    pub(crate) comparisons: u64,
    pub(crate) outcome: Outcome,
}

impl Summary<'_> {
    pub(crate) fn line(&self, style: Style) -> String {
        let (paint, word) = outcome(self.outcome);
        let mut machines = count(self.nodes, "node");
        if self.gpus > 0 {
            machines += &format!(", {}", count(self.gpus, "GPU"));
        }
        let simulated = if self.simulated {
            style.paint(Paint::Warn, " SIMULATED,")
        } else {
            String::new()
        };
        format!(
            "{},{simulated} {machines}, {:.1} s, {} comparisons: {}",
            self.mode,
            self.seconds,
            self.comparisons,
            style.paint(paint, word)
        )
    }
}

/// Returns an outcome as text.
pub(crate) fn outcome(outcome: Outcome) -> (Paint, &'static str) {
    match outcome {
        Outcome::Ok => (Paint::Good, "no problem"),
        Outcome::Warning => (Paint::Warn, "warning"),
        Outcome::Unknown => (Paint::Warn, "nothing to compare with"),
        Outcome::Critical => (Paint::Bad, "critical"),
    }
}

/// Returns one line for each transport that was used, with the reason why it was not NCCL.
fn carried(report: &Report, style: Style) -> String {
    if report.simulated {
        return String::new();
    }
    let mut lines: Vec<(&str, &str, Vec<&str>)> = Vec::new();
    for carried in &report.carried {
        let phase = carried.phase.split([',', ' ']).next().unwrap_or_default();
        let is_same =
            |line: &&mut (&str, &str, Vec<&str>)| (line.0, line.1) == (&*carried.transport, &*carried.why);
        match lines.iter_mut().find(is_same) {
            Some((_, _, phases)) if phases.contains(&phase) => {}
            Some((_, _, phases)) => phases.push(phase),
            None => lines.push((&carried.transport, &carried.why, vec![phase])),
        }
    }
    let mut text = String::new();
    for (transport, why, phases) in lines.iter().take(ROWS) {
        let why = if why.is_empty() {
            String::new()
        } else {
            format!(" ({why})")
        };
        let line = format!("{} over {transport}{why}", phases.join(", "));
        for part in wrap(&line, style.width) {
            let _ = writeln!(text, "{}", style.paint(Paint::Faint, part));
        }
    }
    text
}

/// Returns the heading of a metric's column, its unit, and the factor to convert from the metric's own unit.
pub(crate) fn unit(metric: Metric) -> (&'static str, &'static str, f64) {
    match metric {
        Metric::Gemm => ("GEMM", "TFLOP/s", 1.0),
        Metric::GpuMemory => ("HBM", "GB/s", 1.0),
        Metric::HostToDevice => ("to GPU", "GB/s", 1.0),
        Metric::DeviceToHost => ("from GPU", "GB/s", 1.0),
        Metric::CpuGemm => ("CPU", "GFLOP/s", 1.0),
        Metric::CpuMemory => ("memory", "GB/s", 1.0),
        Metric::LocalBusbw | Metric::LocalBusbwHost => ("inside", "GB/s", 1.0),
        Metric::PairBusbw => ("pairs", "GB/s", 1.0),
        Metric::PairLatency => ("delay", "µs", 1e6),
        Metric::PairLoss => ("loss", "%", 100.0),
        Metric::AllBusbw => ("all", "GB/s", 1.0),
    }
}

/// Formats a value with few digits.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 || size == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// Returns the severity of a cell. It is the worst of the findings about this node (or one of its GPUs) in this metric.
pub(crate) fn severity(findings: &[Noted], node: &NodeId, metric: Metric) -> Option<Severity> {
    let of_node = |noted: &&Noted| noted.metric() == Some(metric) && noted.place.node() == Some(node);
    findings.iter().filter(of_node).map(|noted| noted.severity).max()
}

fn cell(text: String, width: usize, severity: Option<Severity>, style: Style) -> String {
    let padded = format!("{text:>width$}");
    match severity {
        Some(Severity::Critical) => style.paint(Paint::Bad, padded),
        Some(Severity::Warning) => style.paint(Paint::Warn, padded),
        _ => padded,
    }
}

/// Returns the metrics that at least one of these nodes has.
pub(crate) fn metrics<'a>(rows: impl Iterator<Item = &'a NodeRow>) -> BTreeSet<Metric> {
    rows.flat_map(|row| row.values.keys().copied()).collect()
}

/// Formats a table of nodes and metrics. With more than `most` nodes, it shows only those with findings.
pub(crate) fn table(
    nodes: &BTreeMap<NodeId, NodeRow>,
    findings: &[Noted],
    most: usize,
    style: Style,
) -> String {
    let metrics = metrics(nodes.values());
    let named: BTreeSet<&NodeId> = findings.iter().filter_map(|noted| noted.place.node()).collect();
    let all = nodes.len() <= most;
    let rows: Vec<_> = nodes
        .iter()
        .filter(|(node, row)| all || named.contains(node) || !row.there)
        .take(most)
        .collect();
    if metrics.is_empty() || rows.is_empty() {
        return String::new();
    }
    let name = rows
        .iter()
        .map(|(node, _)| name_of(node).chars().count())
        .max()
        .unwrap_or(0)
        .max(4);
    let mut text = String::new();
    let mut heads = format!("{:name$}", "node");
    let mut units = format!("{:name$}", "");
    for metric in &metrics {
        let (head, unit, _) = unit(*metric);
        let _ = write!(heads, " {head:>9}");
        let _ = write!(units, " {unit:>9}");
    }
    let _ = writeln!(
        text,
        "\n{}\n{}",
        style.paint(Paint::Strong, heads),
        style.paint(Paint::Faint, units)
    );
    for (node, row) in &rows {
        let _ = write!(text, "{:name$}", name_of(node));
        for metric in &metrics {
            let (_, _, scale) = unit(*metric);
            let value = row
                .values
                .get(metric)
                .map_or_else(|| "-".to_owned(), |value| number(value * scale));
            let _ = write!(
                text,
                " {}",
                cell(value, 9, severity(findings, node, *metric), style)
            );
        }
        let _ = writeln!(text, "{}", if row.there { "" } else { "  absent" });
    }
    if rows.len() < nodes.len() {
        let _ = writeln!(text, "and {} more nodes", nodes.len() - rows.len());
    }
    text + "\n"
}

/// Returns a node's name, sanitized because the node itself reported it.
fn name_of(node: &NodeId) -> String {
    sanitize::name(node.as_str())
}

/// Returns the best bus bandwidth of each measured path, over both of its ends.
pub(super) fn ways(report: &Report) -> BTreeMap<(&NodeId, &NodeId), f64> {
    let mut ways = BTreeMap::new();
    for sample in &report.samples {
        if let (Metric::PairBusbw, Place::Pair { a, b }) = (sample.metric, &sample.place) {
            for key in [(a, b), (b, a)] {
                let known = ways.entry(key).or_insert(sample.value);
                *known = sample.value.max(*known);
            }
        }
    }
    ways
}

/// Formats a matrix with the bus bandwidth of each measured path.
fn matrix(report: &Report, style: Style) -> String {
    let nodes: Vec<&NodeId> = report.nodes.keys().collect();
    if !(3..=MATRIX).contains(&nodes.len()) {
        return String::new();
    }
    let ways = ways(report);
    if ways.is_empty() {
        return String::new();
    }
    let width = nodes
        .iter()
        .map(|node| name_of(node).chars().count())
        .max()
        .unwrap_or(0)
        .max(6);
    let is_slow = |a: &NodeId, b: &NodeId| {
        let slow =
            |noted: &&Noted| noted.metric() == Some(Metric::PairBusbw) && noted.concerns(&Place::pair(a, b));
        report
            .findings
            .iter()
            .filter(slow)
            .map(|noted| noted.severity)
            .max()
    };
    let mut text = style.paint(Paint::Faint, format!("{:width$}", "GB/s"));
    for node in &nodes {
        let _ = write!(text, " {:>width$}", name_of(node));
    }
    text.push('\n');
    for a in &nodes {
        let _ = write!(text, "{:width$}", name_of(a));
        for b in &nodes {
            let found = ways.get(&(*a, *b));
            let value = found.map_or_else(|| "·".to_owned(), |value| number(*value));
            let severity = found.and_then(|_| is_slow(a, b));
            let _ = write!(text, " {}", cell(value, width, severity, style));
        }
        text.push('\n');
    }
    text + "\n"
}

/// Formats a finding as a sentence.
pub(crate) fn sentence(noted: &Noted) -> String {
    let mut line = format!("{}: {}", noted.place, noted.says);
    if let (Some(value), Some(metric)) = (noted.value, noted.metric()) {
        let (_, unit, scale) = unit(metric);
        let _ = write!(line, ": {} {unit}", number(value * scale));
        for comparison in &noted.comparisons {
            let expected = number(comparison.expected * scale);
            let _ = write!(line, ", {} {expected}", comparison.against.words());
        }
    }
    if !noted.cause.is_empty() {
        let _ = write!(line, "; because: {}", noted.cause);
    }
    if !noted.or.is_empty() {
        let others: Vec<String> = noted.or.iter().map(ToString::to_string).collect();
        let _ = write!(line, " (or {})", others.join(" or "));
    }
    if !noted.sure {
        line += " (measured once only)";
    }
    line
}

fn finding(noted: &Noted, style: Style) -> String {
    let (paint, mark) = match noted.severity {
        Severity::Critical => (Paint::Bad, style.glyph("✗", "x")),
        _ => (Paint::Warn, style.glyph("!", "!")),
    };
    let line = sentence(noted);
    let mut text = String::new();
    let mark = style.paint(paint, mark);
    for (number, part) in wrap(&line, style.width.saturating_sub(2)).into_iter().enumerate() {
        let lead = if number == 0 { mark.clone() } else { " ".to_owned() };
        let _ = writeln!(text, "{lead} {part}");
    }
    if !noted.advice.is_empty() {
        for part in wrap(&noted.advice, style.width.saturating_sub(4)) {
            let _ = writeln!(text, "    {}", style.paint(Paint::Faint, part));
        }
    }
    text
}
