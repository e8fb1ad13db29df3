//! Several launchers on one node that share a sidecar. Each launcher writes its messages to its own file in the ring
//! directory, so that a restarted sidecar can read all of them.
//!
//! The file is `tasks/<pid>`. Its launcher holds a lock on it while alive. Its lines have the format of a single
//! launcher's messages on stdin.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{FlockOperation, OFlags, flock};
use tokio::sync::mpsc::Sender;

use super::control::{self, Control};
use crate::host::Process;

/// The folder of these files, in the ring directory.
pub const FOLDER: &str = "tasks";
/// The sidecar's findings, one line of JSON each, for the task that prints them.
pub const VERDICTS: &str = "verdicts";
/// The file with the sidecar's ready message, in the ring directory.
pub const READY: &str = "ready";
/// A file that the sidecar creates in the ring directory when it has finished its work.
pub const DONE: &str = "done";
/// The lock file. All processes that need the ring directory hold a shared lock on it.
const ALIVE: &str = "alive.lock";
/// Prefix of the file `command.<launcher's pid>` in the ring directory, which identifies the command's process.
const COMMAND: &str = "command.";
/// Polling interval of the files.
const EVERY: Duration = Duration::from_millis(100);
/// How long to wait for tasks that have not started, after all started tasks have ended.
const PATIENCE: Duration = Duration::from_secs(30);
/// Maximum number of bytes read from one file, which has only a few short lines.
const MAX_FILE: u64 = 4096;
/// A directory modified this recently may belong to a process that has not locked it yet.
const FRESH: Duration = Duration::from_secs(10);

/// State of a node's tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Number of tasks that have started.
    pub came: u32,
    /// Number of started tasks whose command has ended.
    pub over: u32,
    /// Total number of expected tasks.
    pub expected: u32,
    /// Exit code of the command that failed first; zero if all reported codes are zero; `None` if no code was reported.
    pub code: Option<i32>,
    /// Number of live launchers.
    pub launchers: u32,
    /// Process ID of one started command.
    pub child: Option<u32>,
}

impl Look {
    /// Returns true if all expected tasks have started and ended.
    pub fn is_over(&self) -> bool {
        self.came >= self.expected && self.over == self.came
    }
}

/// Reads the state of the tasks in a ring directory.
pub fn look(ring_dir: &Path, expected: u32) -> Look {
    let mut look = Look {
        expected,
        ..Look::default()
    };
    let mut failed: Option<(SystemTime, i32)> = None;
    for task in all(ring_dir) {
        look.came += 1;
        look.over += u32::from(task.is_over());
        look.launchers += u32::from(task.launcher);
        look.child = look.child.or(task.child);
        if let Some(code) = task.exit {
            look.code.get_or_insert(0);
            if code != 0 && failed.is_none_or(|(at, _)| task.at < at) {
                failed = Some((task.at, code));
            }
        }
    }
    look.code = failed.map(|(_, code)| code).or(look.code);
    look
}

/// Returns the process IDs of the commands that a ring directory's tasks started. The IDs may have been reused by now.
pub fn commands(ring_dir: &Path) -> Vec<u32> {
    all(ring_dir).filter_map(|task| task.child).collect()
}

fn all(ring_dir: &Path) -> impl Iterator<Item = Task> {
    let entries = fs::read_dir(ring_dir.join(FOLDER))
        .into_iter()
        .flatten()
        .flatten();
    entries
        .filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."))
        .filter_map(|entry| Task::read(&entry.path()).ok())
}

struct Task {
    child: Option<u32>,
    exit: Option<i32>,
    launcher: bool,
    /// Time of the task's last message.
    at: SystemTime,
}

impl Task {
    fn read(path: &Path) -> io::Result<Task> {
        let mut file = File::options()
            .read(true)
            .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
            .open(path)?;
        let launcher = flock(&file, FlockOperation::NonBlockingLockShared).is_err();
        let mut text = Vec::new();
        (&mut file).take(MAX_FILE).read_to_end(&mut text)?;
        let mut task = Task {
            child: None,
            exit: None,
            launcher,
            at: file.metadata()?.modified()?,
        };
        for line in text.split(|byte| *byte == b'\n') {
            match control::parse(line) {
                Some(Control::Child(pid)) => task.child = Some(pid),
                Some(Control::Exit(code)) => task.exit = Some(code),
                _ => {}
            }
        }
        Ok(task)
    }

    /// Returns true if the task's command has ended: its launcher reported the end, or launcher and command are both
    /// gone.
    fn is_over(&self) -> bool {
        let child_lives = || self.child.is_some_and(|pid| Process::of(pid).is_alive());
        self.exit.is_some() || !self.launcher && !child_lives()
    }
}

/// Starts a thread that reports the state of a ring directory's tasks until all of them have ended.
///
/// # Errors
/// If the thread cannot be created.
pub fn attend(ring_dir: PathBuf, expected: u32, sender: Sender<Control>) -> io::Result<()> {
    let watch = move || {
        let mut told = false;
        let mut idle_since: Option<Instant> = None;
        loop {
            let now = look(&ring_dir, expected);
            if let Some(child) = now.child.filter(|_| !told) {
                told = true;
                if sender.blocking_send(Control::Child(child)).is_err() {
                    return;
                }
            }
            if now.over < now.came {
                idle_since = None;
            } else if now.is_over() || idle_since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                let last = now.code.map_or(Control::Eof, Control::Exit);
                let _ = sender.blocking_send(last);
                return;
            }
            thread::sleep(EVERY);
        }
    };
    thread::Builder::new()
        .name("tasks".into())
        .stack_size(128 << 10)
        .spawn(watch)
        .map(drop)
}

/// Locks a ring directory as long as the returned file lives, so that the directory is not treated as abandoned.
/// Returns `None` if its launcher did not create a lock file.
pub fn hold(ring_dir: &Path) -> Option<File> {
    let file = File::options().write(true).open(ring_dir.join(ALIVE)).ok()?;
    flock(&file, FlockOperation::NonBlockingLockShared).ok()?;
    Some(file)
}

/// Creates the lock file for [`hold`].
///
/// # Errors
/// If the file cannot be created.
pub fn make_holdable(ring_dir: &Path) -> io::Result<()> {
    File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(ring_dir.join(ALIVE))
        .map(drop)
}

/// Records a launcher's command. While the command runs, the directory does not count as abandoned, even if all of our
/// processes were killed, because a trainer may load the hook from there at any time.
pub fn note_command(ring_dir: &Path, child: u32) {
    let name = format!("{COMMAND}{}", std::process::id());
    // If this write fails because memory is full, the directory may be removed while a command without a launcher still
    // runs.
    let _ = fs::write(ring_dir.join(name), Process::of(child).words());
}

fn has_command(ring_dir: &Path) -> bool {
    let entries = fs::read_dir(ring_dir).into_iter().flatten().flatten();
    entries
        .filter(|entry| {
            entry
                .file_name()
                .as_encoded_bytes()
                .starts_with(COMMAND.as_bytes())
        })
        .filter_map(|entry| Process::read(&fs::read_to_string(entry.path()).ok()?))
        .any(|command| command.is_alive())
}

/// Locks an abandoned ring directory, so that no process starts to use it before it is removed. Leaves a directory
/// without a lock file alone, because it may be from another version.
pub fn left_behind(ring_dir: &Path) -> Option<File> {
    let is_old = || {
        let newest = [ring_dir.to_owned(), ring_dir.join(FOLDER)]
            .iter()
            .filter_map(|path| fs::symlink_metadata(path).ok()?.modified().ok())
            .max();
        newest.is_some_and(|at| at.elapsed().is_ok_and(|age| age > FRESH))
    };
    // Check the age before locking as well, because a process that starts to use a fresh directory must be able to lock
    // it.
    if !is_old() {
        return None;
    }
    let file = File::options().write(true).open(ring_dir.join(ALIVE)).ok()?;
    flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
    (is_old() && !has_command(ring_dir)).then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Node(tempfile::TempDir);

    impl Node {
        fn new() -> Node {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir(dir.path().join(FOLDER)).unwrap();
            Node(dir)
        }

        /// Creates the file of a launcher that has written `said`. The launcher counts as alive as long as the returned
        /// file is open.
        fn task(&self, name: &str, said: &str) -> File {
            let path = self.0.path().join(FOLDER).join(name);
            fs::write(&path, said).unwrap();
            let file = File::open(path).unwrap();
            flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
            file
        }

        fn look(&self, expected: u32) -> Look {
            look(self.0.path(), expected)
        }
    }

    #[test]
    fn all_have_to_come_and_to_end() {
        let node = Node::new();
        assert!(!node.look(2).is_over());
        let _one = node.task("1", "{\"child\":1}\n{\"exit\":{\"code\":0}}\n");
        assert!(!node.look(2).is_over());
        let two = node.task("2", "{\"child\":1}\n");
        assert!(!node.look(2).is_over());
        // The second launcher is killed, but its command (PID 1) keeps running.
        drop(two);
        assert_eq!((node.look(2).over, node.look(2).launchers), (1, 1));
        // The second launcher and its command are both gone.
        drop(node.task("2", "{\"child\":0}\n"));
        assert!(node.look(2).is_over());
        assert_eq!(node.look(2).code, Some(0));
    }

    #[test]
    fn the_first_failure_counts() {
        let node = Node::new();
        let _one = node.task("1", "{\"exit\":{\"code\":0}}\n");
        assert_eq!(node.look(3).code, Some(0));
        let _two = node.task("2", "{\"exit\":{\"code\":3}}\n");
        thread::sleep(Duration::from_millis(20));
        let _three = node.task("3", "{\"exit\":{\"code\":143}}\n");
        assert_eq!(node.look(3).code, Some(3));
    }

    #[test]
    fn what_was_left_behind() {
        let dir = tempfile::tempdir().unwrap();
        let age = |seconds| {
            let then = SystemTime::now() - Duration::from_secs(seconds);
            File::open(dir.path()).unwrap().set_modified(then).unwrap();
        };
        age(60);
        assert!(left_behind(dir.path()).is_none(), "it has no lock");
        make_holdable(dir.path()).unwrap();
        age(1);
        assert!(left_behind(dir.path()).is_none(), "it is fresh");
        age(60);
        let held = hold(dir.path()).unwrap();
        assert!(left_behind(dir.path()).is_none(), "it is held");
        drop(held);
        note_command(dir.path(), std::process::id());
        age(60);
        assert!(left_behind(dir.path()).is_none(), "its command runs");
        note_command(dir.path(), 0);
        age(60);
        // A child process that another test is starting holds a copy of the lock until its exec, so retry.
        let is_left = (0..500).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            left_behind(dir.path()).is_some()
        });
        assert!(is_left);
    }
}
