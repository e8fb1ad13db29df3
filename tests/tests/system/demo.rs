//! Tests the whole path with real processes: rings, sidecar, aggregator, verdict.

use serde_json::Value;

use crate::launched::{Place, report_and_advice, text};
use crate::report::assert_balanced;

#[test]
fn the_demo_names_the_rank_and_the_cause_and_its_journal_replays_to_the_byte() {
    let place = Place::new();
    let output = place
        .paceline(["demo", "--ranks", "4", "--heat-rank", "2", "--json"])
        .output()
        .unwrap();
    let stderr = text(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let (report, advice) = report_and_advice(text(&output.stdout));
    assert_eq!(report, place.report("paceline-demo/report.json"));
    assert!(advice["bound"].is_string(), "{advice}");
    let page = place.read("paceline-demo/report.html");
    assert_balanced(&page);
    for part in [
        "rank 2 on ",
        "heat: the GPU protects itself",
        "data:image/png;base64,",
        "Time per phase",
    ] {
        assert!(page.contains(part), "{part}");
    }
    // The same code must generate the same page from the same report.
    let again = place
        .paceline(["report", "paceline-demo", "--html=-"])
        .output()
        .unwrap();
    assert_eq!(text(&again.stdout), page);
    let stragglers: Vec<&Value> = report["verdicts"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|verdict| verdict["finding"] == "straggler")
        .collect();
    let [verdict] = stragglers[..] else {
        panic!("{report}")
    };
    assert_eq!(verdict["subject"]["rank"], 2, "{verdict}");
    assert_eq!(verdict["cause"], "thermal", "{verdict}");
    // The evidence is partly simulated, so the verdict must never cause an action.
    assert_eq!(verdict["provenance"], "sim");
    assert_eq!(report["coverage"]["steps_ratio"], 1.0, "{report}");
    assert!(report["duration_s"].as_f64().unwrap() < 32.0, "{report}");
    // The demo must print the same line as `paceline run`.
    let is_live = |line: &str| line.starts_with("paceline: ") && line.contains("straggler");
    let mut live = stderr.lines().filter(|line| is_live(line));
    assert!(
        live.any(|line| line.contains(": rank 2 on ") && line.contains("; why: heat"))
            && stderr.contains("paceline-demo/report.json"),
        "{stderr}"
    );
    assert!(
        stderr.contains("live page http://127.0.0.1:") && stderr.contains("paceline top"),
        "{stderr}"
    );

    let replayed = place
        .paceline(["replay", "paceline-demo", "--verdicts"])
        .output()
        .unwrap();
    assert_eq!(
        text(&replayed.stdout),
        place.read("paceline-demo/verdicts.ndjson")
    );
    assert!(!replayed.stdout.is_empty());
}
