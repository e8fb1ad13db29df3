//! The same object everywhere: simulate, replay, report, `run --json`.

use serde_json::Value;

use crate::launched::{Place, text};

const SLOW: [&str; 8] = [
    "simulate",
    "--gpus",
    "4",
    "--steps",
    "300",
    "--fault",
    "slow rank=2 factor=1.25 from=100",
    "--json",
];

fn json(place: &Place, args: &[&str]) -> Value {
    let output = place.paceline(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    let stdout = text(&output.stdout);
    assert_eq!(stdout.lines().count(), 1, "{stdout}");
    serde_json::from_str(stdout).unwrap()
}

#[test]
fn a_simulated_job_its_replay_and_its_report_agree() {
    let place = Place::new();
    let args: Vec<&str> = SLOW.iter().copied().chain(["--journal", "run.ndjson"]).collect();
    let simulated = json(&place, &args);
    let verdict = &simulated["verdicts"][0];
    assert_eq!(
        (&verdict["finding"], &verdict["subject"]["rank"]),
        (&"straggler".into(), &2.into())
    );
    assert_eq!(
        (simulated["schema_version"].as_u64(), &verdict["provenance"]),
        (Some(1), &"sim".into())
    );
    assert_eq!(json(&place, &["replay", "run.ndjson", "--json"]), simulated);
    assert_eq!(json(&place, &["report", "run.ndjson", "--json"]), simulated);
    place.write("saved/report.json", &simulated.to_string());
    assert_eq!(json(&place, &["report", "saved", "--json"]), simulated);
    assert_eq!(
        json(&place, &["report", "saved/report.json", "--json"]),
        simulated
    );
}

/// Changes to the policy stand in the journal, so that a replay needs no flag to come to the same end.
#[test]
fn a_changed_constant_travels_with_the_journal() {
    let place = Place::new();
    let with = ["--journal", "run.ndjson", "--set", "impact.critical_ratio=0.9"];
    let args: Vec<&str> = SLOW.iter().copied().chain(with).collect();
    let simulated = json(&place, &args);
    assert_eq!(simulated["verdicts"][0]["severity"], "warning");
    assert_eq!(json(&place, &SLOW)["verdicts"][0]["severity"], "critical");
    assert_eq!(json(&place, &["replay", "run.ndjson", "--json"]), simulated);
}

#[test]
fn the_block_tells_who_since_when_why_cost_and_what_to_do() {
    let place = Place::new();
    let args = &SLOW[..SLOW.len() - 1];
    let block = |color: &str| {
        let output = place.paceline(args).args(["--color", color]).output().unwrap();
        text(&output.stdout).to_owned()
    };
    let plain = block("auto");
    for part in [
        "straggler",
        "rank 2 on node0",
        "since",
        "why",
        "cost",
        "do",
        "coverage",
        "4 of 4 ranks",
    ] {
        assert!(plain.contains(part), "{part}: {plain}");
    }
    assert!(plain.lines().count() <= 24, "one screen: {plain}");
    assert!(
        plain
            .lines()
            .all(|line| line.chars().count() <= 80 || line.contains("truth")),
        "{plain}"
    );
    assert!(!plain.contains('\x1b'));
    assert!(block("always").contains("\x1b["));
    let ascii = place.paceline(args).env("LC_ALL", "C").output().unwrap();
    assert!(text(&ascii.stdout).is_ascii());
}

#[test]
fn a_run_prints_one_line_of_json_behind_the_commands_own_output() {
    let place = Place::new();
    let output = place.run(&["--json", "--quiet", "--job", "j"], "echo own; exit 3");
    assert_eq!(output.status.code(), Some(3));
    let lines: Vec<&str> = text(&output.stdout).lines().collect();
    assert_eq!((lines.len(), lines[0]), (2, "own"));
    let report: Value = serde_json::from_str(lines[1]).unwrap();
    assert_eq!(
        (&report["job"], &report["exits"][0]["code"]),
        (&"j".into(), &3.into())
    );
    assert_eq!(report, place.report("run/report.json"));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let place = Place::new();
    place
        .paceline(SLOW)
        .args(["--journal", "run.ndjson"])
        .output()
        .unwrap();
    let program = env!("CARGO_BIN_EXE_paceline-under-test");
    let script =
        format!("{program} replay run.ndjson --verdicts | true; {program} replay run.ndjson | head -1");
    let output = std::process::Command::new("sh")
        .args(["-c", &script])
        .current_dir(place.path("."))
        .output()
        .unwrap();
    assert_eq!(text(&output.stderr), "");
    assert!(output.status.success());
}
