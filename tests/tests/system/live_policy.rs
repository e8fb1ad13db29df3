//! The policy of a job can change while it runs, and the journal must record that.

use serde_json::Value;

use crate::launched::{Place, signal, text, until};

const WAITS: &str = "read line; exit 7";

/// Returns the changes in the journal: source, key and value.
fn changes(place: &Place) -> Vec<String> {
    let journal = place.read("run/journal.ndjson");
    let change = |line: &str| {
        let entry: Value = serde_json::from_str(line).ok()?;
        let change = entry["frame"]["event"].get("policy")?;
        Some(format!(
            "{} {} {}",
            change["by"].as_str()?,
            change["key"].as_str()?,
            change["value"]
        ))
    };
    journal.lines().filter_map(change).collect()
}

fn config(place: &Place, args: &[&str]) -> (Option<i32>, String, String) {
    let words = ["config"].iter().chain(args);
    let output = place.paceline(words).output().unwrap();
    let said = |bytes| text(bytes).to_owned();
    (output.status.code(), said(&output.stdout), said(&output.stderr))
}

#[test]
fn values_are_set_on_a_running_job() {
    let place = Place::new();
    let mut running = place.start(&["--gpu-hour-price", "H100=2.5"], WAITS);
    running.until_watched();
    let set = |args: &[&str]| config(&place, &[&["set"], args].concat());
    let (code, said, stderr) = set(&["impact.warning_ratio", "0.05", "observe.straggler", "true"]);
    assert_eq!((code, &*stderr), (Some(0), ""));
    assert_eq!(
        said,
        "impact.warning_ratio = 0.05 (was 0.03)\nobserve.straggler = 1 (was 0)\n"
    );
    let (_, said, _) = set(&["detector.impact.warning_ratio", "0.05", "--run-dir", "run"]);
    assert_eq!(said, "impact.warning_ratio is 0.05 already\n");
    for (args, code, expected) in [
        (
            &["impact.warnin_ratio", "0.1"][..],
            64,
            "did you mean `impact.warning_ratio`?",
        ),
        (&["impact.warning_ratio", "-1"], 64, "must be a positive number"),
        (&["impact.warning_ratio", "x"], 64, "must be a number, not `x`"),
        (
            &["blind.beat_missing_s", "9", "impact.warning_ratio", "0.5"],
            64,
            "run: nothing was changed: impact.warning_ratio = 0.5: must not pass impact.critical_ratio (0.1)",
        ),
        (&["impact.warning_ratio"], 64, "KEY VALUE"),
        (
            &["impact.warning_ratio", "0.1", "--run-dir", "elsewhere"],
            1,
            "elsewhere: no aggregator runs here",
        ),
        (
            &["impact.warning_ratio", "0.1", "--job", "x"],
            1,
            "paceline-x: no aggregator runs here",
        ),
    ] {
        let (ended, _, stderr) = set(args);
        assert_eq!(ended, Some(code), "{args:?}: {stderr}");
        assert!(stderr.contains(expected), "{args:?}: {stderr}");
    }
    running.say("\n");
    assert_eq!(running.wait(), 7);
    assert_eq!(
        changes(&place),
        [
            "start cost.gpu_hour_price.H100 2.5",
            "set impact.warning_ratio 0.05",
            "set observe.straggler 1.0"
        ]
    );
    for left in ["run/control.sock", "run/aggregator.pid"] {
        assert!(!place.path(left).exists(), "{left}");
    }
    let (code, _, stderr) = set(&["impact.warning_ratio", "0.05"]);
    assert_eq!(code, Some(3), "no mistake, but nothing to ask: {stderr}");
    assert!(stderr.contains("no job runs from this directory"), "{stderr}");
}

/// SIGHUP is sent to the aggregator's process, which is not the launcher. The job must not be affected.
#[test]
fn files_are_read_again_on_sighup() {
    let place = Place::new();
    let write = |warning: &str| {
        let text =
            format!("[detector.impact]\nwarning_ratio = {warning}\n[detector.blind]\nbeat_missing_s = 9\n");
        place.write("paceline.toml", &text)
    };
    write("0.05");
    let mut running = place.start(&["--set", "blind.beat_missing_s=7"], WAITS);
    running.until_watched();
    let (code, said, stderr) = config(&place, &["reload"]);
    assert_eq!((code, &*stderr), (Some(0), ""));
    assert_eq!(said, "the files do not change the policy\n");
    write("0.07");
    let pid = place.read("run/aggregator.pid");
    signal("HUP", pid.trim().parse().unwrap());
    until("the change in the journal", || {
        (changes(&place).last()?.as_str() == "reload impact.warning_ratio 0.07").then_some(())
    });
    write("\"high\"");
    let (code, _, stderr) = config(&place, &["reload", "--run-dir", "run"]);
    // This program cannot parse the file either. It would ask the aggregator only if the run directory were set
    // elsewhere.
    assert_eq!(code, Some(64));
    assert!(
        stderr.contains("./paceline.toml:2:17: impact.warning_ratio must be a number, not a string"),
        "{stderr}"
    );
    signal("HUP", pid.trim().parse().unwrap());
    until("a complaint in the log", || {
        place
            .read("run/sidecar.log")
            .contains(
                "SIGHUP: nothing was changed: ./paceline.toml:2:17: impact.warning_ratio must be a number",
            )
            .then_some(())
    });
    running.say("\n");
    assert_eq!(running.wait(), 7);
    assert_eq!(
        changes(&place),
        [
            "start blind.beat_missing_s 7.0",
            "start impact.warning_ratio 0.05",
            "reload impact.warning_ratio 0.07"
        ],
        "a flag is stronger than the files"
    );
}
