//! Formats one line for each finding that is raised, changes its severity, gets a cause or ends while the job runs.
//! `paceline run` and `paceline demo` print the same lines. This module is pure: the caller passes the time, and
//! prints.

mod pace;

use std::collections::BTreeMap;
use std::time::Instant;

use paceline_health::text::date::rfc3339;
use paceline_health::text::humanize::{self, span};
use paceline_health::verdict::{Cause, Severity, State, Verdict};

use crate::output::{Paint, Style};
use crate::report::block::why;
use crate::report::heading::short_subject;
use pace::Pace;

/// Maximum number of characters of a line. Even at three bytes each, they fit into one atomic write to a pipe
/// (PIPE_BUF).
const MAX_CHARS: usize = 1200;
/// Maximum number of characters of the evidence in a line. The report has all of it.
const MAX_WHY: usize = 300;
/// Maximum number of tracked findings. The oldest ended ones are dropped first.
const MAX_TRACKED: usize = 4096;

/// A change of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The finding was raised.
    Raised,
    /// The severity changed. This is the previous one.
    Severity(Severity),
    /// The cause became known.
    Cause,
    /// The finding ended.
    Resolved,
}

/// The findings of a job, in the state that was printed last.
#[derive(Debug)]
pub(crate) struct Notices {
    style: Style,
    /// The severity of each incident, and true if its cause was known. `None` if the incident has ended.
    incidents: BTreeMap<u64, Option<(Severity, bool)>>,
    pace: Pace,
}

impl Notices {
    /// Starts without any findings.
    pub(crate) fn new(style: Style) -> Notices {
        Notices {
            style,
            incidents: BTreeMap::new(),
            pace: Pace::default(),
        }
    }

    /// Returns the change by this verdict if it deserves a line. A new cost does not, and neither does a finding that
    /// is only observed.
    pub(crate) fn change(&mut self, verdict: &Verdict) -> Option<Change> {
        if verdict.observe_only {
            return None;
        }
        let is_explained = verdict.cause != Cause::Unknown;
        let holds = verdict.state == State::Raised;
        let after = holds.then_some((verdict.severity, is_explained));
        let before = self.incidents.insert(verdict.id, after).flatten();
        if self.incidents.len() > MAX_TRACKED {
            self.drop_oldest();
        }
        match (before, after) {
            (None, Some(_)) => Some(Change::Raised),
            (Some((was, _)), Some((now, _))) if was != now => Some(Change::Severity(was)),
            (Some((_, false)), Some((_, true))) => Some(Change::Cause),
            (Some(_), None) => Some(Change::Resolved),
            _ => None,
        }
    }

    fn drop_oldest(&mut self) {
        let ended = self.incidents.iter().find(|(_, severity)| severity.is_none());
        let oldest = ended.or(self.incidents.iter().next()).map(|(id, _)| *id);
        oldest.map(|id| self.incidents.remove(&id));
    }

    /// Returns the line for a verdict, if there is one and the rate limit permits it.
    pub(crate) fn on_verdict(&mut self, verdict: &Verdict, unix_ms: u64, now: Instant) -> Option<String> {
        let change = self.change(verdict)?;
        let is_urgent = change != Change::Resolved && verdict.severity == Severity::Critical;
        self.pace
            .admit(is_urgent, now)
            .then(|| line(verdict, change, unix_ms, self.style))
    }

    /// Returns the line that replaces those held back, once the rate limit permits it.
    pub(crate) fn held_back(&mut self, see: &str, now: Instant) -> Option<String> {
        let count = self.pace.take_held(now)?;
        let changes = humanize::count(count, "more change");
        let prefix = self.style.paint(Paint::Faint, "paceline:");
        Some(format!("{prefix} {changes} of findings, see {see}"))
    }

    /// Returns the time when [`Notices::held_back`] may return a line.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        self.pace.wake_at()
    }
}

/// Formats a line: what, where, since when, why, its cost, and what to do.
fn line(verdict: &Verdict, change: Change, unix_ms: u64, style: Style) -> String {
    let time = rfc3339(unix_ms);
    // Print only the time of day, because the job's log has the date.
    let time = time.get(11..19).unwrap_or_default();
    let prefix = style.paint(Paint::Faint, format_args!("paceline: {time}Z"));
    let subject = short_subject(verdict);
    if change == Change::Resolved {
        let lasted = verdict
            .cleared_s
            .map(|end| format!(", lasted {}", span(end - verdict.since_s)))
            .unwrap_or_default();
        let badge = style.paint(Paint::Good, format_args!("resolved {}", verdict.finding));
        return format!("{prefix} {badge}: {subject}{lasted}");
    }
    let paint = match verdict.severity {
        Severity::Info => Paint::Strong,
        Severity::Warning => Paint::Warn,
        Severity::Critical => Paint::Bad,
    };
    let was = match change {
        Change::Severity(was) => format!(" (was {})", humanize::severity(was)),
        Change::Cause => " (cause found)".to_owned(),
        _ => String::new(),
    };
    let badge = style.paint(
        paint,
        format_args!("{} {}", humanize::severity(verdict.severity), verdict.finding),
    );
    let mut parts = vec![format!("{subject}; since: {}", humanize::since(verdict))];
    parts.extend(labelled("why", &shortened(&why(verdict), MAX_WHY)));
    let cost = verdict
        .impact_ratio
        .map(|share| humanize::impact(verdict.finding.name(), share));
    parts.extend(labelled("cost", &cost.unwrap_or_default()));
    parts.extend(labelled("do", first_clause(&verdict.action)));
    format!(
        "{prefix} {badge}{was}: {}",
        shortened(&parts.join("; "), MAX_CHARS)
    )
}

fn labelled(label: &str, text: &str) -> Option<String> {
    (!text.is_empty()).then(|| format!("{label}: {text}"))
}

/// Returns the first clause of an action. The report has all of it.
pub(crate) fn first_clause(action: &str) -> &str {
    // A period ends a clause only before a space, because names such as `paceline.toml` contain one.
    let ends = [action.find(';'), action.find(". ")];
    let end = ends.into_iter().flatten().min().unwrap_or(action.len());
    action[..end].trim_end_matches('.')
}

fn shortened(text: &str, most: usize) -> String {
    let mut short: String = text.chars().take(most).collect();
    if short.len() < text.len() {
        short.push_str("...");
    }
    short
}

#[cfg(test)]
#[path = "notices_tests.rs"]
mod tests;
