//! Formats the verdict block: where, since when, why, what it costs and what to do, all on the first screen.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use paceline_health::report::{Coverage, Report};
use paceline_health::text::humanize::{self, count, evidence, span};
use paceline_health::verdict::{Cause, Severity, State, Verdict};
use paceline_health::{Policy, text::cards::cards, text::sanitize};

use super::ending;
use super::heading::short_subject;
use crate::output::{self, Paint, Style};

/// Maximum number of findings that are shown in full. The rest get a line each, to fit on the first screen.
const IN_FULL: usize = 3;
/// Maximum number of lines for the remaining findings.
const IN_SHORT: usize = 8;
/// Width of the labels in front of a finding's lines.
const LABEL: usize = 10;
/// Maximum number of lines for gaps in monitoring, and for notes.
const GAPS: usize = 6;
const NOTES: usize = 8;
/// Maximum number of characters of a text.
const LONGEST: usize = 2000;
/// Note for a run directory that was removed. In this case, missing data says nothing about the job.
pub(crate) const REMOVED: &str = "the run directory was removed while the job ran: its data is lost";
/// With fewer steps, nothing can be concluded about the ranks' pace, because the detector decides after 5 steady steps.
const FEWEST_STEPS: u64 = 8;
/// Number of cells of the longest bar.
const BAR: f64 = 30.0;

/// Returns the whole block with a final newline. `places` are the paths of the report.
pub(crate) fn render(report: &Report, policy: &Policy, style: Style, places: &[&Path]) -> String {
    let mut block = Block {
        text: String::new(),
        style,
    };
    block.heading(report);
    let cards = cards(&report.verdicts);
    if cards.is_empty() {
        block.nothing_found(report);
    }
    for card in cards.iter().take(IN_FULL) {
        block.finding(&card.verdict, report, policy);
    }
    for card in cards.iter().skip(IN_FULL).take(IN_SHORT) {
        block.headline(&card.verdict);
    }
    if let Some(more) = cards
        .len()
        .checked_sub(IN_FULL + IN_SHORT)
        .filter(|more| *more > 0)
    {
        block.line(
            "",
            &format!("and {} more in the report", count(more as u64, "finding")),
        );
    }
    if let Some(end) = report.end.as_ref().filter(|end| !end.is_in_order()) {
        block.labelled("ended", &ending::words(end));
    }
    block.remedies(report);
    block.times(report);
    block.bound(report);
    block.job_cost(report);
    block.coverage(report);
    block.preflight(report);
    for (index, place) in places.iter().enumerate() {
        block.labelled(
            if index == 0 { "report" } else { "" },
            &place.display().to_string(),
        );
    }
    let width = style.width;
    let _ = writeln!(
        block.text,
        "{}",
        style.paint(Paint::Faint, style.glyph("─", "-").repeat(width))
    );
    block.text
}

/// Formats the heading, and these findings in full.
pub(crate) fn findings(report: &Report, verdicts: &[&Verdict], policy: &Policy, style: Style) -> String {
    let mut block = Block {
        text: String::new(),
        style,
    };
    block.heading(report);
    for verdict in verdicts {
        block.finding(verdict, report, policy);
    }
    block.text
}

pub(super) struct Block {
    text: String,
    pub(super) style: Style,
}

impl Block {
    fn heading(&mut self, report: &Report) {
        let (dot, dash) = (self.style.glyph(" · ", ", "), self.style.glyph("─", "-"));
        let mut facts = Vec::new();
        // A journal whose beginning is missing does not have the job's name.
        if !report.job.as_str().is_empty() {
            facts.push(format!("job {}", sanitize::name(report.job.as_str())));
        }
        if report.world_size > 0 {
            facts.push(count(report.world_size.into(), "rank"));
            let length = report
                .median_step_s
                .map_or(String::new(), |median| format!(" of {}", span(median)));
            facts.push(count(report.steps, "step") + &length);
        }
        facts.push(span(report.duration_s));
        let title = |facts: &[String]| format!(" paceline {dash}{dash} {} ", facts.join(dot));
        // On a narrow screen, drop the last facts first.
        while facts.len() > 1 && title(&facts).chars().count() + 2 > self.style.width {
            facts.pop();
        }
        let title = title(&facts);
        let used = 2 + title.chars().count();
        let (left, right) = (dash.repeat(2), dash.repeat(self.style.width.saturating_sub(used)));
        let paint = |text: &str| self.style.paint(Paint::Faint, text);
        let line = format!(
            "{}{}{}",
            paint(&left),
            self.style.paint(Paint::Strong, &title),
            paint(&right)
        );
        let _ = writeln!(self.text, "{line}");
    }

    fn nothing_found(&mut self, report: &Report) {
        let (good, text) = nothing_found(report);
        let (paint, mark) = if good {
            (Paint::Good, self.style.glyph("✔", "ok"))
        } else {
            (Paint::Warn, "?")
        };
        let line = self.style.paint(paint, format!("{mark} {text}"));
        let _ = writeln!(self.text, " {line}");
    }

    fn headline(&mut self, verdict: &Verdict) {
        let (paint, mark) = match (verdict.state, verdict.severity) {
            _ if verdict.unresolved_at_exit => (Paint::Bad, self.style.glyph("●", "*")),
            (State::Cleared, _) => (Paint::Faint, self.style.glyph("○", "-")),
            (_, Severity::Critical) => (Paint::Bad, self.style.glyph("●", "*")),
            (_, Severity::Warning) => (Paint::Warn, self.style.glyph("▲", "!")),
            (_, Severity::Info) => (Paint::Strong, self.style.glyph("•", ".")),
        };
        let mut more = String::new();
        if verdict.state == State::Cleared {
            more += ", ended";
        }
        if verdict.unresolved_at_exit {
            more += ", unresolved at exit";
        }
        if verdict.observe_only {
            more += ", only observed";
        }
        let severity = humanize::severity(verdict.severity);
        let badge = format!("{mark} {severity} {}", verdict.finding);
        let subject = short_subject(verdict);
        let length = [&badge, &subject, &more]
            .map(|text| text.chars().count())
            .iter()
            .sum::<usize>()
            + 3;
        let is_narrow = length > self.style.width;
        // On a narrow screen, put the subject on its own lines.
        let (between, subject) = match is_narrow {
            true => (
                "\n   ",
                output::wrap(&subject, self.style.width.saturating_sub(4)).join("\n   "),
            ),
            false => ("  ", subject),
        };
        let line = format!(
            " {}{between}{}{}",
            self.style.paint(paint, badge),
            self.style.paint(Paint::Strong, subject),
            self.style.paint(
                if verdict.unresolved_at_exit {
                    Paint::Bad
                } else {
                    Paint::Faint
                },
                more
            )
        );
        let _ = writeln!(self.text, "{line}");
    }

    fn finding(&mut self, verdict: &Verdict, report: &Report, policy: &Policy) {
        self.headline(verdict);
        let row = policy.finding(verdict.finding);
        self.labelled("what", &format!("{}. {}", row.title, row.means));
        self.labelled("since", &humanize::since(verdict));
        self.bars(verdict);
        let why = why(verdict);
        if !why.is_empty() {
            self.labelled("why", &why);
        }
        self.finding_cost(verdict, report);
        self.labelled("do", &verdict.action);
        if verdict.provenance != paceline_health::Provenance::Live {
            let source = format!("{:?}", verdict.provenance).to_lowercase();
            self.labelled("note", &format!("based on data that is not live ({source})"));
        }
        if verdict.observe_only {
            let note = format!(
                "observed only, by policy (observe.{}): no alert is sent",
                verdict.finding
            );
            self.labelled("note", &note);
        }
    }

    /// Draws the subject's self-time next to that of its peers, to scale.
    fn bars(&mut self, verdict: &Verdict) {
        let Some(ratio) = verdict.slowdown_ratio else {
            return;
        };
        let own = verdict
            .evidence
            .iter()
            .find(|evidence| &*evidence.what == "self_time_s");
        // Compute the seconds from the ratio, which is current. The evidence is older, from the verdict's last change.
        let Some(peers) = own.and_then(|own| own.peers) else {
            return;
        };
        let value = ratio * peers;
        let longest = value.max(peers);
        if !(longest > 0.0 && longest.is_finite()) {
            return;
        }
        let cell = self.style.glyph("█", "#");
        // Leave space for labels before the bar and a number after it.
        let room = self.style.width.saturating_sub(LABEL + 3 + 6 + 10) as f64;
        let reference = evidence::reference(verdict);
        let rows = [
            (value, Paint::Warn, format!("{ratio:.2}x")),
            (peers, Paint::Good, reference.to_owned()),
        ];
        let width = reference.len().max(5);
        for (index, (seconds, paint, label)) in rows.into_iter().enumerate() {
            // A nonzero value has a bar of at least one cell.
            let bar = cell.repeat((seconds / longest * BAR.min(room)).round().max(1.0) as usize);
            let length = humanize::span_beside(seconds, value + peers - seconds);
            let text = format!("{label:>width$} {} {length}", self.style.paint(paint, bar));
            let head = if index == 0 { "slower" } else { "" };
            self.raw_line(head, &text);
        }
    }

    fn coverage(&mut self, report: &Report) {
        let seen = &report.coverage;
        self.labelled("coverage", &coverage_words(seen));
        for gap in seen.gaps.iter().take(GAPS) {
            let to = gap.to_s.map_or("the end".to_owned(), span);
            self.labelled(
                "",
                &format!(
                    "{} not watched from {} to {to}: {}",
                    gap.node,
                    span(gap.from_s),
                    gap.why
                ),
            );
        }
        if let Some(rest) = seen.gaps.get(GAPS..).filter(|rest| !rest.is_empty()) {
            let nodes: BTreeSet<_> = rest.iter().map(|gap| &gap.node).collect();
            let (times, nodes) = (
                count(rest.len() as u64, "time"),
                count(nodes.len() as u64, "node"),
            );
            self.line("", &format!("and {times} more, on {nodes}: see the report"));
        }
        for note in seen.notes.iter().take(NOTES) {
            self.labelled("", note);
        }
        if let Some(more) = seen.notes.len().checked_sub(NOTES).filter(|more| *more > 0) {
            self.line(
                "",
                &format!("and {} in the report", count(more as u64, "more note")),
            );
        }
    }

    pub(super) fn labelled(&mut self, label: &str, text: &str) {
        let room = self.style.width.saturating_sub(LABEL + 3).max(20);
        // Clean the text, because names and sentences come from the job's nodes and must not contain terminal control
        // sequences.
        let text = sanitize::clip(text, LONGEST);
        for (index, line) in output::wrap(&text, room).iter().enumerate() {
            self.raw_line(if index == 0 { label } else { "" }, line);
        }
    }

    fn line(&mut self, label: &str, text: &str) {
        self.raw_line(label, text);
    }

    pub(super) fn raw_line(&mut self, label: &str, text: &str) {
        let label = self.style.paint(Paint::Faint, format!("{label:LABEL$}"));
        let _ = writeln!(self.text, "   {label}{text}");
    }
}

/// Describes the coverage: how much was observed, and what was lost in transit.
pub(super) fn coverage_words(seen: &Coverage) -> String {
    let expected = seen.ranks_expected.max(seen.ranks_seen);
    let mut parts = vec![format!("{} of {} ranks", seen.ranks_seen, expected)];
    if let Some(ratio) = seen.steps_ratio {
        // Round down, so that only a complete journal shows 100 %.
        parts.push(format!("{:.0} % of their steps", (ratio * 100.0).floor()));
    }
    let losses = [
        (
            seen.frames_lost,
            "frame lost in transit",
            "frames lost in transit",
        ),
        (
            seen.ring_dropped,
            "record dropped by a full ring or queue",
            "records dropped by full rings or queues",
        ),
        (seen.ring_torn, "torn record", "torn records"),
        (seen.journal_lost, "frame not journaled", "frames not journaled"),
    ];
    for (n, one, many) in losses {
        if n > 0 {
            parts.push(format!("{n} {}", if n == 1 { one } else { many }));
        }
    }
    parts.join(", ")
}

/// Returns the text for a job without findings, and true if that is good. Absence of data never counts as health.
pub(super) fn nothing_found(report: &Report) -> (bool, String) {
    let seen = &report.coverage;
    let (ranks, steps) = (count(seen.ranks_seen.into(), "rank"), count(report.steps, "step"));
    let is_removed = seen.notes.iter().any(|note| note.starts_with(REMOVED));
    if seen.ranks_seen == 0 && is_removed {
        (
            false,
            "The run directory was removed while the job ran: nothing is known about this job.".to_owned(),
        )
    } else if seen.ranks_seen == 0 {
        (
            false,
            "No rank was observed: nothing is known about this job.".to_owned(),
        )
    } else if report.steps == 0 {
        (
            false,
            format!("No step of {ranks} was observed: nothing is known about this job."),
        )
    } else if report.steps < FEWEST_STEPS {
        (
            false,
            format!("No finding, and too few steps to judge: {ranks}, {steps}."),
        )
    } else if seen.gaps.is_empty() && seen.notes.is_empty() {
        (true, format!("No finding: {ranks} kept pace over {steps}."))
    } else {
        (false, format!("No finding in observed data: {ranks}, {steps}."))
    }
}

pub(crate) fn why(verdict: &Verdict) -> String {
    let said = verdict.says.iter().map(|says| says.to_string());
    let pieces = verdict
        .evidence
        .iter()
        // Leave out the self-time, which is shown as bars.
        .filter(|evidence| verdict.slowdown_ratio.is_none() || &*evidence.what != "self_time_s")
        .map(|piece| evidence::phrase_of(verdict, piece));
    let mut parts: Vec<String> = said.chain(pieces).collect();
    parts.insert(
        0,
        match verdict.cause {
            Cause::Unknown if verdict.slowdown_ratio.is_some() => "no cause found".to_owned(),
            Cause::Unknown => return parts.join("; "),
            cause => humanize::cause(cause).to_owned(),
        },
    );
    parts.join("; ")
}

#[cfg(test)]
#[path = "block_tests.rs"]
mod tests;
