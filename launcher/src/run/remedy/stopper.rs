//! Ends this node's tasks of another launcher when a remedy requires it. Like a launcher, it sends SIGTERM, waits for a
//! grace period, and sends SIGKILL.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use paceline_sidecar::agent::tasks;
use paceline_sidecar::host::process_group;
use paceline_sidecar::remedy::hand::Stop;
use paceline_sidecar::source::ends;
use rustix::process::{Pid, Signal, kill_process_group};

/// Ends the tasks of one directory. See the module.
pub(crate) struct Stopper<'a> {
    dir: &'a Path,
    kill_at: Option<Instant>,
    is_over: bool,
}

impl<'a> Stopper<'a> {
    /// Creates the state for the tasks registered in `dir`.
    pub(crate) fn new(dir: &'a Path) -> Stopper<'a> {
        Stopper {
            dir,
            kill_at: None,
            is_over: false,
        }
    }

    /// Checks for a request, and sends the signals that are due.
    pub(crate) fn tend(&mut self) {
        if self.is_over {
            return;
        }
        match self.kill_at {
            Some(at) if Instant::now() >= at => {
                self.is_over = true;
                signal_tasks(self.dir, Signal::KILL);
            }
            Some(_) => {}
            None => {
                if let Some(stop) = Stop::look(self.dir) {
                    ends::note_asked(self.dir, &format!("SIGTERM by {}", stop.mark));
                    self.kill_at = Some(Instant::now() + Duration::from_millis(stop.grace_ms));
                    signal_tasks(self.dir, Signal::TERM);
                }
            }
        }
    }
}

/// Signals the process groups of the tasks. Under Slurm, all tasks of a node and a step share one group.
fn signal_tasks(dir: &Path, signal: Signal) {
    let pids = tasks::commands(dir).into_iter().filter(|pid| is_of(dir, *pid));
    let groups: BTreeSet<_> = pids
        .filter_map(process_group)
        .map(|group| group.as_raw_nonzero().get())
        .collect();
    for group in groups.into_iter().filter_map(Pid::from_raw) {
        // Ignore an error, because a task that has just ended needs no signal.
        let _ = kill_process_group(group, signal);
    }
}

/// Returns true if the process was started as a task of this directory. The id may belong to another process by now.
fn is_of(dir: &Path, pid: u32) -> bool {
    let mut wanted = b"PACELINE_RING_DIR=".to_vec();
    wanted.extend(dir.as_os_str().as_bytes());
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment
        .split(|byte| *byte == 0)
        .any(|variable| variable == wanted)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::{Child, Command};

    use super::*;

    /// Starts a process in its own group, as a task of `dir`.
    fn sleeper(dir: &Path) -> Child {
        let mut command = Command::new("sleep");
        let command = command.arg("600").process_group(0).env("PACELINE_RING_DIR", dir);
        command.spawn().unwrap()
    }

    #[test]
    fn tasks_are_ended_and_nobody_else() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join(tasks::FOLDER);
        fs::create_dir(&folder).unwrap();
        let (mut task, mut other) = (sleeper(dir.path()), sleeper(Path::new("/elsewhere")));
        // Register both, as if the second process had a reused id.
        for (name, pid) in [("local0", task.id()), ("local1", other.id())] {
            fs::write(folder.join(name), format!("{{\"child\":{pid}}}\n")).unwrap();
        }
        // A process's environment becomes readable a moment after its start.
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_of(dir.path(), task.id()) {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut stopper = Stopper::new(dir.path());
        stopper.tend();
        assert!(task.try_wait().unwrap().is_none());
        let stop = r#"{"grace_ms":600000,"mark":"paceline:j:1:2"}"#;
        fs::write(dir.path().join("stop.json"), stop).unwrap();
        stopper.tend();
        assert_eq!(task.wait().unwrap().signal(), Some(Signal::TERM.as_raw()));
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
