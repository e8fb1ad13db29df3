//! Renders `report.html`, which is the report as one self-contained page for screens and paper. The only input is
//! `report.json`. The same code runs at a job's end and for `paceline report RUN --html`.
//!
//! The answer comes first, then the cost, then the plots, then the data behind them.

mod answer;
mod bands;
mod bound;
mod detail;
mod heat;
mod png;
mod spent;
mod timeline;

use std::io;
use std::path::{Path, PathBuf};

use paceline_health::Policy;
use paceline_health::report::Report;
use paceline_health::text::sanitize;
use paceline_sidecar::safe_file;
use paceline_sidecar::sink::write_whole;

use super::{by_weight, heading};
use crate::html::Html;

/// Name of the page in a run directory.
pub(crate) const FILE: &str = "report.html";
/// The end of the page's title, which also identifies our own pages.
const TITLE: &str = ": paceline report";
const OURS: &str = ": paceline report</title>";
pub(crate) const STYLE: &str = include_str!("style.css");

/// Width of the plots in their own units, and of their margins.
const WIDE: f64 = 1100.0;
const LEFT: f64 = 74.0;
const RIGHT: f64 = 78.0;

/// Renders the page.
pub(crate) fn page(report: &Report, policy: &Policy) -> String {
    let mut body = Html::default();
    body.part(head(report))
        .tag("<main>\n")
        .part(answer::draw(report, policy))
        .part(spent::draw(report));
    match &report.history {
        Some(history) if !history.columns.is_empty() => {
            body.tag("<section>")
                .part(heat::draw(report, history))
                .part(bands::draw(history))
                .tag("</section>\n");
        }
        _ => {
            body.tag("<section><h2>Ranks by steps</h2><p class=\"none\">Not measured: no step of this job was compared. ")
                .tag("Steps come from the Python hook, from NCCL's profiler plugin or from the job's log ")
                .tag("(<code>--step-log</code>); for a report of an older Paceline, ")
                .tag("<code>paceline replay</code> creates a new one.</p></section>\n");
        }
    }
    body.part(bound::draw(report));
    body.tag("<div class=\"two\">")
        .part(timeline::draw(report))
        .part(detail::draw(report))
        .tag("</div>\n");
    body.part(detail::preflight(report))
        .tag("</main>\n")
        .part(foot(report));
    let title = format!("{}{TITLE}", sanitize::name(name(report)));
    Html::page(title, STYLE, body)
}

/// Writes the page into a run directory.
///
/// # Errors
/// If writing fails, or if a file of that name exists that Paceline did not write.
pub(crate) fn write(run_dir: &Path, report: &Report, policy: &Policy) -> io::Result<PathBuf> {
    let path = run_dir.join(FILE);
    let old = safe_file::open(&path).and_then(io::read_to_string);
    if old.is_ok_and(|old| !old.contains(OURS)) {
        return Err(io::Error::other("that file was not written by paceline"));
    }
    write_whole(&path, page(report, policy).as_bytes())?;
    Ok(path)
}

fn name(report: &Report) -> &str {
    match report.job.as_str() {
        "" => "job without a name",
        name => name,
    }
}

fn head(report: &Report) -> Html {
    let mut facts = heading::facts(report);
    facts.push(match &report.end {
        Some(end) => format!("ended {}", super::ending::words(end)),
        None => "no end was recorded".to_owned(),
    });
    let mut html = Html::default();
    html.element("<header><h1>Job ", name(report), "</h1>").element(
        "<p class=\"faint\">",
        facts.join(" · "),
        "</p></header>\n",
    );
    html
}

fn foot(report: &Report) -> Html {
    let mut html = Html::default();
    html.tag("<footer><p>The same for programs: <code>report.json</code> next to this page (")
        .tag("<code>paceline report RUN --json</code>). Each number follows from the journal by ")
        .tag("<code>paceline replay</code>; what a finding means: <code>paceline explain NAME</code>.</p><p>Paceline ")
        .text(env!("CARGO_PKG_VERSION"))
        .tag(", report version ")
        .text(report.schema_version)
        .tag(".</p></footer>\n");
    html
}

/// The heading of a table's column.
#[derive(Clone, Copy)]
pub(crate) enum Head {
    /// The heading of a column with text.
    Words(&'static str),
    /// The heading of a column with numbers, which is right-aligned.
    Number(&'static str),
}

/// Renders a table from its headings and rows of cells.
pub(crate) fn table(heads: &[Head], rows: impl IntoIterator<Item = Vec<String>>) -> Html {
    let mut html = Html::default();
    html.tag("<div class=\"wide\" tabindex=\"0\"><table><tr>");
    for head in heads {
        match head {
            Head::Words(head) => html.element("<th>", head, "</th>"),
            Head::Number(head) => html.element("<th class=\"n\">", head, "</th>"),
        };
    }
    html.tag("</tr>\n");
    for row in rows {
        html.tag("<tr>");
        for (cell, head) in row.iter().zip(heads) {
            match head {
                Head::Words(_) => html.element("<td>", cell, "</td>"),
                Head::Number(_) => html.element("<td class=\"n\">", cell, "</td>"),
            };
        }
        html.tag("</tr>\n");
    }
    html.tag("</table></div>");
    html
}

#[cfg(test)]
#[path = "page_tests.rs"]
mod tests;
