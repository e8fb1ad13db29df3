//! Runs the program in a separate directory and checks the result.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// Timeout for any operation on a busy machine with two cores.
const PATIENCE: Duration = Duration::from_secs(60);

/// A working directory and its files.
pub struct Place(TempDir);

/// Splits the output of `--json` into the report as on disk, and the advice.
pub fn report_and_advice(line: &str) -> (Value, Value) {
    let mut report: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    let advice = report.as_object_mut().and_then(|report| report.remove("advice"));
    (report, advice.expect("advice"))
}

impl Place {
    pub fn new() -> Place {
        Place(TempDir::new().unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    pub fn report(&self, name: &str) -> Value {
        let text = self.read(name);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}: {text}"))
    }

    /// Returns a command for the program with these arguments, isolated from the configuration of the user who runs the
    /// tests.
    pub fn paceline(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        // Restores the shell's default signals, because a test runner in the background may ignore signals, and
        // processes inherit that.
        let mut command = Command::new("env");
        command.args(["--default-signal", env!("CARGO_BIN_EXE_paceline-under-test")]);
        command.args(args).current_dir(self.0.path()).stdin(Stdio::null());
        command
            .env("XDG_CONFIG_HOME", self.path("config"))
            .env("LC_ALL", "C.UTF-8");
        let ours = |name: &str| {
            ["PACELINE_", "SLURM_", "TORCHELASTIC_"]
                .iter()
                .any(|start| name.starts_with(start))
        };
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(ours) {
                command.env_remove(name);
            }
        }
        command
    }

    /// Runs `paceline run OPTIONS -- sh -c SCRIPT` with the run directory `run` to its end.
    pub fn run(&self, options: &[&str], script: &str) -> Output {
        self.shell(options, script).output().unwrap()
    }

    /// Returns the same command without starting it.
    pub fn shell(&self, options: &[&str], script: &str) -> Command {
        let mut args = vec!["run", "--run-dir", "run"];
        args.extend(options);
        args.extend(["--", "sh", "-c", script]);
        self.paceline(args)
    }

    /// Starts the command with a pipe as standard input. Its output goes to files.
    pub fn start(&self, options: &[&str], script: &str) -> Running<'_> {
        self.start_as(self.shell(options, script))
    }

    /// Like [`Place::start`], for a command from [`Place::shell`].
    pub fn start_as(&self, mut command: Command) -> Running<'_> {
        let file = |name: &str| fs::File::create(self.path(name)).unwrap();
        command
            .stdin(Stdio::piped())
            .stdout(file("stdout"))
            .stderr(file("stderr"));
        Running {
            place: self,
            child: command.spawn().unwrap(),
        }
    }
}

/// A running launcher.
pub struct Running<'a> {
    place: &'a Place,
    pub child: Child,
}

impl Running<'_> {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Polls until the child has printed `text`.
    pub fn until_printed(&self, text: &str) {
        until(text, || self.place.read("stdout").contains(text).then_some(()));
    }

    /// Polls until this node's sidecar has written to the journal.
    pub fn until_watched(&self) {
        let spoke = || {
            self.place
                .read("run/journal.ndjson")
                .contains("\"beat\"")
                .then_some(())
        };
        until("a beat in the journal", spoke);
    }

    /// Returns the PID of the launcher's sidecar, if there is one now.
    pub fn sidecar(&self) -> Option<u32> {
        children(self.pid())
            .into_iter()
            .find(|pid| words(*pid).get(1).is_some_and(|word| word == "sidecar"))
    }

    pub fn say(&mut self, text: &str) {
        self.child
            .stdin
            .as_mut()
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
    }

    /// Waits and returns its exit code.
    pub fn wait(mut self) -> i32 {
        drop(self.child.stdin.take());
        until("the end", || self.child.try_wait().unwrap())
            .code()
            .expect("the launcher exits, whatever ended the child")
    }
}

impl Drop for Running<'_> {
    /// Ends the process, so that a failed test leaves none running.
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            for pid in children(self.pid()) {
                signal("KILL", pid);
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Processes that are ended on drop, so that a failed test leaves none running.
pub struct Children(pub Vec<Child>);

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Polls until there is a result.
pub fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn signal(name: &str, pid: u32) {
    let status = Command::new("kill")
        .args([&format!("-{name}"), &pid.to_string()])
        .status();
    assert!(status.unwrap().success(), "kill -{name} {pid}");
}

/// Returns true if the process runs and is not a zombie.
pub fn is_running(pid: u32) -> bool {
    stat(pid).is_some_and(|(state, _)| state != "Z" && state != "X")
}

/// Returns the state and the parent of a process.
fn stat(pid: u32) -> Option<(String, u32)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}

pub fn children(parent: u32) -> Vec<u32> {
    let pids = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| stat(*pid).is_some_and(|(state, of)| of == parent && state != "Z"))
        .collect()
}

fn words(pid: u32) -> Vec<String> {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    bytes
        .split(|byte| *byte == 0)
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect()
}

pub fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Returns true if a ring directory still exists.
pub fn stands(path: &str) -> bool {
    Path::new(path).exists()
}
