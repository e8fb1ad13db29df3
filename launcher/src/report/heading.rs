//! Formats the lines below a report's title (ranks, steps, duration and start), and a finding's subject for a headline.

use paceline_health::report::Report;
use paceline_health::text::humanize::{count, span};
use paceline_health::text::sanitize;
use paceline_health::verdict::{Subject, Verdict};

/// Returns the ranks, steps, duration and, if known, the start (UTC).
pub(super) fn facts(report: &Report) -> Vec<String> {
    let mut facts = Vec::new();
    if report.world_size > 0 {
        facts.push(count(report.world_size.into(), "rank"));
    }
    let length = report
        .median_step_s
        .map_or(String::new(), |median| format!(" of {}", span(median)));
    facts.push(count(report.steps, "step") + &length);
    facts.push(span(report.duration_s));
    if let Some(began) = report.began_unix_ms {
        facts.push(format!("began {} UTC", super::clock::utc(began)));
    }
    facts
}

/// Returns the subject for a headline. A UUID is shortened to its first letters, which are enough to distinguish two
/// GPUs of a node.
pub(crate) fn short_subject(verdict: &Verdict) -> String {
    match &verdict.subject {
        Subject::Rank {
            rank,
            node,
            gpu_uuid: Some(gpu),
        } => {
            let short: String = gpu.as_str().chars().take(12).collect();
            sanitize::name(&format!("rank {rank} on {node} ({short})"))
        }
        _ => sanitize::name(&verdict.subject_text()),
    }
}
