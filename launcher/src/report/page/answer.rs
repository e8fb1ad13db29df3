//! Renders the answer: where, since when, why, what it costs and what to do now. The most important finding comes
//! first.

use paceline_health::report::Report;
use paceline_health::text::cards::{Card, cards};
use paceline_health::text::humanize::{self, count};
use paceline_health::verdict::{Severity, State, Verdict};
use paceline_health::{Policy, Provenance};

use super::Head;
use crate::html::Html;
use crate::report::block::why;
use crate::report::cost::of_finding;
use crate::report::heading::short_subject;
use crate::report::runbook;

/// Maximum number of findings that are shown in full.
const IN_FULL: usize = 3;
/// Maximum number of findings that get a line. The rest is only counted.
const IN_SHORT: usize = 60;

pub(super) fn draw(report: &Report, policy: &Policy) -> Html {
    let cards = cards(&report.verdicts);
    let mut html = Html::default();
    html.tag("<section>");
    if cards.is_empty() {
        html.part(nothing_found(report));
    }
    for card in cards.iter().take(IN_FULL) {
        html.part(finding(&card.verdict, report, policy));
    }
    let rest: Vec<&Card<'_>> = cards.iter().skip(IN_FULL).collect();
    if !rest.is_empty() {
        html.element(
            "<h2>",
            format_args!("And {} more", count(rest.len() as u64, "finding")),
            "</h2>",
        );
        let largest = rest
            .iter()
            .map(|card| card.verdict.lost_gpu_hours)
            .fold(0.0, f64::max);
        let unit = humanize::GpuTime::of(largest, humanize::whose(report));
        let row = |card: &&Card<'_>| {
            let verdict = &card.verdict;
            vec![
                format!("{} {}", mark(verdict), humanize::severity(verdict.severity)),
                match verdict.unresolved_at_exit {
                    true => format!("{}, unresolved at exit", verdict.finding),
                    false => verdict.finding.to_string(),
                },
                short_subject(verdict),
                humanize::since(verdict),
                if verdict.lost_gpu_hours > 0.0 {
                    unit.text(verdict.lost_gpu_hours)
                } else {
                    String::new()
                },
            ]
        };
        let heads = [
            Head::Words("severity"),
            Head::Words("finding"),
            Head::Words("who"),
            Head::Words("since"),
            Head::Number("cost"),
        ];
        html.part(super::table(&heads, rest.iter().take(IN_SHORT).map(row)));
        if rest.len() > IN_SHORT {
            let more = rest.len() - IN_SHORT;
            html.element(
                "<p class=\"faint\">",
                format_args!("and {more} more in report.json"),
                "</p>",
            );
        }
    }
    html.tag("</section>\n");
    html
}

/// Says that nothing was found. Absence of data never counts as health.
fn nothing_found(report: &Report) -> Html {
    let (good, text) = crate::report::block::nothing_found(report);
    let mut html = Html::default();
    html.tag(if good {
        "<div class=\"verdict ok\"><h2><span class=\"badge\">✔ OK</span> "
    } else {
        "<div class=\"verdict warning\"><h2><span class=\"badge\">? UNKNOWN</span> "
    })
    .text(text)
    .tag("</h2></div>\n");
    html
}

fn finding(verdict: &Verdict, report: &Report, policy: &Policy) -> Html {
    let row = policy.finding(verdict.finding);
    let mut html = Html::default();
    html.tag(match (verdict.state, verdict.severity) {
        _ if verdict.unresolved_at_exit => "<div class=\"verdict critical\">",
        (State::Cleared, _) => "<div class=\"verdict over\">",
        (_, Severity::Critical) => "<div class=\"verdict critical\">",
        (_, Severity::Warning) => "<div class=\"verdict warning\">",
        (_, Severity::Info) => "<div class=\"verdict info\">",
    });
    html.tag("<h2><span class=\"badge\">")
        .text(mark(verdict))
        .tag(" ")
        .text(humanize::severity(verdict.severity))
        .tag("</span> <span>")
        .text(verdict.finding)
        .tag(": ")
        .text(short_subject(verdict))
        .tag("</span>");
    if verdict.state == State::Cleared {
        html.tag(" <span class=\"faint\">ended</span>");
    }
    if verdict.unresolved_at_exit {
        html.tag(" <span class=\"unresolved\">unresolved at exit</span>");
    }
    html.tag("</h2><dl>");
    let mut line = |label: &'static str, text: &str, class: &'static str| {
        if !text.is_empty() {
            html.element("<dt>", label, "</dt>")
                .tag(class)
                .part(with_code(text))
                .tag("</dd>");
        }
    };
    line("what", &format!("{}. {}", row.title, row.means), "<dd>");
    line("who", &verdict.subject_text(), "<dd>");
    line("since", &humanize::since(verdict), "<dd>");
    let mut reasons = why(verdict);
    if let Some(ratio) = verdict.slowdown_ratio {
        let own = verdict
            .evidence
            .iter()
            .find(|piece| &*piece.what == "self_time_s");
        let slower = match own.and_then(|own| own.peers) {
            Some(other) => {
                let (own, beside) = (other * ratio, humanize::evidence::beside(verdict));
                let (own, other) = (
                    humanize::span_beside(own, other),
                    humanize::span_beside(other, own),
                );
                match beside {
                    "its peers" => format!("{ratio:.2}x the self-time of its peers ({own} vs. {other})"),
                    _ => format!("{ratio:.2}x as long as {beside} ({own}, {beside} {other})"),
                }
            }
            // The steps of the whole job have no peers, so they are compared with the job's own past.
            None => format!("{ratio:.2}x as long as it should be"),
        };
        reasons = format!("{slower}; {reasons}");
    }
    line("why", &reasons, "<dd>");
    line("cost", &of_finding(verdict, report), "<dd>");
    line("do", &verdict.action, "<dd class=\"now\">");
    line(
        "note",
        humanize::calm_picture(verdict.finding).unwrap_or_default(),
        "<dd>",
    );
    if verdict.provenance != Provenance::Live {
        let source = format!("{:?}", verdict.provenance).to_lowercase();
        line(
            "note",
            &format!("based on data that is not live ({source})"),
            "<dd>",
        );
    }
    if verdict.observe_only {
        line("note", "observed only, by policy: no alert is sent", "<dd>");
    }
    html.tag("<dt>more</dt><dd><a href=\"")
        .text(runbook(verdict.finding))
        .tag("\">runbook</a>, or <code>paceline explain ")
        .text(verdict.finding)
        .tag("</code></dd></dl></div>\n");
    html
}

/// Marks the commands between backticks in a text as code.
fn with_code(text: &str) -> Html {
    let mut html = Html::default();
    let is_paired = text.matches('`').count().is_multiple_of(2);
    for (index, piece) in text.split('`').enumerate() {
        match (index, is_paired) {
            (0, _) => html.text(piece),
            (_, false) => html.tag("`").text(piece),
            (odd, true) if odd % 2 == 1 => html.element("<code>", piece, "</code>"),
            _ => html.text(piece),
        };
    }
    html
}

/// Returns a sign that shows the severity without color.
pub(super) fn mark(verdict: &Verdict) -> &'static str {
    match (verdict.state, verdict.severity) {
        _ if verdict.unresolved_at_exit => "●",
        (State::Cleared, _) => "○",
        (_, Severity::Critical) => "●",
        (_, Severity::Warning) => "▲",
        (_, Severity::Info) => "•",
    }
}
