//! Renders events in order: findings, gaps, remedies, restarts, and the job's end.

use paceline_health::report::Report;
use paceline_health::text::cards::cards;
use paceline_health::text::humanize::{severity, span};
use paceline_health::verdict::State;

use super::answer::mark;
use super::{Head, table};
use crate::html::Html;
use crate::report::heading::short_subject;
use crate::report::{clock, ending, remedies};

/// Maximum number of lines that are always visible, and of those in total. The rest is only counted.
const SEEN: usize = 24;
const MOST: usize = 120;

pub(super) fn draw(report: &Report) -> Html {
    let mut found = happenings(report);
    // Sort with total_cmp, because a NaN must not cause a failure. No journal contains one.
    found.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut html = Html::default();
    html.tag("<section><h2>Timeline</h2>");
    if found.is_empty() {
        html.tag("<p class=\"faint\">Nothing happened.</p>");
    } else {
        let more = found.len().saturating_sub(MOST);
        let moment = |at: f64| match report.began_unix_ms {
            Some(began) => clock::utc_second(began.saturating_add_signed((at * 1e3) as i64)),
            None => String::new(),
        };
        let mut rows = found
            .into_iter()
            .take(MOST)
            .map(|(at, what, who)| vec![moment(at), span(at), what, who]);
        let heads = [
            Head::Words(if report.began_unix_ms.is_some() {
                "date and time, UTC"
            } else {
                ""
            }),
            Head::Number("after the start"),
            Head::Words("what"),
            Head::Words("who"),
        ];
        html.part(table(&heads, rows.by_ref().take(SEEN)));
        let rest: Vec<_> = rows.collect();
        if !rest.is_empty() {
            html.element(
                "<details><summary>",
                format_args!("{} later", rest.len()),
                "</summary>",
            );
            html.part(table(&heads, rest));
            html.tag("</details>");
        }
        if more > 0 {
            html.element(
                "<p class=\"faint\">",
                format_args!("and {more} more in report.json"),
                "</p>",
            );
        }
    }
    html.tag("</section>");
    html
}

fn happenings(report: &Report) -> Vec<(f64, String, String)> {
    let mut found = Vec::new();
    for card in cards(&report.verdicts) {
        let verdict = &card.verdict;
        let (whom, finding) = (short_subject(verdict), verdict.finding);
        let raised = match verdict.state {
            State::Raised => mark(verdict),
            // Use the mark that the finding had while it was active.
            State::Cleared => "▲",
        };
        let what = format!("{raised} {} {finding}", severity(verdict.severity));
        found.push((verdict.raised_s, what, whom.clone()));
        if let Some(at) = verdict.cleared_s {
            found.push((at, format!("○ over: {finding}"), whom));
        }
    }
    for gap in &report.coverage.gaps {
        let node = gap.node.to_string();
        found.push((gap.from_s, format!("not watched: {}", gap.why), node.clone()));
        found.extend(gap.to_s.map(|at| (at, "watched again".to_owned(), node)));
    }
    let columns = report
        .history
        .iter()
        .flat_map(|history| history.columns.windows(2));
    for two in columns.filter(|two| two[0].restart != two[1].restart) {
        let what = format!(
            "restart {}; step {} was the last before",
            two[1].restart, two[0].step
        );
        found.push((two[0].at_s, what, String::new()));
    }
    if let Some(began) = report.began_unix_ms {
        for told in &report.remedies.latest {
            let at = told.unix_ms.saturating_sub(began) as f64 / 1e3;
            found.push((
                at,
                format!("remedy: {}", remedies::one(told)),
                told.subject.to_string(),
            ));
        }
    }
    if let Some(end) = &report.end {
        found.push((
            report.duration_s,
            format!("ended {}", ending::words(end)),
            String::new(),
        ));
    }
    found
}
