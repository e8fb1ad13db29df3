//! Lets several tasks on one node, each with its own `paceline run` (`srun --ntasks-per-node=8 paceline run -- ...`),
//! share one directory and one sidecar.
//!
//! No task has a permanent role. The task that can lock `sidecar.lock` starts the sidecar, which inherits the lock and
//! keeps it while it runs. If this task ends, it leaves the sidecar running for the others. Each task reports the
//! result of its command in its own file ([`paceline_sidecar::agent::tasks`]). The last task waits for the sidecar and
//! cleans up.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use paceline_health::codec::hash::fnv;
use paceline_sidecar::agent::tasks;
use paceline_sidecar::sink::status::Status;
use rustix::fs::{FlockOperation, flock};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::Pid;

/// File that the node's sidecar locks.
const SIDECAR: &str = "sidecar.lock";
/// File that the one task that prints findings locks.
const PRINTER: &str = "printer.lock";
/// Maximum number of bytes of the sidecar's verdicts per read.
const PIECE: usize = 256 << 10;
/// File that the last task locks.
const LAST: &str = "last.lock";
/// File that the watch of tasks without a launcher locks. The watch's sidecar also holds this lock.
const WATCH: &str = "watch.lock";
/// Time that a task without data waits for a sidecar.
const PATIENCE: Duration = Duration::from_secs(5);

/// The membership of this task among those of its node.
#[derive(Debug)]
pub(crate) struct Share {
    dir: PathBuf,
    /// Expected number of tasks.
    expected: u32,
    file: File,
    last: Option<File>,
    printer: Printer,
    _held: Option<File>,
}

/// State of the task that prints findings, or wants to.
#[derive(Debug, Default)]
struct Printer {
    lock: Option<File>,
    /// True if the right to print was requested before.
    has_asked: bool,
    /// Number of bytes of the verdicts that were read.
    at: u64,
}

impl Share {
    /// Joins the other tasks in `place`. The directory is the same for all tasks of this user, job and node.
    pub(crate) fn enter(place: &Path, job: &str, node: &str, expected: u32) -> io::Result<Share> {
        let dir = Share::dir_in(place, job, node);
        // Try again, because the last task of an earlier group may remove the directory between our two steps.
        let mut problem = io::Error::from(io::ErrorKind::NotFound);
        for _ in 0..3 {
            match Share::enter_dir(&dir, expected) {
                Ok(share) => return Ok(share),
                Err(error) if error.kind() == io::ErrorKind::NotFound => problem = error,
                Err(error) => return Err(error),
            }
        }
        Err(problem)
    }

    /// Returns the path of the directory.
    pub(crate) fn dir_in(place: &Path, job: &str, node: &str) -> PathBuf {
        let user = rustix::process::geteuid().as_raw();
        place.join(format!(
            "paceline-{user}-{:016x}",
            fnv(format!("{job}\0{node}").as_bytes())
        ))
    }

    fn enter_dir(dir: &Path, expected: u32) -> io::Result<Share> {
        refuse_foreign(dir)?;
        if let Some(_held) = tasks::left_behind(dir) {
            fs::remove_dir_all(dir)?;
        }
        let held = make(dir)?;
        let folder = dir.join(tasks::FOLDER);
        Ok(Share {
            dir: dir.to_owned(),
            expected,
            file: tell_apart(&folder, &std::process::id().to_string())?,
            last: None,
            printer: Printer::default(),
            _held: held,
        })
    }

    /// Returns the path of the shared directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Claims the right to be the node's sidecar, if it is free.
    pub(crate) fn claim(&self) -> Option<Claim> {
        let file = lock(&self.dir.join(SIDECAR))?;
        // Remove the process id of an earlier sidecar, which may belong to another process by now.
        let _ = file.set_len(0);
        Some(Claim(file))
    }

    /// Returns the process of the current sidecar, if its id is known.
    pub(crate) fn sidecar(&self) -> Option<Pid> {
        if self.claim().is_some() {
            return None;
        }
        let text = fs::read_to_string(self.dir.join(SIDECAR)).ok()?;
        let number: i32 = text.trim().parse().ok()?;
        // Check the command line, because in another container the id may belong to another process.
        let words = fs::read(format!("/proc/{number}/cmdline")).ok()?;
        let is_sidecar = words.starts_with(b"paceline\0sidecar\0");
        Pid::from_raw(number).filter(|_| is_sidecar)
    }

    /// Reports the exit code of a command that could not be started. If this is the last task, it cleans up.
    pub(crate) fn leave(mut self, code: i32) {
        self.say(format_args!("{{\"exit\":{{\"code\":{code}}}}}"));
        let until = Instant::now() + PATIENCE;
        // Wait while a sidecar that another task started is still reading.
        while self.is_last() && self.claim().is_none() && Instant::now() < until {
            thread::sleep(PATIENCE / 100);
        }
    }

    /// Reports a fact about our command to the sidecar.
    pub(crate) fn say(&mut self, line: impl std::fmt::Display) {
        // Ignore an error, which occurs if the memory is full. The sidecar notices our end anyway.
        let _ = self.file.write_all(format!("{line}\n").as_bytes());
    }

    /// Called after our last report. Returns true if all other tasks have made theirs, and no other task cleans up.
    pub(crate) fn is_last(&mut self) -> bool {
        if self.last.is_none() && tasks::look(&self.dir, self.expected).is_over() {
            self.last = lock(&self.dir.join(LAST));
        }
        self.last.is_some()
    }

    /// Returns true if a sidecar has finished its work.
    pub(crate) fn is_done(&self) -> bool {
        self.dir.join(tasks::DONE).exists()
    }

    /// Returns new verdicts of the sidecar, if this is the task that prints them. If that task ends, another one takes
    /// over.
    pub(crate) fn verdicts(&mut self) -> Vec<Status> {
        let path = self.dir.join(tasks::VERDICTS);
        if self.printer.lock.is_none() {
            let has_asked = std::mem::replace(&mut self.printer.has_asked, true);
            self.printer.lock = lock(&self.dir.join(PRINTER));
            if self.printer.lock.is_none() {
                return Vec::new();
            }
            // If we have just taken over, skip the existing verdicts, because the previous task has printed them.
            let printed = if has_asked {
                fs::metadata(&path).map_or(0, |about| about.len())
            } else {
                0
            };
            self.printer.at = printed;
        }
        let mut piece = vec![0; PIECE];
        let Ok(count) = File::open(&path).and_then(|file| file.read_at(&mut piece, self.printer.at)) else {
            return Vec::new();
        };
        // Leave an incomplete line for the next read.
        let whole = piece[..count]
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |end| end + 1);
        self.printer.at += whole as u64;
        let lines = piece[..whole].split(|byte| *byte == b'\n');
        lines
            .filter_map(|line| serde_json::from_slice(line).ok())
            .collect()
    }

    /// Returns the status that the sidecar wrote when it became ready.
    pub(crate) fn ready(&self) -> Option<Status> {
        let text = fs::read(self.dir.join(tasks::READY)).ok()?;
        serde_json::from_slice(&text).ok()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        // Check again, because another task may have joined while we waited for the sidecar.
        if self.last.is_some() && tasks::look(&self.dir, self.expected).is_over() {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

/// Registers in `dir` a task that has no launcher. It counts as ended when its process ends, and its exit code is not
/// known. Creates the directory if needed.
pub(crate) fn note_guest(dir: &Path, name: &str, process: u32) -> io::Result<()> {
    refuse_foreign(dir)?;
    if let Some(_held) = tasks::left_behind(dir) {
        fs::remove_dir_all(dir)?;
    }
    let _held = make(dir)?;
    let folder = dir.join(tasks::FOLDER);
    let hidden = folder.join(format!(".{name}"));
    fs::write(&hidden, format!("{{\"child\":{process}}}\n"))?;
    fs::rename(&hidden, folder.join(name))
}

/// Joins the tasks of `dir`. They do not count as ended while the returned file is open.
pub(crate) fn stay(dir: &Path) -> io::Result<File> {
    tell_apart(&dir.join(tasks::FOLDER), "watch")
}

/// Claims the right to watch the tasks in `dir`, if it is free.
pub(crate) fn claim_watch(dir: &Path) -> Option<Claim> {
    let path = dir.join(WATCH);
    touch(&path).ok()?;
    lock(&path).map(Claim)
}

/// Opens the file that is locked while a watch runs in `dir`, for a process that waits for the watch.
pub(crate) fn watch_of(dir: &Path) -> io::Result<File> {
    File::open(dir.join(WATCH))
}

/// Creates a task's file. The file is locked before it gets its name, so that the task is not taken for dead.
fn tell_apart(folder: &Path, name: &str) -> io::Result<File> {
    let hidden = folder.join(format!(".{name}"));
    let file = File::options()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(&hidden)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    fs::rename(&hidden, folder.join(name))?;
    Ok(file)
}

/// Creates the directory with everything that tasks need in it. Returns a file that keeps it from being removed.
fn make(dir: &Path) -> io::Result<Option<File>> {
    make_private(dir)?;
    tasks::make_holdable(dir)?;
    let held = tasks::hold(dir);
    make_private(&dir.join(tasks::FOLDER))?;
    for name in [SIDECAR, LAST, PRINTER] {
        touch(&dir.join(name))?;
    }
    Ok(held)
}

/// Creates a file if it does not exist.
fn touch(path: &Path) -> io::Result<()> {
    let mut file = File::options();
    file.create(true).truncate(false).write(true).mode(0o600);
    file.open(path).map(drop)
}

/// The right to be the sidecar. It is released on drop, unless a process has inherited it.
#[derive(Debug)]
pub(crate) struct Claim(File);

impl Claim {
    /// Lets the command's process inherit this right for as long as it runs.
    pub(crate) fn hand_over(&self, command: &mut Command) {
        let descriptor = self.0.as_raw_fd();
        // SAFETY: fcntl is async-signal-safe, and touches nothing but a descriptor of the child, which is a copy of one
        // that the parent keeps open until the child is started.
        unsafe {
            command.pre_exec(move || {
                let inherited = BorrowedFd::borrow_raw(descriptor);
                Ok(fcntl_setfd(inherited, FdFlags::empty())?)
            });
        }
    }

    /// Stores the sidecar's process id, for tasks that are not its parent.
    pub(crate) fn belongs_to(self, process: u32) {
        let mut file = self.0;
        // Ignore an error. Without the id, other tasks cannot end a sidecar that hangs.
        let _ = file.set_len(0).and_then(|()| writeln!(file, "{process}"));
    }
}

/// Locks a file without creating it. The last task may be about to remove the directory, which must then be empty.
fn lock(path: &Path) -> Option<File> {
    let file = File::options().write(true).open(path).ok()?;
    flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(file)
}

fn owner(path: &Path) -> io::Result<(u32, u32)> {
    let meta = fs::symlink_metadata(path)?;
    if !meta.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    Ok((meta.uid(), meta.mode() & 0o777))
}

/// Refuses a directory of another user, who could have created it because its name is predictable.
fn refuse_foreign(dir: &Path) -> io::Result<()> {
    match owner(dir) {
        Ok((user, _)) if user != rustix::process::geteuid().as_raw() => {
            let what = format!("{} belongs to another user (uid {user})", dir.display());
            Err(io::Error::new(io::ErrorKind::PermissionDenied, what))
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Creates, if needed, a directory that only this user may enter. An existing one of another user is refused.
fn make_private(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    if owner(path)? == (rustix::process::geteuid().as_raw(), 0o700) {
        Ok(())
    } else {
        let what = format!("{} is accessible to other users", path.display());
        Err(io::Error::new(io::ErrorKind::PermissionDenied, what))
    }
}

#[cfg(test)]
#[path = "share_tests.rs"]
mod tests;
