//! Formats the remedies that ran and those that did not, for the verdict block.

use paceline_health::remedy::{ACT, AuditedDecision, Remedies};
use paceline_health::report::Report;

use super::block::Block;

/// Maximum number of decisions that are listed. The latest ones are taken.
const ROWS: usize = 3;

impl Block {
    pub(super) fn remedies(&mut self, report: &Report) {
        if !report.remedies.is_empty() {
            self.labelled("remedies", &words(&report.remedies));
        }
    }
}

/// Formats executed and dry-run remedies as text, and the rest as counts.
fn words(remedies: &Remedies) -> String {
    let is_meant = |outcome: &str| outcome == ACT || outcome == DRY_RUN;
    let meant: Vec<&AuditedDecision> = remedies
        .latest
        .iter()
        .filter(|decision| is_meant(&decision.outcome))
        .collect();
    let mut parts: Vec<String> = meant
        .iter()
        .skip(meant.len().saturating_sub(ROWS))
        .map(|decision| one(decision))
        .collect();
    let of = |is_wanted: &dyn Fn(&str) -> bool| -> u64 {
        let counts = remedies.counts.iter();
        counts
            .filter(|one| is_wanted(&one.outcome))
            .map(|one| one.count)
            .sum()
    };
    let more = of(&is_meant).saturating_sub(parts.len() as u64);
    if more > 0 {
        parts.insert(0, format!("{more} before these"));
    }
    let refused = of(&|outcome| !is_meant(outcome));
    if refused > 0 {
        let counts = remedies.counts.iter().filter(|one| !is_meant(&one.outcome));
        let reasons: Vec<String> = counts
            .map(|one| format!("{} {} {}", one.count, one.response, one.outcome))
            .collect();
        parts.push(format!("{refused} not done ({})", reasons.join(", ")));
    }
    parts.join("; ")
}

/// The outcome of a dry run.
const DRY_RUN: &str = "dry-run";

pub(super) fn one(decision: &AuditedDecision) -> String {
    let what = format!(
        "{} for {} of {}",
        decision.response, decision.finding, decision.subject
    );
    match (&*decision.outcome, decision.course.last()) {
        (DRY_RUN, _) => format!("{what} would have been done (no --act)"),
        (_, Some(course)) => format!("{what}: {course}"),
        (_, None) => format!("{what}: begun"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn done_meant_and_refused() {
        let remedies: Remedies = serde_json::from_value(serde_json::json!({
            "counts": [
                { "response": "requeue", "outcome": "act", "count": 1 },
                { "response": "signal", "outcome": "dry-run", "count": 4 },
                { "response": "requeue", "outcome": "cool-down", "count": 2 },
                { "response": "signal", "outcome": "severity", "count": 1 },
            ],
            "latest": [
                { "unix_ms": 1, "finding": "straggler", "subject": { "kind": "node", "node": "n2" }, "response": "signal",
                  "outcome": "dry-run", "mark": "m", "course": [] },
                { "unix_ms": 2, "finding": "gpu-fault", "subject": { "kind": "node", "node": "n1" }, "response": "requeue",
                  "outcome": "act", "mark": "m", "course": ["SIGUSR1 to the trainers", "requeued"] },
                { "unix_ms": 3, "finding": "gpu-fault", "subject": { "kind": "node", "node": "n1" }, "response": "requeue",
                  "outcome": "cool-down", "mark": "m", "course": [] },
            ],
        }))
        .unwrap();
        assert_eq!(
            words(&remedies),
            "3 before these; signal for straggler of node n2 would have been done (no --act); requeue for gpu-fault of node n1: \
             requeued; 3 not done (2 requeue cool-down, 1 signal severity)"
        );
    }
}
