//! The command must behave as if started alone, in its exit code, its input and output, and what it inherits.

use std::process::Stdio;

use crate::launched::{Place, stands, text};

#[test]
fn the_exit_code_is_the_commands() {
    for (script, expected) in [
        ("exit 0", 0),
        ("exit 3", 3),
        ("exit 255", 255),
        ("kill -SEGV $$", 139),
        ("kill -TERM $$", 143),
        ("kill -KILL $$", 137),
    ] {
        let place = Place::new();
        let output = place.run(&["--quiet"], script);
        assert_eq!(
            output.status.code(),
            Some(expected),
            "{script}: {}",
            text(&output.stderr)
        );
        assert_eq!(text(&output.stderr), "", "--quiet says nothing");
        assert_eq!(
            place.report("run/report.json")["exits"][0]["code"],
            expected,
            "{script}"
        );
    }
}

#[test]
fn a_command_that_cannot_be_started_is_told_as_a_shell_does_with_a_hint() {
    let place = Place::new();
    place.write("train.py", "print()");
    place.write("a-script", "#!/no/such/interpreter\n");
    let executable = |name: &str| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(place.path(name), std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    executable("a-script");
    for (command, code, said) in [
        (
            "no-such-command",
            127,
            "no-such-command: command not found; is its environment active, and PATH correct?",
        ),
        (
            "a-script",
            127,
            "a-script: command not found; did you mean `./a-script`?",
        ),
        (
            "./a-script",
            127,
            "the file exists, but the interpreter in its first line does not",
        ),
        (
            "./train.py",
            126,
            "./train.py: not executable; did you mean `python ./train.py`?",
        ),
        ("echo hello", 127, "pass its words as separate arguments"),
        ("/", 126, "/: not executable; it is a directory"),
        ("", 127, "\"\" (the command is empty): command not found\n"),
    ] {
        let output = place
            .paceline(["run", "--run-dir", "run", "--", command])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(code), "{command}");
        assert!(
            text(&output.stderr).contains(said),
            "{command}: {}",
            text(&output.stderr)
        );
        assert_eq!(text(&output.stdout), "");
        let report = place.report("run/report.json");
        assert_eq!(report["exits"][0]["code"], code, "{command}");
        let notes = report["coverage"]["notes"].to_string();
        assert!(notes.contains("the command could not be started"), "{notes}");
    }
    let output = place
        .paceline(["run", "--json", "--run-dir", "run", "--", "no-such-command"])
        .output()
        .unwrap();
    assert_eq!(text(&output.stdout), place.read("run/report.json"));
}

#[test]
fn a_report_that_is_somebody_elses_is_spared() {
    let place = Place::new();
    place.write("run/report.json", "{\"accuracy\": 0.9}");
    let output = place.run(&[], "exit 0");
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stderr).contains("report.json was not written by paceline: moved to"));
    assert_eq!(place.read("run/report.1.json"), "{\"accuracy\": 0.9}");
    assert_eq!(place.report("run/report.json")["schema_version"], 1);
    place.run(&[], "exit 0");
    assert!(!place.path("run/report.2.json").exists(), "our own is replaced");
}

#[test]
fn input_and_output_are_untouched() {
    let place = Place::new();
    let mut child = place
        .shell(&[], "cat; echo to-stderr >&2")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    use std::io::Write;
    child.stdin.take().unwrap().write_all(b"\x00\xffbytes").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.stdout, b"\x00\xffbytes");
    let stderr = text(&output.stderr);
    assert!(stderr.starts_with("paceline: job "), "{stderr}");
    assert_eq!(stderr.matches("paceline: job").count(), 1, "one banner: {stderr}");
    assert!(stderr.contains("\nto-stderr\n"), "{stderr}");
}

#[test]
fn the_command_finds_its_ring_and_the_hook_and_the_users_path_stays() {
    let place = Place::new();
    let script = "echo $PACELINE_JOB,$PACELINE_NODE; echo $PACELINE_RING_DIR; echo $PYTHONPATH; \
                  stat -c %a $PACELINE_RING_DIR; test -f $PACELINE_RING_DIR/python/sitecustomize.py && echo hook";
    let mut command = place.shell(&["--job", "j", "--node", "n"], script);
    let output = command.env("PYTHONPATH", "/users/own").output().unwrap();
    let lines: Vec<&str> = text(&output.stdout).lines().collect();
    let [names, ring, path, mode, hook] = lines[..] else {
        panic!("{lines:?}")
    };
    assert_eq!((names, mode, hook), ("j,n", "700", "hook"));
    assert_eq!(path, format!("{ring}/python:/users/own"));
    assert!(!stands(ring), "{ring} is removed");
}

/// `nohup` and a script's `&` make all child processes ignore signals, and that must not change.
#[test]
fn a_signal_that_was_ignored_stays_ignored() {
    let place = Place::new();
    let program = env!("CARGO_BIN_EXE_paceline-under-test");
    let script = format!("trap '' HUP; exec {program} run --run-dir run -- sh -c 'kill -HUP $$; echo alive'");
    let output = std::process::Command::new("sh")
        .args(["-c", &script])
        .current_dir(place.path("."))
        .output()
        .unwrap();
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), "alive\n"));
}

/// Failures of Paceline itself must only be warnings.
#[test]
fn without_a_run_directory_the_report_goes_elsewhere() {
    let place = Place::new();
    place.write("run", "a file");
    let output = place.run(&["--json"], "echo $PACELINE_RING_DIR; exit 4");
    assert_eq!(output.status.code(), Some(4));
    let stderr = text(&output.stderr);
    let told = "paceline: warning: cannot write in run: Not a directory (os error 20); the report goes to ";
    let (_, rest) = stderr.split_once(told).expect(stderr);
    let (elsewhere, hint) = rest.lines().next().unwrap().split_once("; ").unwrap();
    assert!(hint.contains("PACELINE_RUN_DIR"), "{hint}");
    let lines: Vec<&str> = text(&output.stdout).lines().collect();
    assert_ne!(lines[0], "", "it is watched all the same");
    let report: serde_json::Value = serde_json::from_str(lines[1]).unwrap();
    assert_eq!(report["exits"][0]["code"], 4);
    for name in ["journal.ndjson", "report.json"] {
        assert!(std::path::Path::new(elsewhere).join(name).is_file(), "{name}");
    }
    std::fs::remove_dir_all(elsewhere).unwrap();
}

/// Job ends must be counted by reason in one file, also for runs in the same directory.
#[test]
fn ends_are_counted_where_a_file_is_named() {
    let place = Place::new();
    for (script, code) in [("true", 0), ("exit 3", 3), ("exit 3", 3)] {
        let ran = place.run(&["--textfile", "ends.prom"], script);
        assert_eq!(
            ran.status.code(),
            Some(code),
            "{}",
            String::from_utf8_lossy(&ran.stderr)
        );
    }
    let counted = place.read("ends.prom");
    for wanted in [
        "{reason=\"success\"} 1\n",
        "{reason=\"error\"} 2\n",
        "{reason=\"killed\"} 0\n",
    ] {
        assert!(counted.contains(wanted), "{counted}");
    }
    // A failure to count must change nothing else.
    let ran = place.run(&["--textfile", "none/ends.prom"], "true");
    let stderr = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(
        ran.status.success() && stderr.contains("the job's end is not counted: none/ends.prom"),
        "{stderr}"
    );
}

/// A user can set a variable to empty to override a default.
#[test]
fn an_empty_variable_says_nothing() {
    let place = Place::new();
    let names = ["ACT", "NOTIFY", "ON_FAULT", "QUIET", "KEY_FILE", "RUN_DIR"];
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_paceline-under-test"))
        .args(["run", "--", "sh", "-c", "exit 3"])
        .envs(names.map(|name| (format!("PACELINE_{name}"), "")))
        .current_dir(place.path("."))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
}

#[test]
fn what_nothing_can_be_written_to_or_told_by_is_said_at_the_start() {
    let place = Place::new();
    let options = [
        "--metrics-textfile",
        "none/m.prom",
        "--notify",
        "exec=/none/tell",
        "--notify",
        "exec=true",
    ];
    let output = place.run(&options, "exit 3");
    assert_eq!(output.status.code(), Some(3));
    let stderr = text(&output.stderr);
    for said in [
        "warning: --metrics-textfile none/m.prom: No such file or directory (os error 2); no metrics are written there",
        "warning: --notify exec=/none/tell: No such file or directory (os error 2); it gets no notices until it \
         can be started",
    ] {
        assert_eq!(stderr.matches(said).count(), 1, "{stderr}");
    }
    assert!(!stderr.contains("exec=true"), "{stderr}");
}
