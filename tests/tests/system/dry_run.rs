//! Tests `paceline run --dry-run`, which prints what would be set and started, and does nothing.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::launched::{Place, text};

/// Returns the names of the entries of a directory.
fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Tests one of two tasks on the second node of a Slurm step. It has a remedy from a file, a flag that overrides
/// another setting, and user settings that must be kept.
#[test]
fn a_task_of_a_step_sees_all_of_it() {
    let place = Place::new();
    place.write(
        "config/paceline/config.toml",
        "on_fault = \"requeue\"\nstop_grace = 60\nnotify = [\"exec=/bin/true\"]\n",
    );
    let before = names(&place.path(""));
    let dry = |more: &[&str]| {
        let words = [
            &["run", "--dry-run", "--checkpoint-wait", "5"],
            more,
            &["--", "touch", "it's", "started"],
        ];
        let mut command = place.paceline(words.concat());
        for (name, value) in [
            ("SLURM_JOB_ID", "7"),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_STEP_NODELIST", "n[3-4]"),
            ("SLURM_STEP_TASKS_PER_NODE", "2(x2)"),
            ("SLURM_NODEID", "1"),
            ("SLURM_PROCID", "2"),
            ("SLURM_LOCALID", "0"),
            ("SLURMD_NODENAME", "n4"),
            ("PYTHONPATH", "/the/user's"),
            ("NCCL_PROFILER_PLUGIN", "the-users"),
        ] {
            command.env(name, value);
        }
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stdout).to_owned()
    };
    let found: Value = serde_json::from_str(&dry(&["--json"])).unwrap();
    for (key, wanted) in [
        ("job", "7.0"),
        ("node", "n4"),
        ("aggregator", "n3"),
        ("run_dir", "./paceline-7.0"),
    ] {
        assert_eq!(found[key], wanted, "{found}");
    }
    assert_eq!(found["tasks"], 2);
    assert_eq!(found["command"], serde_json::json!(["touch", "it's", "started"]));
    let words = |key: &str| found[key].to_string();
    for word in [
        "--on-fault=requeue",
        "--stop-grace=60",
        "--checkpoint-wait=5",
        "--notify=exec=/bin/true",
        "--requeue-command=paceline slurm requeue 7 --exclude {node}",
        "--tasks=2",
    ] {
        assert!(words("sidecar").contains(word), "{word}: {found}");
    }
    let set: Vec<(String, String)> = serde_json::from_value(found["environment"].clone()).unwrap();
    let value = |name: &str| {
        set.iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    };
    assert!(
        value("PYTHONPATH").is_some_and(|path| path.ends_with("/python:/the/user's")),
        "{set:?}"
    );
    assert_eq!(
        (value("PACELINE_JOB"), value("PACELINE_NODE")),
        (Some("7.0"), Some("n4"))
    );
    assert_eq!(value("NCCL_PROFILER_PLUGIN"), None, "the user's stays");
    let ring_dir = value("PACELINE_RING_DIR").unwrap();
    assert!(!Path::new(ring_dir).exists(), "{ring_dir}");
    let shown = dry(&[]);
    for line in [
        "aggregator     n3\n",
        "tasks          2 on this node share one sidecar\n",
        "command        touch 'it'\\''s' started\n",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    assert_eq!(names(&place.path("")), before, "nothing is made");
}

/// A mistake that would stop the run must also stop the dry run.
#[test]
fn what_makes_no_sense_is_told() {
    let place = Place::new();
    let ran = place
        .paceline(["run", "--dry-run", "--on-fault", "requeue", "--", "true"])
        .output()
        .unwrap();
    assert_eq!(ran.status.code(), Some(64));
    assert!(
        text(&ran.stderr).contains("this is not a Slurm job"),
        "{}",
        text(&ran.stderr)
    );
}

/// If the live page cannot be served, the run would warn and continue, so the dry run must warn in advance.
#[test]
fn a_place_of_the_page_that_is_none_is_told() {
    let place = Place::new();
    let place_of_page = "no-such-host.invalid:9811";
    let ran = place
        .paceline(["run", "--dry-run", "--http", place_of_page, "--", "true"])
        .output()
        .unwrap();
    assert_eq!(ran.status.code(), Some(0), "{}", text(&ran.stderr));
    let said = text(&ran.stderr);
    let wanted = format!("--http {place_of_page}: ");
    assert!(said.contains(&wanted), "{said}");
    assert!(
        said.contains("the live page would get a free port of 127.0.0.1"),
        "{said}"
    );
}

/// A switch in the environment must accept the same words as in a file.
#[test]
fn a_switch_has_several_words() {
    let place = Place::new();
    for (said, wanted) in [
        ("1", true),
        ("true", true),
        ("on", true),
        ("0", false),
        ("false", false),
    ] {
        let mut command =
            place.paceline(["run", "--dry-run", "--json", "--on-fault", "signal", "--", "true"]);
        let ran = command.env("PACELINE_ACT", said).output().unwrap();
        assert_eq!(ran.status.code(), Some(0), "{said}: {}", text(&ran.stderr));
        let found: Value = serde_json::from_slice(&ran.stdout).unwrap();
        assert_eq!(
            found["sidecar"].to_string().contains("\"--act\""),
            wanted,
            "{said}: {found}"
        );
    }
}
