//! Formats a comparison as text and HTML.

use std::fmt::Write as _;

use paceline_health::text::humanize::{count, percent, span};
use paceline_health::text::sanitize;

use super::shift::{Told, signed};
use super::{Comparison, Found, Run};
use crate::html::Html;
use crate::output::{Column, Paint, Style, columns, wrap};
use crate::report::page::{Head, STYLE, table};

/// Maximum number of findings in each list.
const FOUND: usize = 20;
/// Width of the labels.
const LABEL: usize = 13;

pub(super) fn text(found: &Comparison, style: Style) -> String {
    let paint = match found.told {
        Told::Better => Paint::Good,
        Told::Worse => Paint::Bad,
        Told::Same => Paint::Strong,
        Told::Unknown => Paint::Warn,
    };
    let mut text = String::new();
    for line in wrap(&found.says, style.width) {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{}", style.paint(paint, line));
    }
    text.push('\n');
    for (name, run) in ["A", "B"].iter().zip(&found.runs) {
        let facts = format!(
            "{}: job {}, {}, {}",
            sanitize::name(&run.place),
            sanitize::name(&run.job),
            count(run.ranks.into(), "rank"),
            count(run.steps, "step")
        );
        for line in hanging(&format!("{name}  "), &facts, style) {
            let _ = writeln!(text, "{line}");
        }
    }
    let others = [
        Column::right("A", 11),
        Column::right("B", 11),
        Column::right("change", 9),
    ];
    let rows: Vec<_> = rows(found)
        .into_iter()
        .map(|[name, a, b, change]| (name, [a, b, change]))
        .collect();
    let _ = write!(text, "\n{}", columns(("", LABEL), others, &rows, style));
    for (head, list) in [("new in B", &found.new), ("gone in B", &found.gone)] {
        for (index, line) in list.iter().take(FOUND).map(words).enumerate() {
            let head = if index == 0 { head } else { "" };
            for line in hanging(&format!("{head:LABEL$}"), &sanitize::name(&line), style) {
                let _ = writeln!(text, "{line}");
            }
        }
        if list.len() > FOUND {
            let _ = writeln!(text, "{:LABEL$}and {} more", "", list.len() - FOUND);
        }
    }
    for (name, [a, b]) in &found.versions {
        let line = format!("{}: {} to {}", sanitize::name(name), version(a), version(b));
        for line in hanging(&format!("{:LABEL$}", "version"), &line, style) {
            let _ = writeln!(text, "{line}");
        }
    }
    text
}

/// Wraps `text` into lines next to `head`. The following lines are indented by the width of `head`.
fn hanging(head: &str, text: &str, style: Style) -> Vec<String> {
    let room = style.width.saturating_sub(head.len()).max(20);
    let lines = wrap(text, room).into_iter().enumerate();
    lines
        .map(|(index, line)| format!("{:1$}{line}", if index == 0 { head } else { "" }, head.len()))
        .collect()
}

/// Returns rows with the numbers of both runs side by side, if both runs have them.
fn rows(found: &Comparison) -> Vec<[String; 4]> {
    let mut rows = Vec::new();
    let mut row = |name: &str, values: [Option<f64>; 2], words: fn(f64) -> String, points: bool| {
        let told = |value: Option<f64>| value.map_or("not known".to_owned(), words);
        let change = match values {
            [Some(a), Some(b)] if points => format!("{:+.1} pp", (b - a) * 100.0),
            [Some(a), Some(b)] if a > 0.0 => signed(b / a - 1.0),
            _ => String::new(),
        };
        rows.push([name.to_owned(), told(values[0]), told(values[1]), change]);
    };
    let of = |value: fn(&Run) -> Option<f64>| [value(&found.runs[0]), value(&found.runs[1])];
    // Add the steady steps, which the sentence above the table is about. The other rows include every step, with stalls
    // and the start.
    if let Some(step) = &found.step {
        row("steady step", step.mean_s.map(Some), span, false);
    }
    row("median, all", of(|run| run.p50_s), span, false);
    row("p99, all", of(|run| run.p99_s), span, false);
    for part in &found.parts {
        row(part.part.name(), part.mean_s.map(Some), span, false);
    }
    row("goodput", of(|run| run.goodput_ratio), percent, true);
    row("lost", of(|run| run.lost_ratio), percent, true);
    rows
}

fn words(found: &Found) -> String {
    match found.cause {
        "unknown" => format!("{} of {}", found.finding, found.whom),
        cause => format!("{} of {} ({cause})", found.finding, found.whom),
    }
}

fn version(text: &str) -> String {
    if text.is_empty() {
        "not reported".to_owned()
    } else {
        sanitize::name(text)
    }
}

/// Formats the comparison as an HTML page.
pub(super) fn page(found: &Comparison) -> String {
    let mut html = Html::default();
    html.tag("<header><h1>Two runs compared</h1></header><main>");
    html.tag(match found.told {
        Told::Better => "<div class=\"verdict ok\"><h2><span class=\"badge\">✔ BETTER</span></h2><p>",
        Told::Worse => "<div class=\"verdict critical\"><h2><span class=\"badge\">● WORSE</span></h2><p>",
        Told::Same => "<div class=\"verdict info\"><h2><span class=\"badge\">= THE SAME</span></h2><p>",
        Told::Unknown => "<div class=\"verdict warning\"><h2><span class=\"badge\">? UNKNOWN</span></h2><p>",
    });
    html.text(&found.says).tag("</p></div><h2>Runs</h2>");
    let runs = ["A", "B"].iter().zip(&found.runs).map(|(name, run)| {
        let (ranks, steps) = (run.ranks.to_string(), run.steps.to_string());
        vec![
            (*name).to_owned(),
            run.job.clone(),
            run.place.clone(),
            ranks,
            steps,
        ]
    });
    let heads = [
        Head::Words("run"),
        Head::Words("job"),
        Head::Words("report"),
        Head::Number("ranks"),
        Head::Number("steps"),
    ];
    html.part(table(&heads, runs)).tag("<h2>Numbers</h2>");
    let heads = [
        Head::Words("what"),
        Head::Number("A"),
        Head::Number("B"),
        Head::Number("change"),
    ];
    html.part(table(&heads, rows(found).into_iter().map(Vec::from)));
    html.part(list("Findings that are new in B", &found.new))
        .part(list("Findings that are gone in B", &found.gone));
    html.tag("<h2>Versions that differ</h2>");
    if found.versions.is_empty() {
        html.tag("<p class=\"faint\">None, as far as reported.</p>");
    } else {
        let rows = found
            .versions
            .iter()
            .map(|(name, [a, b])| vec![name.clone(), version(a), version(b)]);
        html.part(table(
            &[Head::Words("what"), Head::Words("A"), Head::Words("B")],
            rows,
        ));
    }
    html.tag("</main>");
    Html::page("Two runs compared: paceline report", STYLE, html)
}

fn list(head: &'static str, found: &[Found]) -> Html {
    let mut html = Html::default();
    html.element("<h2>", head, "</h2>");
    if found.is_empty() {
        html.tag("<p class=\"faint\">None.</p>");
    }
    for one in found.iter().take(FOUND) {
        html.element("<p>", words(one), "</p>");
    }
    if found.len() > FOUND {
        html.element(
            "<p class=\"faint\">",
            format_args!("and {} more", found.len() - FOUND),
            "</p>",
        );
    }
    html
}
