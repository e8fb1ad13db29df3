//! Tests the site's store of preflight measurements when writers are killed and when its file system hangs.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::launched::{Place, text};

/// Returns the command for a preflight of a single node. It has a long job name, which makes long lines.
fn preflight(place: &Place) -> Command {
    let key = place.write("key", "0123456789abcdef0123456789abcdef");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let job = "long-".repeat(60);
    let words = [
        "preflight",
        "--json",
        "--node=n1",
        "--passports=site",
        "--port=0", // Avoids the job's own port, which would collide with the parallel test.
        "--job",
        &job,
    ];
    let mut command = place.paceline(words);
    command.env("PACELINE_KEY_FILE", key);
    command
}

/// Runs the command with a file size limit of half a kilobyte (one, in some shells). Writes beyond it fail.
fn limited(command: &Command) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -c 0; ulimit -f 1; exec \"$@\"", "sh"]);
    shell.arg(command.get_program()).args(command.get_args());
    shell.current_dir(command.get_current_dir().unwrap());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell
}

fn history(place: &Place) -> Value {
    let words = ["preflight", "history", "n1", "--passports=site", "--json"];
    let output = place.paceline(words).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

fn report(output: &Output) -> Value {
    let told = text(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {told}"))
}

#[test]
fn a_writer_that_is_cut_off_within_a_line_loses_only_that() {
    let place = Place::new();
    let cut_off = limited(&preflight(&place)).output().unwrap();
    let said = text(&cut_off.stderr);
    assert!(
        said.contains("could not be added to the passports: File too large"),
        "{said}"
    );
    let cut = place.read("site/n1.passport");
    assert!(!cut.ends_with('\n'), "{cut}");
    let whole = cut.lines().count() - 1;
    assert!(whole >= 1, "{cut}");
    let known = history(&place);
    assert_eq!(
        (known["stamps"].as_array().unwrap().len(), &known["broken"]),
        (whole, &1.into())
    );
    // The next entry must start on a new line.
    let next = preflight(&place).output().unwrap();
    let measured = report(&next)["samples"].as_array().unwrap().len();
    let known = history(&place);
    assert_eq!(
        (known["stamps"].as_array().unwrap().len(), &known["broken"]),
        (whole + measured, &1.into())
    );
}

#[test]
fn a_store_that_hangs_is_waited_for_no_longer_than_seconds() {
    let place = Place::new();
    // Locking the first file blocks, since this test holds the lock. Opening the second file would block until there is
    // a writer, so the command must not open it.
    let own = place.write("site/n1.passport", "");
    let status = Command::new("mkfifo")
        .arg(place.path("site/n2.passport"))
        .status();
    assert!(status.unwrap().success());
    let held = File::open(own).unwrap();
    held.lock().unwrap();
    let begun = Instant::now();
    let output = preflight(&place).output().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    let (report, said) = (report(&output), text(&output.stderr));
    assert!(!report["samples"].as_array().unwrap().is_empty(), "{report}");
    assert!(
        said.contains("site/n2.passport cannot be read and is skipped"),
        "{said}"
    );
    assert!(
        said.contains("could not be added to the passports: the file system did not respond within 5 s"),
        "{said}"
    );
}
