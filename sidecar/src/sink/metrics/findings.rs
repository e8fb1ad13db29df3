//! The subjects of active findings, for the annotations of alerts. They are not labels of an alert, because each change
//! of a label would make another alert.

use std::collections::BTreeMap;

use paceline_health::report::Report;
use paceline_health::text::cards::cards;
use paceline_health::verdict::{State, Subject, Verdict};

use super::format::families::{Families, gauges};

/// Maximum number of named findings, the most severe first. A job that breaks down has as many findings as ranks.
const MAX_NAMED: usize = 64;

/// Adds one series per card. The same finding on several GPUs of a node is one card.
pub(super) fn subjects(out: &mut Families<'_>, report: &Report) {
    let cards = cards(&report.verdicts);
    let held = cards.iter().filter(|card| card.verdict.state == State::Raised);
    // A map merges equal label sets.
    let named: BTreeMap<[String; 7], f64> = held
        .take(MAX_NAMED)
        .map(|card| (labels(&card.verdict), 1.0))
        .collect();
    gauges(
        out,
        "paceline_finding_info",
        "Subject and cause of each active finding; at most the 64 most severe.",
        [
            "finding", "cause", "severity", "subject", "rank", "node", "gpu_uuid",
        ],
        named,
    );
}

fn labels(verdict: &Verdict) -> [String; 7] {
    let (mut rank, mut node, mut gpu) = (String::new(), String::new(), String::new());
    let mut subject = verdict.subject_text();
    match &verdict.subject {
        Subject::Rank {
            rank: own,
            node: at,
            gpu_uuid,
        } => {
            subject = format!("rank {own} on {at}");
            (rank, node) = (own.to_string(), at.to_string());
            gpu = gpu_uuid.as_ref().map_or_else(String::new, ToString::to_string);
        }
        Subject::Gpu { gpu_uuid, node: at } => (node, gpu) = (at.to_string(), gpu_uuid.to_string()),
        Subject::Node { node: at } | Subject::Link { node: at, .. } => node = at.to_string(),
        Subject::Job { .. } | Subject::Rack { .. } => {}
    }
    let [finding, cause, severity] = [
        verdict.finding.name(),
        verdict.cause.name(),
        verdict.severity.name(),
    ]
    .map(str::to_owned);
    [finding, cause, severity, subject, rank, node, gpu]
}

#[cfg(test)]
mod tests {
    use paceline_health::verdict::Severity;

    use super::super::tests::report;
    use super::super::{Metrics, Shown, Transport};
    use super::*;
    use crate::sink::notify::tests::{throttled, verdict};

    fn page(verdicts: Vec<Verdict>) -> Vec<String> {
        let report = Report { verdicts, ..report() };
        let page = Metrics::default().page(&report, &Transport::default(), Shown::default());
        let lines = page
            .lines()
            .filter(|line| line.starts_with("paceline_finding_info{"));
        lines.map(str::to_owned).collect()
    }

    #[test]
    fn what_holds_names_its_rank_and_node() {
        let held = verdict(1, 3, Severity::Critical, State::Raised);
        let over = verdict(2, 4, Severity::Critical, State::Cleared);
        assert_eq!(
            page(vec![held, over]),
            [
                "paceline_finding_info{cause=\"thermal\",finding=\"straggler\",gpu_uuid=\"\",node=\"n1\",rank=\"3\",\
              severity=\"critical\",subject=\"rank 3 on n1\"} 1"
            ]
        );
    }

    #[test]
    fn gpus_of_a_node_are_one_and_a_job_that_falls_apart_has_an_end() {
        let lines = page((1..9).map(throttled).collect());
        assert!(
            lines.len() == 1 && lines[0].contains("subject=\"8 GPUs on n1\""),
            "{lines:?}"
        );
        let all = (1..1000).map(|rank| verdict(u64::from(rank), rank, Severity::Critical, State::Raised));
        assert_eq!(page(all.collect()).len(), MAX_NAMED);
    }
}
