//! Formats the report as Markdown, for an issue, a chat or a wiki. It has the verdict block's text in the same order.

use std::fmt::Write as _;

use paceline_health::Policy;
use paceline_health::report::Report;
use paceline_health::text::cards::{Card, cards};
use paceline_health::text::humanize::{self, count};
use paceline_health::text::sanitize;
use paceline_health::verdict::{State, Verdict};

use super::block::{coverage_words, nothing_found, why};
use super::cost::of_finding;
use super::heading::short_subject;
use super::{ending, heading, runbook};

/// Maximum number of findings that are shown in full. The rest have a row each.
const IN_FULL: usize = 3;
/// Maximum number of rows for the remaining findings.
const IN_SHORT: usize = 60;
/// Maximum number of characters of a text.
const LONGEST: usize = 2000;

/// Renders the document.
pub(super) fn render(report: &Report, policy: &Policy) -> String {
    let mut text = format!(
        "# Job {}\n\n{}\n",
        escaped(name(report)),
        escaped(&heading::facts(report).join(", "))
    );
    let cards = cards(&report.verdicts);
    if cards.is_empty() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "\n{}", escaped(&nothing_found(report).1));
    }
    for card in cards.iter().take(IN_FULL) {
        finding(&mut text, &card.verdict, report, policy);
    }
    rest(&mut text, cards.get(IN_FULL..).unwrap_or_default());
    if let Some(end) = report.end.as_ref().filter(|end| !end.is_in_order()) {
        let _ = writeln!(text, "\n**ended** {}", escaped(&ending::words(end)));
    }
    let _ = writeln!(
        text,
        "\n**coverage** {}",
        escaped(&coverage_words(&report.coverage))
    );
    for note in &report.coverage.notes {
        let _ = writeln!(text, "- {}", escaped(note));
    }
    text
}

fn name(report: &Report) -> &str {
    match report.job.as_str() {
        "" => "without a name",
        name => name,
    }
}

fn finding(text: &mut String, verdict: &Verdict, report: &Report, policy: &Policy) {
    let row = policy.finding(verdict.finding);
    let over = if verdict.state == State::Cleared {
        ", ended"
    } else {
        ""
    };
    let _ = writeln!(
        text,
        "\n## {} {}: {}{over}\n",
        humanize::severity(verdict.severity),
        verdict.finding,
        escaped(&short_subject(verdict))
    );
    let _ = writeln!(text, "{}\n", escaped(&format!("{}. {}", row.title, row.means)));
    for (label, said) in [
        ("since", humanize::since(verdict)),
        ("why", why(verdict)),
        ("cost", of_finding(verdict, report)),
        ("do", verdict.action.to_string()),
    ] {
        if !said.is_empty() {
            let _ = writeln!(text, "- **{label}** {}", escaped(&said));
        }
    }
    let _ = writeln!(text, "- **runbook** <{}>", runbook(verdict.finding));
}

fn rest(text: &mut String, cards: &[Card<'_>]) {
    if cards.is_empty() {
        return;
    }
    let more = count(cards.len() as u64, "finding");
    let _ = writeln!(
        text,
        "\n## And {more} more\n\n| severity | finding | who | since |\n|---|---|---|---|"
    );
    for card in cards.iter().take(IN_SHORT) {
        let verdict = &card.verdict;
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} |",
            humanize::severity(verdict.severity),
            verdict.finding,
            escaped(&short_subject(verdict)),
            escaped(&humanize::since(verdict))
        );
    }
}

/// Escapes a text, because names come from the job's nodes, and none of them may become markup, a link or a new line.
fn escaped(text: &str) -> String {
    let mut safe = String::new();
    for letter in sanitize::clip(text, LONGEST).chars() {
        match letter {
            '\n' | '\r' => safe.push(' '),
            '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '|' | '#' | '!' | '~' | '@' => {
                safe.push('\\');
                safe.push(letter);
            }
            letter => safe.push(letter),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use paceline_health::verdict::{Cause, Finding, Subject};

    use super::*;
    use crate::report::samples;

    #[test]
    fn it_says_who_since_why_cost_and_do_in_this_order() {
        let slow = |id| samples::verdict(id, Finding::Straggler, samples::rank(5), Cause::Thermal);
        let report = samples::report((1..6).map(slow).collect());
        let text = render(&report, &Policy::default());
        let order = [
            "# Job j\n",
            "## WARNING straggler: rank 5 on n1\n",
            "- **since** step 100",
            "- **why** heat",
            "- **cost** ",
            "- **do** ",
            "- **runbook** <https://",
            "## And 2 findings more",
            "| WARNING | straggler | rank 5 on n1 |",
            "**coverage** 64 of 64 ranks",
        ];
        let places: Vec<_> = order.iter().map(|part| text.find(part)).collect();
        assert!(
            places.iter().all(Option::is_some) && places.is_sorted(),
            "{places:?} {text}"
        );
    }

    /// GPUs of a node share one card, as in the block and on the page.
    #[test]
    fn the_same_finding_of_the_gpus_of_a_node_is_one_card() {
        let hot = |id: u64| {
            let subject = Subject::Gpu {
                gpu_uuid: format!("GPU-{id}").as_str().into(),
                node: "n1".into(),
            };
            samples::verdict(id, Finding::GpuThrottled, subject, Cause::Thermal)
        };
        let text = render(&samples::report((1..9).map(hot).collect()), &Policy::default());
        assert_eq!(text.matches("\n## ").count(), 1, "{text}");
        assert!(
            text.contains("## WARNING gpu-throttled: 8 GPUs on n1\n"),
            "{text}"
        );
    }

    #[test]
    fn a_name_from_outside_is_no_markup() {
        let mut report = samples::report(Vec::new());
        report.job = "a](http://x) <b>\n# no".into();
        let text = render(&report, &Policy::default());
        assert!(
            text.starts_with("# Job a\\](http://x) \\<b\\> \\# no\n"),
            "{text}"
        );
    }
}
