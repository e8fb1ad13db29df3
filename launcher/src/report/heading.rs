//! What stands below a report's title: how many ranks and steps, how long, since when.

use paceline_health::report::Report;
use paceline_health::text::humanize::{count, span};

/// Ranks, steps, duration and, where it is known, the start (UTC).
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
