//! The report for the live page. Names and sentences have a maximum length. Lists are truncated, and their full length
//! is included.

use paceline_health::Policy;
use paceline_health::preflight::Section;
use paceline_health::report::{Coverage, Ending, Report};
use paceline_health::text::cards::{Card, cards};
use paceline_health::text::humanize::{self, evidence};
use paceline_health::text::sanitize::{SENTENCE, clip, name};
use paceline_health::verdict::{State, Subject};
use serde_json::{Value, json};

/// Maximum number of findings to show. Further ones are only counted.
const VERDICTS: usize = 120;
/// Maximum pieces of evidence per finding.
const EVIDENCE: usize = 16;
/// Maximum lines of any other list.
const LINES: usize = 32;

/// Returns the report as JSON. `dir` is the directory of the report. `unix_ms` is the wall clock, to which journal
/// times are related.
pub fn report(report: &Report, policy: &Policy, dir: &str, unix_ms: u64) -> String {
    let cards = cards(&report.verdicts);
    let raised = cards
        .iter()
        .filter(|card| card.verdict.state == State::Raised)
        .count();
    let shown = cards.iter().take(VERDICTS);
    let parts = report.times.parts.iter();
    let parts = parts.map(|part| json!([part.part.name(), part.p50_s, part.p90_s, part.p99_s, part.max_s]));
    let told = json!({
        "job": name(report.job.as_str()),
        "dir": name(dir),
        "world": report.world_size,
        "steps": report.steps,
        "median_s": report.median_step_s,
        "duration_s": report.duration_s,
        // The frame that ended `duration_s` arrived at about this time.
        "unix_ms": unix_ms,
        "findings": cards.len(),
        "raised": raised,
        "verdicts": shown.map(|card| verdict(card, policy)).collect::<Vec<_>>(),
        "coverage": coverage(&report.coverage),
        "cost": {
            "gpu_hours": report.cost.gpu_hours,
            "lost_gpu_hours": report.cost.lost_gpu_hours,
            "by_cause": report.cost.by_cause,
            "goodput": report.cost.goodput_ratio,
            "what_if_step_s": report.cost.what_if_step_s,
            "lost_cost": report.cost.lost_cost,
        },
        "parts": parts.collect::<Vec<_>>(),
        "end": report.end.as_ref().map(ending),
        "preflight": report.preflight.as_ref().map(preflight),
    });
    told.to_string()
}

/// Returns one finding: the verdict, and the texts of its kind from the tables.
fn verdict(card: &Card<'_>, policy: &Policy) -> Value {
    let verdict = &card.verdict;
    let row = policy.finding(verdict.finding);
    let evidence = evidence::all(verdict);
    let evidence = evidence.iter().take(EVIDENCE);
    let evidence = evidence.map(|piece| piece.each_ref().map(|text| clip(text, SENTENCE)));
    json!({
        "id": verdict.id,
        "finding": verdict.finding,
        "title": row.title,
        "means": row.means,
        "whom": name(&verdict.subject_text()),
        "subject": subject(card),
        "severity": verdict.severity,
        "raised": verdict.state == State::Raised,
        "since_s": verdict.since_s,
        "since_step": verdict.since_step,
        "raised_s": verdict.raised_s,
        "raised_step": verdict.raised_step,
        "cleared_s": verdict.cleared_s,
        "provenance": verdict.provenance,
        "slowdown": verdict.slowdown_ratio,
        "beside": evidence::beside(verdict),
        "reference": evidence::reference(verdict),
        "cause": verdict.cause,
        "why": humanize::cause(verdict.cause),
        "evidence": evidence.collect::<Vec<_>>(),
        "impact": verdict.impact_ratio,
        "impact_words": verdict.impact_ratio.map(|ratio| humanize::impact(verdict.finding.name(), ratio)),
        "lost_gpu_hours": verdict.lost_gpu_hours,
        "lost_cost": verdict.lost_cost,
        "action": clip(&verdict.action, SENTENCE),
        "observe_only": verdict.observe_only,
        "unresolved": verdict.unresolved_at_exit,
        "picture": humanize::calm_picture(verdict.finding),
        "runbook": format!("{}/blob/main/docs/findings.md#{}", env!("CARGO_PKG_REPOSITORY"), verdict.finding),
    })
}

fn subject(card: &Card<'_>) -> Value {
    match &card.verdict.subject {
        Subject::Node { node } if !card.gpus.is_empty() => {
            let gpus: Vec<_> = card.gpus.iter().map(|gpu| name(gpu.as_str())).collect();
            json!({ "kind": "gpus", "node": name(node.as_str()), "gpus": gpus })
        }
        Subject::Job { .. } => json!({ "kind": "job" }),
        Subject::Node { node } => json!({ "kind": "node", "node": name(node.as_str()) }),
        Subject::Rank { rank, node, gpu_uuid } => json!({
            "kind": "rank",
            "rank": rank,
            "node": name(node.as_str()),
            "gpu": gpu_uuid.as_ref().map(|gpu| name(gpu.as_str())),
        }),
        Subject::Gpu { gpu_uuid, node } => {
            json!({ "kind": "gpu", "node": name(node.as_str()), "gpu": name(gpu_uuid.as_str()) })
        }
        Subject::Rack { rack } => json!({ "kind": "rack", "rack": name(rack) }),
        Subject::Link { node, peer } => json!({
            "kind": "link",
            "node": name(node.as_str()),
            "peer": peer.as_ref().map(|peer| name(peer.as_str())),
        }),
    }
}

fn coverage(coverage: &Coverage) -> Value {
    let gaps = coverage.gaps.iter().rev().take(LINES);
    let gaps = gaps.map(|gap| {
        json!([
            name(gap.node.as_str()),
            gap.from_s,
            gap.to_s,
            clip(&gap.why, SENTENCE)
        ])
    });
    json!({
        "ranks_seen": coverage.ranks_seen,
        "ranks_expected": coverage.ranks_expected,
        "steps_ratio": coverage.steps_ratio,
        "signals": coverage.signals,
        "lost": {
            "frames lost in transit": coverage.frames_lost,
            "records dropped by full rings or queues": coverage.ring_dropped,
            "torn records": coverage.ring_torn,
            "frames not journaled": coverage.journal_lost,
        },
        "gaps": coverage.gaps.len(),
        "last_gaps": gaps.collect::<Vec<_>>(),
        "notes": coverage.notes.iter().take(LINES).map(|note| clip(note, SENTENCE)).collect::<Vec<_>>(),
    })
}

fn ending(end: &Ending) -> Value {
    json!({
        "reason": end.reason.name(),
        "node": end.node.as_ref().map(|node| name(node.as_str())),
        "rank": end.rank,
        "code": end.code,
        "says": clip(&end.says, SENTENCE),
    })
}

fn preflight(section: &Section) -> Value {
    let told = &section.told;
    let findings = section.findings.iter().take(LINES).map(|noted| {
        json!({
            "severity": noted.severity,
            "says": clip(&noted.says, SENTENCE),
            "advice": clip(&noted.advice, SENTENCE),
        })
    });
    let problems = section.problems.iter().take(LINES).map(|problem| {
        let node = problem.node.as_ref().map(|node| name(node.as_str()));
        json!([node, clip(&problem.what, SENTENCE), name(&problem.phase)])
    });
    let left_out = told.left_out.iter().take(LINES);
    let left_out = left_out.map(|out| json!([name(out.node.as_str()), clip(&out.why, SENTENCE)]));
    json!({
        "mode": name(&told.mode),
        "simulated": section.simulated,
        "outcome": told.outcome,
        "seconds": told.seconds,
        "nodes": told.nodes,
        "gpus": told.gpus,
        "comparisons": told.comparisons,
        "values": told.values,
        "left_out": left_out.collect::<Vec<_>>(),
        "findings": findings.collect::<Vec<_>>(),
        "problems": problems.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use paceline_health::Detector;

    use super::*;
    use crate::sink::notify::tests::throttled;

    #[test]
    fn gpus_of_a_node_are_one_finding_that_names_each() {
        let policy = Policy::default();
        let found = Report {
            verdicts: (1..9).map(throttled).collect(),
            ..Detector::new(policy.clone()).report()
        };
        let told: Value = serde_json::from_str(&report(&found, &policy, "", 0)).unwrap();
        assert_eq!((&told["findings"], &told["raised"]), (&1.into(), &1.into()));
        let card = &told["verdicts"][0];
        assert_eq!((&card["whom"], &card["id"]), (&"8 GPUs on n1".into(), &1.into()));
        let names: Vec<String> = (1..9).map(|gpu| format!("GPU-{gpu}")).collect();
        assert_eq!(
            card["subject"],
            json!({ "kind": "gpus", "node": "n1", "gpus": names })
        );
    }
}
