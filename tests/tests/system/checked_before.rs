//! Tests checks before a job starts or long work begins. They cover variables, output files, help, and doctor's
//! results.

use crate::launched::{Place, text};

fn said(place: &Place, args: &[&str]) -> (Option<i32>, String) {
    let output = place.paceline(args).output().unwrap();
    (output.status.code(), text(&output.stderr).to_owned())
}

/// A misspelled or invalid variable must be reported, but the job must start nevertheless.
#[test]
fn a_variable_that_nobody_reads_or_that_cannot_be_read_is_named_and_starts_the_job() {
    let place = Place::new();
    let mut command = place.paceline(["run", "--run-dir", "run", "--", "sh", "-c", "exit 7"]);
    command
        .env("PACELINE_QUEIT", "1")
        .env("PACELINE_STOP_GRACE", "soon")
        .env("PACELINE_METRICS", "ranks");
    let output = command.output().unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{stderr}");
    for part in [
        "PACELINE_QUEIT: unknown variable, ignored; did you mean PACELINE_QUIET?",
        "PACELINE_STOP_GRACE is ignored: ",
        "PACELINE_METRICS is ignored: PACELINE_METRICS: metrics = \"ranks\": must be auto or summary or rank or gpu",
    ] {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
}

/// An invalid variable may have restricted an action. Therefore a file's page and actions must be disabled too.
#[test]
fn what_a_bad_variable_bounded_is_not_done_without_it() {
    let place = Place::new();
    place.write(
        "paceline.toml",
        "http = \"0.0.0.0:0\"\nact = true\non_fault = \"signal\"\n",
    );
    let mut command = place.paceline(["run", "--dry-run", "--", "true"]);
    command
        .env("PACELINE_HTTP_TOKEN_FILE", "no/token")
        .env("PACELINE_REMEDY_LIMIT", "nonsense");
    let output = command.output().unwrap();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(
        !stdout.contains("--act") && !stdout.contains("0.0.0.0"),
        "{stdout}"
    );
    assert!(stderr.contains("PACELINE_HTTP_TOKEN_FILE is ignored"), "{stderr}");
}

#[test]
fn what_is_to_be_written_after_long_work_is_tried_before() {
    let place = Place::new();
    let begun = std::time::Instant::now();
    for args in [
        &[
            "preflight",
            "--sim",
            "nodes=4",
            "--html",
            "/no/such/dir/page.html",
        ][..],
        &["evaluate", "--suite", "quiet", "--html", "/no/such/dir/page.html"],
    ] {
        let (code, stderr) = said(&place, args);
        assert_eq!(code, Some(64), "{stderr}");
        assert!(
            stderr.contains("--html /no/such/dir/page.html: cannot be written"),
            "{stderr}"
        );
    }
    assert!(begun.elapsed().as_secs() < 20);
    // The check must leave no files.
    let (code, stderr) = said(
        &place,
        &["preflight", "--sim", "nodes=bad", "--html", "page.html"],
    );
    assert!(code == Some(64) && !place.path("page.html").exists(), "{stderr}");
}

#[test]
fn help_completions_and_json_of_the_configuration() {
    let place = Place::new();
    let run = |args: &[&str]| {
        let output = place.paceline(args).env("COLUMNS", "40").output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        text(&output.stdout).to_owned()
    };
    assert!(run(&["help", "run"]).contains("Usage: paceline run"));
    assert!(run(&["help", "exit-codes"]).contains("every other command"));
    assert!(run(&["help"]).contains("doctor"));
    for shell in ["bash", "zsh", "fish"] {
        assert!(run(&["completions", shell]).contains("paceline"), "{shell}");
    }
    let config: serde_json::Value = serde_json::from_str(&run(&["config", "--json", "--job", "j"])).unwrap();
    let settings = &config["settings"];
    assert_eq!(settings["job"]["value"], "j");
    assert_eq!(settings["job"]["origin"], "--job");
    assert_eq!(settings["quiet"]["value"], false);
    assert_eq!(settings["http"]["value"], serde_json::Value::Null);
    assert!(settings["detector.impact.warning_ratio"]["value"].is_f64());
}

/// On any machine, doctor must end in time, with an exit code for the most severe result.
#[test]
fn doctor_says_what_it_finds_within_ten_seconds() {
    let place = Place::new();
    let key = place.write("config/paceline/key", "0123456789abcdef0123456789abcdef");
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let begun = std::time::Instant::now();
    let output = place.paceline(["doctor", "--json"]).output().unwrap();
    // Allows for a busy machine, where processes start slowly. The checks themselves have nine seconds.
    assert!(begun.elapsed().as_secs() < 15, "{:?}", begun.elapsed());
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = found["checks"].as_array().unwrap();
    assert_eq!(checks.len(), 11, "{found}");
    let check = |name: &str| checks.iter().find(|check| check["name"] == name).unwrap();
    assert_eq!(check("key")["light"], "yellow", "{found}");
    assert!(
        check("key")["do"].as_str().unwrap().contains("chmod 600"),
        "{found}"
    );
    assert!(
        check("memory")["says"].as_str().unwrap().contains("MiB free"),
        "{found}"
    );
    let lights: Vec<&str> = checks
        .iter()
        .filter_map(|check| check["light"].as_str())
        .collect();
    let worst = if lights.contains(&"red") { 2 } else { 1 };
    assert_eq!(output.status.code(), Some(worst), "{found}");

    place.write("paceline.toml", "jbo = 1\n");
    let output = place.paceline(["doctor"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stdout).contains("./paceline.toml:1:1: unknown key `jbo`"),
        "{}",
        text(&output.stdout)
    );
}

/// An action given on the command line must be rejected if the variable that limits it is invalid.
#[test]
fn act_that_was_typed_waits_for_its_bounds() {
    let place = Place::new();
    let mut command = place.paceline(["run", "--act", "--", "true"]);
    let output = command.env("PACELINE_REMEDY_LIMIT", "nonsense").output().unwrap();
    assert_eq!(output.status.code(), Some(64), "{}", text(&output.stderr));
}

/// Python on Debian and Ubuntu has a sitecustomize. The hook's sitecustomize must run first, and then run that one.
#[test]
fn doctor_finds_the_hook_beside_another_sitecustomize() {
    let place = Place::new();
    let other = place.write("other/sitecustomize.py", "");
    let mut command = place.paceline(["doctor", "--json"]);
    command.env("PYTHONPATH", other.parent().unwrap());
    let output = command.output().unwrap();
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = found["checks"].as_array().unwrap();
    let python = checks.iter().find(|check| check["name"] == "Python").unwrap();
    assert_eq!(python["light"], "green", "{python}");
}
