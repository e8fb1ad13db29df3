//! Formats texts about findings and the job, in the words of the report and of the live page.

use paceline_health::text::humanize::{self, evidence};
use paceline_health::text::humanize::{count, hours, money, span};
use paceline_health::verdict::{Cause, Severity};

use crate::output::{Paint, Style};
use crate::top::client::response::{Report, Text, Verdict};
use crate::top::job::Job;

/// Number of letters of a UUID that are shown, to distinguish two GPUs.
const SHORT: usize = 12;

/// Returns the sign of a severity, which also works without colors, and its style.
pub(super) fn mark(severity: Severity, style: Style) -> (&'static str, Paint) {
    match severity {
        Severity::Critical => (style.glyph("●", "*"), Paint::Bad),
        Severity::Warning => (style.glyph("▲", "!"), Paint::Warn),
        Severity::Info => (style.glyph("•", "-"), Paint::Faint),
    }
}

/// Returns the subject of a finding in short form. For a rank, it is the number.
pub(super) fn whom(verdict: &Verdict) -> String {
    let subject = &verdict.subject;
    match (subject.rank, &subject.node, &subject.gpu) {
        (Some(rank), Some(node), _) => format!("rank {rank} on {node}"),
        (None, Some(node), Some(gpu)) => format!("{} on {node}", short(gpu.as_str())),
        _ => verdict.whom.to_string(),
    }
}

/// Returns the first letters of a GPU's UUID.
pub(super) fn short(uuid: &str) -> String {
    uuid.chars().take(SHORT).collect()
}

/// Returns the cause, with the slowdown if it was measured.
pub(super) fn why(verdict: &Verdict) -> String {
    let cause = match verdict.slowdown {
        None if verdict.cause.as_str() == Cause::Unknown.name() => &verdict.means,
        _ => &verdict.why,
    };
    match verdict.slowdown {
        Some(slowdown) => {
            let beside = or(&verdict.beside, "its peers");
            format!("{cause}; {slowdown:.2}x as long as {beside}")
        }
        None => cause.to_string(),
    }
}

/// Returns when the problem started, and when the detector confirmed it.
pub(super) fn since(verdict: &Verdict, report: &Report) -> String {
    let began = match verdict.since_step {
        Some(step) => format!("step {step} ({} after the start)", span(verdict.since_s)),
        None => format!("{} after the start", span(verdict.since_s)),
    };
    let sure = match (verdict.since_step, verdict.raised_step) {
        (Some(from), Some(sure)) if sure > from => {
            format!(", confirmed {} later", count(sure - from, "step"))
        }
        _ if verdict.raised_s > verdict.since_s => {
            format!(", confirmed {} later", span(verdict.raised_s - verdict.since_s))
        }
        _ => String::new(),
    };
    let end = match verdict.cleared_s {
        Some(end) => format!(", over after {}", span(end - verdict.since_s)),
        None => format!(", {}", ago(report.duration_s - verdict.since_s)),
    };
    began + &end + &sure
}

/// Formats a past time, without digits that change constantly.
pub(super) fn ago(seconds: f64) -> String {
    format!("{} ago", lasting(seconds))
}

/// Formats a growing duration.
pub(super) fn lasting(seconds: f64) -> String {
    match seconds.max(0.0) {
        s if s < 60.0 => format!("{s:.0} s"),
        s if s < 3600.0 => format!("{:.0} min", (s / 60.0).floor()),
        s => format!("{:.1} h", s / 3600.0),
    }
}

/// Formats the cost of a finding.
pub(super) fn costs(verdict: &Verdict, job: &Job) -> String {
    let mut parts = Vec::new();
    if let Some(impact) = verdict.impact.filter(|_| verdict.raised) {
        parts.push(humanize::impact(verdict.finding.as_str(), impact));
    }
    parts.push(if verdict.lost_gpu_hours > 0.0 {
        format!("{} so far", hours(verdict.lost_gpu_hours, whose(job)))
    } else {
        "nothing so far".to_owned()
    });
    if let Some(cost) = verdict.lost_cost.filter(|cost| *cost > 0.0) {
        parts.push(format!("{} in money", money(cost)));
    }
    parts.join("; ")
}

/// Returns the unit of the costs, which is GPU time, or rank time if there are no GPUs.
pub(super) fn whose(job: &Job) -> &'static str {
    if job.has_gpus() { "GPU" } else { "rank" }
}

fn or<'a>(text: &'a Text, other: &'a str) -> &'a str {
    if text.as_str().is_empty() {
        other
    } else {
        text.as_str()
    }
}

/// Returns the evidence of a finding, as phrases.
pub(super) fn proof(verdict: &Verdict) -> Vec<String> {
    let reference = or(&verdict.reference, "peers");
    let pieces = verdict.evidence.iter();
    pieces
        .map(|piece| evidence::join_with(piece, reference))
        .collect()
}

/// Returns the caveats of a finding.
pub(super) fn notes(verdict: &Verdict) -> Vec<String> {
    let mut notes = Vec::new();
    if !matches!(verdict.provenance.as_str(), "live" | "") {
        notes.push(format!("based on data that is not live ({})", verdict.provenance));
    }
    if verdict.observe_only {
        notes.push("observed only, by policy: no alert is sent".to_owned());
    }
    notes
}

/// Formats a number with separated thousands.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns the text for a job without an active finding, and true if no problem was observed. Absence of data never
/// counts as health.
pub(super) fn calm(job: &Job) -> (bool, String) {
    let Some(report) = &job.report else {
        return (false, "No result yet.".to_owned());
    };
    let seen = &report.coverage;
    let ranks = count(seen.ranks_seen, "rank");
    let over = match report.findings {
        0 => String::new(),
        findings => format!(" {} before, all ended.", count(findings, "finding")),
    };
    let (is_well, text) = if seen.ranks_seen == 0 {
        let why = seen.notes.first().map(|note| format!(" {note}."));
        let text = "No rank was observed yet: nothing is known about this job.".to_owned();
        (false, text + &why.unwrap_or_default())
    } else if report.steps == 0 {
        (
            false,
            format!("{ranks} attached, no step was observed yet: nothing is known about this job."),
        )
    } else if seen.ranks_seen < seen.ranks_expected {
        let text = format!(
            "{} of {} ranks observed: those are in step, the others are unknown.",
            seen.ranks_seen, seen.ranks_expected
        );
        (false, text)
    } else if seen.gaps > 0 || !seen.notes.is_empty() {
        (
            false,
            format!("No finding in the observed part of {ranks}; the report lists the gaps."),
        )
    } else {
        (true, format!("All {ranks} in step."))
    };
    (is_well, text + &over)
}
