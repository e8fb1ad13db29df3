//! Mistakes must be reported with their location, and a user's mistake must exit with code 64.

use crate::launched::{Place, text};

fn said(place: &Place, args: &[&str]) -> (Option<i32>, String) {
    let output = place.paceline(args).output().unwrap();
    (output.status.code(), text(&output.stderr).to_owned())
}

#[test]
fn a_configuration_that_makes_no_sense_starts_nothing() {
    let place = Place::new();
    for (config, expected) in [
        (
            "run-dir = \"x\"\n",
            "./paceline.toml:1:1: unknown key `run-dir`; did you mean `run_dir`?",
        ),
        (
            "\n\nquiet = 1\n",
            "./paceline.toml:3:9: quiet must be true or false, not an integer",
        ),
        (
            "aggregator = \"here:\"\n",
            "./paceline.toml:1:1: aggregator = \"here:\": must be HOST or HOST:PORT",
        ),
        (
            "journal_bytes = \"8 parsecs\"\n",
            "./paceline.toml:1:1: journal_bytes = \"8 parsecs\": \"parsecs\" is not a unit",
        ),
        (
            "key_file = \"none\"\n",
            "./paceline.toml:1:1: key_file = \"none\": the key file none: No such file",
        ),
        (
            "[detector.impact]\nwarning = 0.1\n",
            "./paceline.toml:2:1: unknown key `detector.impact.warning`",
        ),
        (
            "[detector.impact]\nwarning_ratio = -1\n",
            "./paceline.toml:2:1: impact.warning_ratio = -1: must be a positive",
        ),
        ("job = \"x\n", "./paceline.toml:1:"),
        (
            "act = true\non_fault = [\"log\", \"stragler=signal\"]\n",
            "./paceline.toml:2:1: on_fault = \"log,stragler=signal\": ",
        ),
        (
            "checkpoint_signal = \"KILL\"\n",
            "./paceline.toml:1:1: checkpoint_signal = \"KILL\": must be USR1, USR2",
        ),
        (
            "\nnotify = [\"slack=env:HOME\", \"pigeon=x\"]\n",
            "./paceline.toml:2:1: notify: must be KIND=WHERE",
        ),
    ] {
        place.write("paceline.toml", config);
        let (code, stderr) = said(&place, &["run", "--", "touch", "started"]);
        assert_eq!(code, Some(64), "{config}: {stderr}");
        assert!(stderr.contains(expected), "{config}: {stderr}");
        assert!(!place.path("started").exists(), "{config}");
    }
}

/// A secret in the wrong place must not be printed to a terminal or a log.
#[test]
fn a_secret_in_the_open_is_not_repeated() {
    let place = Place::new();
    let bad = "slack=https://hooks.slack.com/services/s3cret";
    let check = |(code, stderr): (Option<i32>, String), place: &str| {
        assert_eq!(code, Some(64), "{stderr}");
        assert!(
            stderr.contains(place) && stderr.contains("does not appear on a command line"),
            "{stderr}"
        );
        assert!(!stderr.contains("s3cret"), "{stderr}");
    };
    check(
        said(&place, &["run", "--notify", bad, "--", "true"]),
        "--notify: slack",
    );
    place.write(
        "paceline.toml",
        &format!("notify = [\"slack=env:HOME\", \"{bad}\"]\n"),
    );
    check(
        said(&place, &["run", "--", "true"]),
        "./paceline.toml:1:1: notify: slack",
    );
    let mut command = place.paceline(["config"]);
    let output = command.env("PACELINE_NOTIFY", bad).output().unwrap();
    check(
        (output.status.code(), text(&output.stderr).to_owned()),
        "PACELINE_NOTIFY: notify: slack",
    );
}

#[test]
fn flags_and_variables_are_named_too() {
    let place = Place::new();
    let (code, stderr) = said(&place, &["run", "--http", "nowhere", "--", "true"]);
    assert_eq!(code, Some(64));
    assert!(
        stderr.contains("--http: http = \"nowhere\": must be ADDRESS:PORT"),
        "{stderr}"
    );
    let output = place
        .paceline(["config"])
        .env("PACELINE_QUIET", "maybe")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(64));
    assert!(text(&output.stderr).contains("PACELINE_QUIET: quiet = \"maybe\": must be true or false"));
    for args in [
        &["run"][..],
        &["nonsense"],
        &["replay"],
        &["run", "--nonsense", "--", "true"],
    ] {
        assert_eq!(said(&place, args).0, Some(64), "{args:?}");
    }
}

#[test]
fn the_configuration_in_force_and_its_origins() {
    let place = Place::new();
    place.write(
        "config/paceline/config.toml",
        "node = \"far\"\nrun_dir = \"far\"\n[detector.impact]\nwarning_ratio = 0.05\n",
    );
    place.write(
        "paceline.toml",
        "node = \"near\"\non_fault = [\"log\", \"gpu-lost=requeue\"]\nstop_grace = 60\nmetrics = \"rank\"\n",
    );
    let mut command = place.paceline(["config", "--origin", "--job", "j"]);
    command
        .env("PACELINE_HTTP", "127.0.0.1:9810")
        .env("PACELINE_METRICS_COMPAT", "dcgm")
        .env("PACELINE_STOP_GRACE", "90");
    let output = command.output().unwrap();
    let shown = text(&output.stdout);
    let user = place.path("config/paceline/config.toml");
    for (key, value, origin) in [
        ("job", "\"j\"", "--job"),
        ("node", "\"near\"", "./paceline.toml:1:1"),
        ("run_dir", "\"far\"", &format!("{}:2:1", user.display())),
        ("http", "\"127.0.0.1:9810\"", "PACELINE_HTTP"),
        ("quiet", "false", "default"),
        ("on_fault", "\"log,gpu-lost=requeue\"", "./paceline.toml:2:1"),
        ("metrics", "\"rank\"", "./paceline.toml:4:1"),
        ("metrics_compat", "\"dcgm\"", "PACELINE_METRICS_COMPAT"),
        ("stop_grace", "90", "PACELINE_STOP_GRACE"),
        ("checkpoint_wait", "300", "default"),
        (
            "detector.impact.warning_ratio",
            "0.05",
            &format!("{}:4:1", user.display()),
        ),
    ] {
        let line = shown
            .lines()
            .find(|line| line.split_whitespace().next() == Some(key))
            .unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words, [key, "=", value, "#", origin], "{shown}");
    }
}

#[test]
fn a_journal_that_cannot_be_read_is_told_with_its_place() {
    let place = Place::new();
    let simulated = place.paceline([
        "simulate",
        "--gpus",
        "2",
        "--steps",
        "20",
        "--journal",
        "good.ndjson",
    ]);
    assert!({ simulated }.output().unwrap().status.success());
    let good = place.read("good.ndjson");
    let lines: Vec<&str> = good.lines().collect();
    let with = |second: &str| format!("{}\n{second}\n{}\n", lines[0], lines[2]);
    place.write("broken.ndjson", &with("{\"n\":2,\"at_ns\":oops}"));
    place.write("future.ndjson", &with(&lines[1].replace("\"v\":1", "\"v\":7")));
    place.write("long.ndjson", &with(&"x".repeat(10 << 20)));
    for (file, expected) in [
        ("broken.ndjson", "broken.ndjson:2:16: expected value"),
        (
            "future.ndjson",
            "schema version 7 is newer than 1, which this version reads: update paceline",
        ),
        (
            "long.ndjson",
            "long.ndjson:2:1048577: line is 10485760 bytes long, at most 1048576 are read",
        ),
        ("none.ndjson", "none.ndjson: No such file or directory"),
    ] {
        let (code, stderr) = said(&place, &["replay", file]);
        assert_eq!(code, Some(1), "{file}");
        assert!(stderr.contains(expected), "{file}: {stderr}");
    }
    let (_, stderr) = said(&place, &["replay", "future.ndjson"]);
    assert!(stderr.contains("future.ndjson:2:"), "{stderr}");
    for file in ["broken.ndjson", "long.ndjson"] {
        let (code, stderr) = said(&place, &["replay", "--skip-broken", file]);
        assert_eq!(code, Some(0), "{stderr}");
        assert!(
            stderr.contains(&format!("{file}: 1 broken line skipped")),
            "{stderr}"
        );
    }
    // A truncated last line, left by an interrupted writer, is not an error.
    let whole: String = lines[..lines.len() - 1]
        .iter()
        .map(|line| format!("{line}\n"))
        .collect();
    place.write(
        "torn.ndjson",
        &format!("{whole}{}", &lines[lines.len() - 1][..30]),
    );
    let (code, stderr) = said(&place, &["replay", "torn.ndjson"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(
        stderr.contains(&format!(
            "torn.ndjson:{}: the last line is incomplete",
            lines.len()
        )),
        "{stderr}"
    );
}

#[test]
fn a_simulation_that_makes_no_sense() {
    let place = Place::new();
    for (args, expected) in [
        (&["--fault", "slwo rank=1"][..], "--fault: "),
        (&["--fault", "slow rank=9 factor=2"], "there is no rank 9"),
        (&["--world", "nods=2"], "--world: "),
        (
            &["--set", "impact.warn=1"],
            "--set impact.warn=1: unknown constant `impact.warn`",
        ),
    ] {
        let args: Vec<&str> = ["simulate"].iter().chain(args).copied().collect();
        let (code, stderr) = said(&place, &args);
        assert_eq!(code, Some(64), "{args:?}: {stderr}");
        assert!(stderr.contains(expected), "{args:?}: {stderr}");
    }
}

#[test]
fn what_is_no_report_and_what_is_no_whole_journal_is_told() {
    let place = Place::new();
    let simulated = place.paceline([
        "simulate",
        "--gpus",
        "2",
        "--steps",
        "20",
        "--journal",
        "good.ndjson",
    ]);
    assert!({ simulated }.output().unwrap().status.success());
    let good = place.read("good.ndjson");
    let headless: Vec<&str> = good.lines().skip(1).collect();
    place.write("headless.ndjson", &(headless.join("\n") + "\n"));
    place.write("empty.ndjson", "");
    place.write("broken.ndjson", &good.replacen("\"n\":5,", "\"n\":oops,", 1));
    place.write("future.json", "{\"schema_version\":9}");
    place.write("null.json", "null");
    for (args, code, expected) in [
        (&["replay", "empty.ndjson"][..], 0, "empty.ndjson: has no entry"),
        (&["report", "empty.ndjson"], 0, "empty.ndjson: has no entry"),
        (
            &["replay", "headless.ndjson"],
            0,
            "headless.ndjson: no entry names the job",
        ),
        (
            &["report", "broken.ndjson"],
            1,
            "broken.ndjson:5:6: expected value; --skip-broken skips such lines",
        ),
        (
            &["report", "--skip-broken", "broken.ndjson"],
            0,
            "broken.ndjson: 1 broken line skipped",
        ),
        (
            &["report", "future.json"],
            1,
            "future.json: report version 9 is newer than 1: update paceline",
        ),
        (
            &["report", "null.json"],
            1,
            "null.json: not a report of paceline: it has no schema_version",
        ),
    ] {
        let (ended, stderr) = said(&place, args);
        assert_eq!(ended, Some(code), "{args:?}: {stderr}");
        assert!(stderr.contains(expected), "{args:?}: {stderr}");
    }
    for args in [["replay", "none.ndjson"], ["report", "none.ndjson"]] {
        let (_, stderr) = said(&place, &args);
        assert_eq!(stderr.matches("No such file").count(), 1, "{stderr}");
    }
}

#[test]
fn what_cannot_be_seen_is_not_called_health() {
    let place = Place::new();
    let simulated = |args: &[&str]| {
        let words = ["simulate"].iter().chain(args);
        let output = place.paceline(words).output().unwrap();
        (output.status.code(), text(&output.stdout).to_owned())
    };
    let (code, said) = simulated(&["--steps", "0"]);
    assert_eq!(code, Some(0));
    assert!(said.contains("No step of 8 ranks was observed"), "{said}");
    let (_, said) = simulated(&["--steps", "50", "--fault", "slow rank=1 factor=2 from=100"]);
    assert!(said.contains("affected no step"), "{said}");
}
