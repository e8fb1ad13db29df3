//! Prints lines on stderr, to which the command also writes. The lines are whole, do not split a line of the command,
//! and do not wait for the reader.
//!
//! A separate thread writes, so that an unread pipe blocks neither the launcher nor the command. If there is no room
//! for a line within a timeout, the line is dropped and counted. Each line is one write(2) of at most PIPE_BUF bytes,
//! which a pipe accepts atomically.
//!
//! The thread must know whether the command has left a line incomplete. If the command's output passes through us
//! (`--step-log`), the last byte of this output shows it. For a regular file, we read the file's last byte. On a
//! terminal the cursor position decides: we print as many spaces as there are columns, and then a carriage return. This
//! moves the cursor to a new line only if it was inside one (as zsh does before its prompt). The last byte in a pipe
//! cannot be known, so we write an empty line before ours.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use paceline_health::text::humanize::count;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Maximum number of queued lines.
const QUEUE: usize = 64;
/// PIPE_BUF of Linux (pipe(7)).
const MAX_BYTES: usize = 4096;
/// A line is dropped if there is no room for it within this time.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time to write the queued lines at the end.
const LAST: Duration = Duration::from_millis(300);
/// Time to wait for the command to complete a line.
const LINE_END: Duration = Duration::from_secs(1);
/// Polling interval.
const LOOK: Duration = Duration::from_millis(20);

/// The last byte of the output that passed through us, for other writers to the same file. It is locked while a piece
/// is written.
#[derive(Debug)]
pub(crate) struct Passed {
    last: Mutex<u8>,
    /// True if this output goes to the same file as our lines.
    is_stderr: bool,
}

impl Passed {
    /// Creates the state before any output has passed. `is_stderr`: the command's stderr will pass through us.
    pub(crate) fn new(is_stderr: bool) -> Arc<Passed> {
        Arc::new(Passed {
            last: Mutex::new(b'\n'),
            is_stderr,
        })
    }

    /// Locks the last byte. The caller holds the lock while it writes a piece, and then stores the last byte written.
    pub(crate) fn lock(&self) -> MutexGuard<'_, u8> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The queue of lines to the writing thread, while it exists.
static WRITER: Mutex<Option<SyncSender<String>>> = Mutex::new(None);

fn writer() -> MutexGuard<'static, Option<SyncSender<String>>> {
    WRITER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// While this value exists, output to stderr goes through the thread.
#[derive(Debug)]
pub(crate) struct Background(Receiver<()>);

impl Background {
    /// Starts the thread. `passed` is the state of the command's output, if it passes through us.
    pub(crate) fn start(passed: Option<Arc<Passed>>) -> Option<Background> {
        let own = io::stderr().as_fd().try_clone_to_owned().ok()?;
        let (sender, lines) = sync_channel(QUEUE);
        let (done, end) = sync_channel(1);
        let write = move || {
            ignore_tostop();
            Writer::new(File::from(own), passed).run(&lines);
            let _ = done.send(());
        };
        let thread = std::thread::Builder::new().name("stderr".into());
        // If the thread does not start, lines are dropped, because writing them here could block.
        let _ = thread.spawn(write);
        *writer() = Some(sender);
        Some(Background(end))
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        *writer() = None;
        // Do not wait longer. A thread that still waits for room ends with the process.
        let _ = self.0.recv_timeout(LAST);
    }
}

/// Queues a line and returns true if there is a writing thread. If the queue is full, the line is counted as dropped.
pub(super) fn take(line: &str) -> bool {
    let sender = writer().clone();
    let Some(sender) = sender else { return false };
    if sender.try_send(line.to_owned()).is_err() {
        DROPPED.fetch_add(1, Ordering::Relaxed);
    }
    true
}

static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Blocks SIGTTOU in this thread. If the command is in the terminal's foreground, we may be in the background. With
/// `stty tostop`, a write would then stop the launcher, unless the signal is blocked (tcsetattr(3), TOSTOP).
fn ignore_tostop() {
    // SAFETY: the set is plain memory that sigemptyset fills; both pointers are valid during the calls.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGTTOU);
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
    }
}

/// The kind of file that stderr is.
#[derive(Debug)]
enum Kind {
    /// A terminal with cursor control.
    Terminal,
    /// A regular file that can be read.
    Regular(File),
    /// A pipe, a socket, or a file that cannot be read.
    Other,
}

struct Writer {
    sink: File,
    kind: Kind,
    passed: Option<Arc<Passed>>,
    dropped: &'static AtomicU64,
    is_closed: AtomicBool,
}

impl Writer {
    fn new(sink: File, passed: Option<Arc<Passed>>) -> Writer {
        let kind = kind(sink.as_fd());
        Writer {
            sink,
            kind,
            passed,
            dropped: &DROPPED,
            is_closed: AtomicBool::new(false),
        }
    }

    fn run(&self, lines: &Receiver<String>) {
        while let Ok(line) = lines.recv() {
            self.write(&line);
        }
    }

    /// Writes a line, or drops and counts it.
    fn write(&self, line: &str) {
        // Wait for room before locking, because the lock also blocks the output that passes through us.
        if !self.has_room(PATIENCE) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let lost = self.dropped.load(Ordering::Relaxed);
        let note = match lost {
            0 => String::new(),
            _ => format!("paceline: {} dropped: stderr was not read\n", count(lost, "line")),
        };
        let passed = self.passed.as_ref().map(|passed| (passed, self.line_end(passed)));
        let is_start = match &passed {
            Some((passed, last)) if passed.is_stderr => Some(**last == b'\n'),
            _ => None,
        };
        let text = format!("{}{note}{line}", self.lead(is_start));
        let mut bytes = text.into_bytes();
        if bytes.len() > MAX_BYTES {
            bytes.truncate(MAX_BYTES - 1);
            bytes.push(b'\n');
        }
        // Check again, because the command may have filled the pipe while we waited for the end of its line.
        if self.has_room(Duration::ZERO) && self.put(&bytes) {
            self.dropped.fetch_sub(lost, Ordering::Relaxed);
        } else {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits up to a second until the command has completed a line that passes through us.
    fn line_end<'a>(&self, passed: &'a Passed) -> MutexGuard<'a, u8> {
        let until = Instant::now() + LINE_END;
        loop {
            let last = passed.lock();
            if *last == b'\n' || Instant::now() >= until {
                return last;
            }
            drop(last);
            std::thread::sleep(LOOK);
        }
    }

    /// Returns the text that moves to the start of a line. `is_start` is true if we are there, or `None` if this is not
    /// known.
    fn lead(&self, is_start: Option<bool>) -> String {
        match (is_start, &self.kind) {
            (Some(true), _) => String::new(),
            (None, Kind::Terminal) => match rustix::termios::tcgetwinsize(&self.sink) {
                Ok(size) if size.ws_col > 0 => format!("{}\r\x1b[K", " ".repeat(size.ws_col.into())),
                _ => "\n".to_owned(),
            },
            (None, Kind::Regular(file)) if ends_a_line(file) => String::new(),
            _ => "\n".to_owned(),
        }
    }

    /// Returns true if a write has room, after waiting up to `patience`.
    fn has_room(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        loop {
            let mut sinks = [PollFd::new(&self.sink, PollFlags::OUT)];
            let left = until.saturating_duration_since(Instant::now());
            match poll(&mut sinks, Timespec::try_from(left).ok().as_ref()) {
                Ok(1..) => return true,
                Err(rustix::io::Errno::INTR) => {}
                _ => return false,
            }
            if left.is_zero() {
                return false;
            }
        }
    }

    fn put(&self, bytes: &[u8]) -> bool {
        if self.is_closed.load(Ordering::Relaxed) {
            return false;
        }
        loop {
            match rustix::io::write(&self.sink, bytes) {
                Ok(_) => return true,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return false,
                Err(_) => {
                    self.is_closed.store(true, Ordering::Relaxed);
                    return false;
                }
            }
        }
    }
}

fn kind(sink: BorrowedFd<'_>) -> Kind {
    use std::os::fd::AsRawFd;
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    if rustix::termios::isatty(sink) {
        return if is_dumb { Kind::Other } else { Kind::Terminal };
    }
    let path = format!("/proc/self/fd/{}", sink.as_raw_fd());
    let is_regular = |path: &str| std::fs::metadata(path).is_ok_and(|meta| meta.is_file());
    match is_regular(&path).then(|| File::open(&path)) {
        Some(Ok(file)) => Kind::Regular(file),
        _ => Kind::Other,
    }
}

/// Returns true if the next byte of the file begins a line.
fn ends_a_line(file: &File) -> bool {
    let Ok(meta) = file.metadata() else { return false };
    let mut last = [0];
    match meta.size().checked_sub(1) {
        Some(at) => file.read_at(&mut last, at).is_ok_and(|count| count == 1) && last == *b"\n",
        None => true,
    }
}

#[cfg(test)]
#[path = "background_tests.rs"]
mod tests;
