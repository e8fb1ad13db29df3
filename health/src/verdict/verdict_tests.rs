//! Tests the order of findings.

use super::*;

fn verdict(id: u64, finding: &str, severity: &str, impact: Option<f64>, cause: &str) -> Verdict {
    serde_json::from_value(serde_json::json!({
        "id": id, "finding": finding, "subject": {"kind": "node", "node": "n1"}, "severity": severity, "state": "raised",
        "since_s": 1.0, "since_step": null, "raised_s": 2.0, "raised_step": null, "cleared_s": null, "signals": [],
        "provenance": "live", "slowdown_ratio": null, "cause": cause, "evidence": [], "impact_ratio": impact,
        "lost_gpu_hours": 0.0, "action": "look"
    }))
    .unwrap()
}

#[test]
fn what_comes_first() {
    let mut all = vec![
        verdict(1, "telemetry-blind", "critical", None, "unknown"),
        verdict(2, "straggler", "critical", Some(0.18), "unknown"),
        verdict(3, "gpu-throttled", "warning", None, "thermal"),
        verdict(4, "straggler", "warning", Some(0.05), "thermal"),
        verdict(5, "straggler", "warning", Some(0.05), "unknown"),
        verdict(6, "rank-died", "critical", None, "unknown"),
        verdict(7, "job-hang", "info", None, "unknown"),
        verdict(8, "straggler", "info", Some(0.02), "unknown"),
        verdict(9, "gpu-lost", "critical", None, "unknown"),
        verdict(10, "results-suspect", "warning", None, "unknown"),
    ];
    let mut over = verdict(11, "rank-silent", "critical", None, "unknown");
    (over.state, over.lost_gpu_hours) = (State::Cleared, 3.0);
    let mut cheap = verdict(12, "job-hang", "critical", None, "unknown");
    (cheap.state, cheap.lost_gpu_hours) = (State::Cleared, 1.0);
    all.extend([cheap, over]);
    all.sort_by_key(Verdict::weight);
    let ids: Vec<u64> = all.iter().map(|verdict| verdict.id).collect();
    // The order is: urgent findings; those that cost time, with known causes first; those without a measured cost;
    // those without an alert; cleared findings.
    assert_eq!(ids, [6, 9, 7, 2, 4, 5, 1, 3, 10, 8, 11, 12]);
}
