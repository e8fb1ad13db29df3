//! Another user of the same machine has write access to the directory where a job is started. None of that user's files
//! may be executed, used as settings or written through. The tests give files to that user, which needs root. Without
//! root they are skipped with a message.

use std::fs;
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::launched::{Place, text};

/// An unused user ID.
pub const STRANGER: u32 = 65533;

/// Changes the owner. Returns false without permission.
pub fn give_away(path: &Path) -> bool {
    let given = lchown(path, Some(STRANGER), Some(STRANGER)).is_ok();
    if !given {
        eprintln!("LEFT OUT: files of another user: these tests do not run as root");
    }
    given
}

pub fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Runs a job that exits with 7; returns its stderr.
fn job(place: &Place, options: &[&str]) -> String {
    let args = [&["run"], options, &["--", "sh", "-c", "exit 7"]].concat();
    let output = place.paceline(args).output().unwrap();
    let said = text(&output.stderr).to_owned();
    assert_eq!(output.status.code(), Some(7), "{said}");
    said
}

#[test]
fn settings_of_another_user_are_not_read() {
    let place = Place::new();
    let file = place.write(
        "paceline.toml",
        "act = true\nnotify = [\"exec=./evil\"]\nno = sense",
    );
    if !give_away(&file) {
        return;
    }
    mode(&place.path("."), 0o1777);
    let said = job(&place, &["--run-dir", "run"]);
    assert!(
        said.contains("./paceline.toml: not read: it belongs to another user (uid 65533, mode 0644)"),
        "{said}"
    );
    assert_eq!(said.matches("paceline.toml: not read").count(), 1, "{said}");
    // That user's link to an unrelated file must not keep a job from starting.
    fs::remove_file(&file).unwrap();
    symlink(place.write("private", "root:x:0:0\n"), &file).unwrap();
    assert!(give_away(&file));
    let said = job(&place, &["--run-dir", "run"]);
    assert!(
        said.contains("./paceline.toml: not read: it belongs to another user"),
        "{said}"
    );
    // This is the user's own file, as when sudo keeps HOME.
    let own = place.write("config/paceline/config.toml", "requeue_command = \"./evil\"\n");
    assert!(give_away(&own));
    let said = job(&place, &["--run-dir", "run"]);
    assert!(said.contains("config/paceline/config.toml: not read: "), "{said}");
}

#[test]
fn settings_that_others_can_write_start_nothing() {
    let place = Place::new();
    let file = place.write("paceline.toml", "quiet = true\n");
    mode(&file, 0o646);
    let output = place
        .paceline(["run", "--", "touch", "started"])
        .output()
        .unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{said}");
    assert!(
        said.contains("./paceline.toml: users other than its owner can write to it"),
        "{said}"
    );
    assert!(said.contains("mode 0646); chmod go-w"), "{said}");
    assert!(!place.path("started").exists());
    mode(&file, 0o644);
    job(&place, &["--run-dir", "run"]);
}

/// The file came with the directory. After `git clone` this user is its owner, so the owner check alone does not
/// protect.
#[test]
fn a_directory_brings_no_program() {
    let place = Place::new();
    for (config, why) in [
        ("notify = [\"exec=./evil\"]\n", ":1:1: notify: runs a program"),
        (
            "\nrequeue_command = \"./evil\"\n",
            ":2:1: requeue_command: runs a command",
        ),
        ("nvml_lib = \"./evil.so\"\n", ":1:1: nvml_lib: loads a library"),
        (
            "notify = \"webhook=https://h/,bearer=env:HOME\"\n",
            ":1:1: notify: would send a secret",
        ),
    ] {
        place.write("paceline.toml", config);
        let output = place
            .paceline(["run", "--", "touch", "started"])
            .output()
            .unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{config}: {said}");
        assert!(
            said.contains(&format!("./paceline.toml{why}")),
            "{config}: {said}"
        );
        assert!(!place.path("started").exists(), "{config}");
        fs::remove_file(place.path("paceline.toml")).unwrap();
        // The program is allowed in the user's own file, in a variable and on the command line.
        if config.contains("exec=") {
            place.write(
                "config/paceline/config.toml",
                &config.replace("./evil", "/bin/true"),
            );
            job(&place, &["--run-dir", "run"]);
            fs::remove_file(place.path("config/paceline/config.toml")).unwrap();
            job(&place, &["--run-dir", "run", "--notify", "exec=/bin/true"]);
        }
    }
}

/// The names of all files written to a run directory.
const WRITTEN: [&str; 10] = [
    "verdicts.ndjson",
    "sidecar.log",
    "journal.ndjson",
    "report.json",
    "report.html",
    "metrics.addr",
    "aggregator.pid",
    "journal.owner",
    "journal.origin",
    ".reserve",
];

#[test]
fn a_run_directory_of_another_user_is_not_used() {
    let place = Place::new();
    let dir = place.path("paceline-4711");
    fs::create_dir(&dir).unwrap();
    for name in WRITTEN {
        symlink(
            place.write(&format!("precious/{name}"), "precious\n"),
            dir.join(name),
        )
        .unwrap();
    }
    if !give_away(&dir) {
        return;
    }
    mode(&place.path("."), 0o1777);
    let said = job(&place, &["--job", "4711"]);
    assert!(
        said.contains("cannot write in ./paceline-4711: it belongs to another user (uid 65533, mode 0755)"),
        "{said}"
    );
    let other = said
        .split("the report goes to ")
        .nth(1)
        .and_then(|rest| rest.split(';').next());
    let other = Path::new(other.unwrap());
    assert!(other.join("report.json").exists(), "{said}");
    assert_eq!(fs::metadata(other).unwrap().permissions().mode() & 0o777, 0o700);
    for name in WRITTEN {
        assert_eq!(place.read(&format!("precious/{name}")), "precious\n", "{name}");
        assert!(dir.join(name).is_symlink(), "{name}");
    }
    fs::remove_dir_all(other).unwrap();
    // That user's link to another directory must not be followed either.
    fs::remove_dir_all(&dir).unwrap();
    fs::create_dir(place.path("ours")).unwrap();
    symlink("ours", &dir).unwrap();
    assert!(give_away(&dir));
    let said = job(&place, &["--job", "4711"]);
    assert!(
        said.contains("cannot write in ./paceline-4711: it belongs to another user"),
        "{said}"
    );
    assert_eq!(fs::read_dir(place.path("ours")).unwrap().count(), 0);
}

/// The owner has granted write access to the group. Links must not redirect writes. This needs no other user.
#[test]
fn links_in_a_run_directory_are_not_written_through() {
    let place = Place::new();
    let dir = place.path("run");
    fs::create_dir(&dir).unwrap();
    mode(&dir, 0o775);
    for name in WRITTEN {
        symlink(
            place.write(&format!("precious/{name}"), "precious\n"),
            dir.join(name),
        )
        .unwrap();
    }
    let said = job(&place, &["--run-dir", "run"]);
    for name in WRITTEN {
        assert_eq!(
            place.read(&format!("precious/{name}")),
            "precious\n",
            "{name}: {said}"
        );
    }
    assert!(
        place.report("run/report.json")["schema_version"].is_u64(),
        "{said}"
    );
    mode(&dir, 0o777);
    let said = job(&place, &["--run-dir", "run"]);
    assert!(
        said.contains("cannot write in run: users other than its owner can write to it"),
        "{said}"
    );
    let other = said
        .split("the report goes to ")
        .nth(1)
        .and_then(|rest| rest.split(';').next());
    fs::remove_dir_all(other.unwrap()).unwrap();
}

#[test]
fn a_file_that_is_no_regular_one_holds_nobody_up() {
    let place = Place::new();
    fs::create_dir(place.path("run")).unwrap();
    for name in WRITTEN {
        let made = Command::new("mkfifo").arg(place.path("run").join(name)).status();
        assert!(made.unwrap().success());
    }
    job(&place, &["--run-dir", "run"]);
    assert!(place.report("run/report.json")["schema_version"].is_u64());
}

/// All tasks of a node and job use the same directory name in memory, and another user can guess it.
#[test]
fn a_directory_of_tasks_of_another_user_is_left_alone() {
    let place = Place::new();
    let memory = Path::new("/dev/shm");
    let tmp = place.path("tmp");
    fs::create_dir(&tmp).unwrap();
    let job = format!("strangers-{}", std::process::id());
    let user = rustix::process::geteuid().as_raw();
    let name = format!(
        "paceline-{user}-{:016x}",
        paceline_health::codec::hash::fnv(format!("{job}\0n0").as_bytes())
    );
    let theirs = memory.join(name);
    fs::create_dir(&theirs).unwrap();
    // Creates a FIFO, which would block forever if it were opened for writing.
    let made = Command::new("mkfifo").arg(theirs.join("alive.lock")).status();
    assert!(made.unwrap().success());
    if give_away(&theirs) {
        let tasks = ["0", "1"].map(|rank| {
            let mut command = place.shell(
                &["--job", &job, "--node", "n0"],
                "echo $PACELINE_RING_DIR; exit 7",
            );
            command
                .env("TMPDIR", &tmp)
                .env_remove("XDG_RUNTIME_DIR")
                .envs([("RANK", rank), ("LOCAL_RANK", rank)])
                .envs([("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2")])
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            command.spawn().unwrap()
        });
        let ended = tasks.map(|task| task.wait_with_output().unwrap());
        let rings = ended.each_ref().map(|output| text(&output.stdout).to_owned());
        for output in &ended {
            assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
            assert!(
                !text(&output.stderr).contains("unwatched"),
                "{}",
                text(&output.stderr)
            );
        }
        assert!(rings[0].starts_with(tmp.to_str().unwrap()), "{rings:?}");
        assert_eq!(rings[0], rings[1]);
    }
    fs::remove_dir_all(&theirs).unwrap();
}
