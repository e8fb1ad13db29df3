//! Tests a shortage of memory, descriptors, disk space or a home directory, and other ways to start Python. The command
//! must run as it would alone, and its `import paceline` must work or be guarded as in the docs.

use std::fs;
use std::process::Command;

use crate::launched::{Place, text};

/// The guard around the import, as in docs/python.md.
const GUARDED: &str = "
try:
    import paceline
except ImportError:
    paceline = None
if paceline:
    paceline.step()
print('trained', bool(paceline))
";

/// Runs `before` and `paceline run OPTIONS -- COMMAND` in a shell. Returns code, stdout and stderr.
fn run_after(
    place: &Place,
    before: &str,
    options: &[&str],
    command: &[&str],
) -> (Option<i32>, String, String) {
    let args = [&["run", "--run-dir", "run"], options, &["--"], command].concat();
    let plain = place.paceline(args);
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{before}\nexec \"$@\""), "sh"]);
    shell.arg(plain.get_program()).args(plain.get_args());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    let output = shell.current_dir(place.path(".")).output().unwrap();
    let said = (text(&output.stdout).to_owned(), text(&output.stderr).to_owned());
    (output.status.code(), said.0, said.1)
}

/// Like [`run_after`], in a mount namespace and after `mounts`. Returns `None` without the required privileges.
fn run_in(place: &Place, mounts: &str, options: &[&str], command: &[&str]) -> Option<(i32, String, String)> {
    let before = format!(
        "[ \"$INSIDE\" ] || exec env INSIDE=1 unshare --map-root-user --mount sh -c '{mounts} || exit 250; exec \"$@\"' sh \"$@\""
    );
    let (code, printed, said) = run_after(place, &before, options, command);
    if code == Some(250) || said.starts_with("unshare: ") {
        eprintln!("LEFT OUT: no mounts of our own here: {said}");
        return None;
    }
    Some((code.unwrap(), printed, said))
}

#[test]
fn a_full_dev_shm_ends_no_program_that_imports_paceline() {
    let place = Place::new();
    fs::create_dir(place.path("tmp")).unwrap();
    let command = [
        "python3",
        "-c",
        "import os, paceline; paceline.step(); print(os.environ['PACELINE_RING_DIR'])",
    ];
    let full = "mount -t tmpfs -o size=8k tmpfs /dev/shm && export TMPDIR=$PWD/tmp && unset XDG_RUNTIME_DIR";
    let Some((code, printed, said)) = run_in(&place, full, &[], &command) else {
        return;
    };
    assert_eq!(code, 0, "{said}");
    assert!(
        printed.starts_with(place.path("tmp").to_str().unwrap()),
        "{printed}{said}"
    );
    assert!(!said.contains("unwatched"), "{said}");
    // A task's ranks need one common directory, in the same place for all of them. Therefore only the hook's files go
    // elsewhere.
    let tasks = format!("{full} && export RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2");
    let command = [
        "python3",
        "-c",
        "import paceline; paceline.step(); print(paceline.__file__)",
    ];
    let (code, printed, said) = run_in(&place, &tasks, &["--quiet"], &command).unwrap();
    assert_eq!(code, 0, "{said}");
    assert!(
        printed.starts_with(place.path("tmp").to_str().unwrap()),
        "{printed}{said}"
    );
    let left: Vec<_> = fs::read_dir(place.path("tmp")).unwrap().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
    // Leaves no space anywhere.
    let none = "mount -t tmpfs -o size=8k tmpfs /dev/shm && mount -t tmpfs -o size=8k tmpfs /tmp && export TMPDIR=/tmp && unset XDG_RUNTIME_DIR";
    let place = Place::new();
    if place.path(".").starts_with("/tmp") {
        // Does not mount /tmp where that would hide the program's own directory.
        let none = none.replace(
            "mount -t tmpfs -o size=8k tmpfs /tmp && export TMPDIR=/tmp",
            "export TMPDIR=/proc",
        );
        let (code, printed, said) = run_in(&place, &none, &[], &["python3", "-c", GUARDED]).unwrap();
        assert_eq!(code, 0, "{said}");
        assert!(printed.starts_with("trained"), "{printed}");
    }
}

#[test]
fn a_limit_of_files_ends_neither_us_nor_the_command() {
    let place = Place::new();
    for blocks in ["0", "8", "200"] {
        let (code, printed, said) = run_after(
            &place,
            &format!("ulimit -f {blocks}"),
            &[],
            &["sh", "-c", "grep Sig[IC]g[nt] /proc/self/status; exit 7"],
        );
        assert_eq!(code, Some(7), "{blocks}: {said}");
        // Checks signal 25, SIGXFSZ. The command must inherit the default action.
        for line in printed.lines() {
            let mask = u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap();
            assert_eq!(mask & (1 << 24), 0, "{blocks}: {line}");
        }
        assert_eq!(printed.lines().count(), 2, "{blocks}: {printed}");
        let (code, printed, said) = run_after(
            &place,
            &format!("ulimit -f {blocks}"),
            &[],
            &["python3", "-c", GUARDED],
        );
        assert_eq!(code, Some(0), "{blocks}: {said}");
        assert!(printed.starts_with("trained"), "{blocks}: {printed}{said}");
    }
    // A command that this signal normally kills must be killed here too, because the signal is not ignored.
    let (code, _, said) = run_after(
        &place,
        "ulimit -f 200",
        &[],
        &[
            "sh",
            "-c",
            "ulimit -c 0; exec dd if=/dev/zero of=big bs=1024 count=300",
        ],
    );
    assert_eq!(code, Some(128 + 25), "{said}");
}

#[test]
fn few_descriptors_start_the_command_all_the_same() {
    let place = Place::new();
    for most in ["5", "6", "7", "8", "12", "20"] {
        let (code, printed, said) = run_after(
            &place,
            &format!("ulimit -n {most}"),
            &[],
            &["sh", "-c", "ulimit -n; exit 7"],
        );
        assert_eq!(code, Some(7), "{most}: {said}");
        assert_eq!(printed.trim(), most, "{said}");
    }
    let (code, _, said) = run_after(&place, "ulimit -n 5", &[], &["no-such-command"]);
    assert_eq!(code, Some(127), "{said}");
}

#[test]
fn little_address_space_starts_the_command_all_the_same() {
    let place = Place::new();
    for kilobytes in ["120000", "300000"] {
        let (code, _, said) = run_after(
            &place,
            &format!("ulimit -v {kilobytes}"),
            &[],
            &["sh", "-c", "exit 7"],
        );
        assert_eq!(code, Some(7), "{kilobytes}: {said}");
    }
}

#[test]
fn without_a_home_and_a_place_for_temporary_files() {
    let place = Place::new();
    let before = "unset HOME XDG_CONFIG_HOME XDG_RUNTIME_DIR; export TMPDIR=/proc";
    let (code, printed, said) = run_after(&place, before, &[], &["python3", "-c", GUARDED]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(printed, "trained True\n", "{said}");
}

#[test]
fn python_that_looks_at_no_variable() {
    let place = Place::new();
    let script = place.write("train.py", GUARDED);
    let script = script.to_str().unwrap();
    for command in [
        vec!["python3", "-E", script],
        vec!["python3", "-I", script],
        vec!["env", "PYTHONPATH=/nowhere", "python3", script],
    ] {
        let (code, printed, said) = run_after(&place, "", &[], &command);
        assert_eq!(code, Some(0), "{command:?}: {said}");
        assert!(printed.starts_with("trained"), "{command:?}: {printed}{said}");
    }
    let (code, printed, said) = run_after(&place, "", &[], &["python3", script]);
    assert_eq!((code, &*printed), (Some(0), "trained True\n"), "{said}");
}

/// The docs must contain the lines that are tested above.
#[test]
fn the_docs_show_the_guard() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    for page in ["docs/python.md", "docs/trackers.md"] {
        let text = fs::read_to_string(format!("{root}/{page}")).unwrap();
        for block in text.split("```python").skip(1) {
            let block = block.split("```").next().unwrap();
            let at = block.find("import paceline");
            assert!(
                at.is_none_or(|at| block[..at].contains("try:")),
                "{page}: {block}"
            );
        }
    }
}
