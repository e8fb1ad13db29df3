//! Several tasks on one node (`srun --ntasks-per-node=8 paceline run -- ...`), each with a `paceline run` of its own: one
//! directory, one sidecar.
//!
//! Nobody is the first for ever. Whoever can lock `sidecar.lock` starts the sidecar, which inherits the lock and keeps it
//! for its life; a task that ends leaves it running for the others. Each task tells in a file of its own
//! ([`paceline_sidecar::agent::tasks`]) what became of its command; whoever leaves last waits for the sidecar and clears
//! up.

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

/// Locked by the sidecar of the node.
const SIDECAR: &str = "sidecar.lock";
/// Locked by the one task that prints findings.
const PRINTER: &str = "printer.lock";
/// Read at once of the sidecar's verdicts.
const PIECE: usize = 256 << 10;
/// Locked by whoever leaves last.
const LAST: &str = "last.lock";
/// Locked by who watches over tasks that have no launcher, and by the sidecar that it starts.
const WATCH: &str = "watch.lock";
/// How long a sidecar is waited for by a task that has nothing to tell.
const PATIENCE: Duration = Duration::from_secs(5);

/// This task among those of its node.
#[derive(Debug)]
pub(crate) struct Share {
    dir: PathBuf,
    /// Tasks that are to come.
    expected: u32,
    file: File,
    last: Option<File>,
    printer: Printer,
    _held: Option<File>,
}

/// The right to print findings.
#[derive(Debug, Default)]
struct Printer {
    lock: Option<File>,
    /// Somebody was asked for it before.
    has_asked: bool,
    /// What was read of the verdicts, bytes.
    at: u64,
}

impl Share {
    /// Joins the others in `place`; the directory is the same for all tasks of this user, job and node.
    pub(crate) fn enter(place: &Path, job: &str, node: &str, expected: u32) -> io::Result<Share> {
        let dir = Share::dir_in(place, job, node);
        // Whoever leaves last removes it, perhaps between our two steps.
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

    /// Its path.
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

    /// The directory of all.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The right to be the node's sidecar, if nobody has it.
    pub(crate) fn claim(&self) -> Option<Claim> {
        let file = lock(&self.dir.join(SIDECAR))?;
        // The number of one that is gone may be somebody else's by now.
        let _ = file.set_len(0);
        Some(Claim(file))
    }

    /// The process that has it, if it has said which it is.
    pub(crate) fn sidecar(&self) -> Option<Pid> {
        if self.claim().is_some() {
            return None;
        }
        let text = fs::read_to_string(self.dir.join(SIDECAR)).ok()?;
        let number: i32 = text.trim().parse().ok()?;
        // Seen from another container it may be another process.
        let words = fs::read(format!("/proc/{number}/cmdline")).ok()?;
        let is_sidecar = words.starts_with(b"paceline\0sidecar\0");
        Pid::from_raw(number).filter(|_| is_sidecar)
    }

    /// For a task whose command could not be started: what it came to, and whoever is last clears up.
    pub(crate) fn leave(mut self, code: i32) {
        self.say(format_args!("{{\"exit\":{{\"code\":{code}}}}}"));
        let until = Instant::now() + PATIENCE;
        // A sidecar that another task has started still reads.
        while self.is_last() && self.claim().is_none() && Instant::now() < until {
            thread::sleep(PATIENCE / 100);
        }
    }

    /// Tells the sidecar of our command.
    pub(crate) fn say(&mut self, line: impl std::fmt::Display) {
        // Memory that is full: the sidecar sees us end.
        let _ = self.file.write_all(format!("{line}\n").as_bytes());
    }

    /// After the last word: whether all others have said theirs, and nobody else clears up.
    pub(crate) fn is_last(&mut self) -> bool {
        if self.last.is_none() && tasks::look(&self.dir, self.expected).is_over() {
            self.last = lock(&self.dir.join(LAST));
        }
        self.last.is_some()
    }

    /// Whether a sidecar has ended with its work done.
    pub(crate) fn is_done(&self) -> bool {
        self.dir.join(tasks::DONE).exists()
    }

    /// Verdicts that the sidecar has reported since, if we are the one of the tasks that prints them. When that one leaves, another
    /// goes on from there.
    pub(crate) fn verdicts(&mut self) -> Vec<Status> {
        let path = self.dir.join(tasks::VERDICTS);
        if self.printer.lock.is_none() {
            let has_asked = std::mem::replace(&mut self.printer.has_asked, true);
            self.printer.lock = lock(&self.dir.join(PRINTER));
            if self.printer.lock.is_none() {
                return Vec::new();
            }
            // Whoever printed before has printed what is there.
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
        // A line whose end is not there yet is read the next time.
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

    /// What the sidecar said of itself when it was ready.
    pub(crate) fn ready(&self) -> Option<Status> {
        let text = fs::read(self.dir.join(tasks::READY)).ok()?;
        serde_json::from_slice(&text).ok()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        // Again: while the sidecar was waited for another task may have come.
        if self.last.is_some() && tasks::look(&self.dir, self.expected).is_over() {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

/// Notes in `dir` a task that has no launcher: it is over when its process is, and nobody tells its code. A directory that
/// is not there is made.
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

/// Joins the guests of `dir`: they are not all over as long as the file lives.
pub(crate) fn stay(dir: &Path) -> io::Result<File> {
    tell_apart(&dir.join(tasks::FOLDER), "watch")
}

/// The right to watch over guests in `dir`, if nobody has it.
pub(crate) fn claim_watch(dir: &Path) -> Option<Claim> {
    let path = dir.join(WATCH);
    touch(&path).ok()?;
    lock(&path).map(Claim)
}

/// For somebody who waits: the file that is locked as long as somebody watches over guests in `dir`.
pub(crate) fn watch_of(dir: &Path) -> io::Result<File> {
    File::open(dir.join(WATCH))
}

/// A task's file, locked before it has its name, so that nobody takes us for dead.
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

/// The directory with all that tasks need of it, held.
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

/// A file of ours, made if it is not there.
fn touch(path: &Path) -> io::Result<()> {
    let mut file = File::options();
    file.create(true).truncate(false).write(true).mode(0o600);
    file.open(path).map(drop)
}

/// The right to be the sidecar. It is given up when this is dropped, unless a process has inherited it.
#[derive(Debug)]
pub(crate) struct Claim(File);

impl Claim {
    /// The process of this command will have it, for its life.
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

    /// Notes which process that is, for tasks that are not its parent.
    pub(crate) fn belongs_to(self, process: u32) {
        let mut file = self.0;
        // Without it the others cannot end one that hangs.
        let _ = file.set_len(0).and_then(|()| writeln!(file, "{process}"));
    }
}

/// Makes nothing: whoever clears up may be about to remove the directory, which must be empty then.
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

/// Its name can be guessed: nothing is opened in one that another user has made.
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

/// A directory of ours that nobody else may enter, made if it is not there. One that somebody else has put there first is
/// refused.
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
