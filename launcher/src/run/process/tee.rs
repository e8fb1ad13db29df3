//! Lets the sidecar read steps from the command's output, without a change for the readers of this output.
//!
//! If the output goes to a file, the command writes the file directly, and the sidecar follows it. Otherwise the
//! command writes to memory (a memfd), and a thread of ours copies from there to the original destination. A pipe is
//! not used, because the command must never wait for a reader, and must continue if we die.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FallocateFlags, MemfdFlags, OFlags, fallocate, fcntl_getfl, fcntl_setfl, memfd_create};

use crate::config::StepLog;
use crate::output::Passed;

/// Number of bytes per copy. A writable pipe accepts this much without blocking (PIPE_BUF, pipe(7)).
const PIECE: usize = 4096;
/// Intervals between two checks for new output. The longer one is used after a while without any.
const QUICK: Duration = Duration::from_millis(10);
const SLOW: Duration = Duration::from_millis(100);
/// Up to this size, output is kept until it is read. Beyond it, the older half is dropped.
const MAX_BEHIND: u64 = 64 << 20;
/// Copied output is released in pieces of the first size. The last part, of the second size, is kept because the
/// sidecar may still read it.
const LET_GO: u64 = 4 << 20;
const KEPT: u64 = 1 << 20;
/// Time that the reader has for each piece after the command's end.
const LAST_WAIT: Duration = Duration::from_secs(60);

/// Connects a command's output with its readers. See the module.
#[derive(Debug)]
pub(crate) struct Tee {
    /// The path from which the sidecar reads.
    pub(crate) path: PathBuf,
    /// The command's stream that goes to `path`. `None` if it goes to a file anyway.
    stream: Option<(StepLog, File)>,
    /// True if the stream was a terminal, to which the command would write each line at once.
    was_terminal: bool,
    copier: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
    /// The state of the output that passes through us, if it does.
    pub(crate) passed: Option<Arc<Passed>>,
}

impl Tee {
    /// Prepares to read the steps that a command prints to `log`.
    ///
    /// # Errors
    /// If a system call fails. The command then runs without this.
    pub(crate) fn of(log: &StepLog) -> io::Result<Tee> {
        let own = match log {
            StepLog::File(path) => {
                return Ok(Tee {
                    path: std::path::absolute(path)?,
                    stream: None,
                    was_terminal: false,
                    copier: None,
                    passed: None,
                });
            }
            StepLog::Stdout => io::stdout().as_fd().try_clone_to_owned()?,
            StepLog::Stderr => io::stderr().as_fd().try_clone_to_owned()?,
        };
        let own = File::from(own);
        if own.metadata()?.is_file() {
            let number = if *log == StepLog::Stdout { 1 } else { 2 };
            return Ok(Tee {
                path: PathBuf::from(format!("/proc/{}/fd/{number}", std::process::id())),
                stream: None,
                was_terminal: false,
                copier: None,
                passed: None,
            });
        }
        let memory = memory()?;
        let was_terminal = own.is_terminal();
        let path = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd()));
        let over = Arc::new(AtomicBool::new(false));
        let (source, theirs) = (memory.try_clone()?, Arc::clone(&over));
        let passed = Passed::new(*log == StepLog::Stderr);
        let shared = Arc::clone(&passed);
        let copy = move || Copier::new(source, own, shared).run(&theirs);
        let thread = std::thread::Builder::new().name("output".into()).spawn(copy)?;
        Ok(Tee {
            path,
            stream: Some((log.clone(), memory)),
            was_terminal,
            copier: Some((over, thread)),
            passed: Some(passed),
        })
    }

    /// Connects the command's stream to the memory.
    ///
    /// # Errors
    /// If a system call fails.
    pub(crate) fn attach(&self, command: &mut std::process::Command) -> io::Result<()> {
        let Some((log, memory)) = &self.stream else {
            return Ok(());
        };
        let stream = Stdio::from(memory.try_clone()?);
        match log {
            StepLog::Stdout => command.stdout(stream),
            _ => command.stderr(stream),
        };
        // Disable Python's buffering, which it uses if its output is not a terminal. Otherwise lines would reach the
        // user late.
        if self.was_terminal && std::env::var_os("PYTHONUNBUFFERED").is_none() {
            command.env("PYTHONUNBUFFERED", "1");
        }
        Ok(())
    }

    /// Called when the command has ended. Copies the remaining output.
    pub(crate) fn finish(self) {
        if let Some((over, thread)) = self.copier {
            over.store(true, Ordering::Release);
            // Ignore an error, because a thread that panicked has ended too.
            let _ = thread.join();
        }
    }
}

/// Creates a file in memory. Writers append, so that several processes do not overwrite each other.
fn memory() -> io::Result<File> {
    let memory: OwnedFd = memfd_create("paceline-output", MemfdFlags::CLOEXEC)?;
    fcntl_setfl(&memory, fcntl_getfl(&memory)? | OFlags::APPEND)?;
    Ok(File::from(memory))
}

struct Copier {
    source: File,
    sink: File,
    at: u64,
    let_go: u64,
    /// True if the reader has closed its end.
    is_closed: bool,
    passed: Arc<Passed>,
}

impl Copier {
    fn new(source: File, sink: File, passed: Arc<Passed>) -> Copier {
        Copier {
            source,
            sink,
            at: 0,
            let_go: 0,
            is_closed: false,
            passed,
        }
    }

    fn run(mut self, over: &AtomicBool) {
        let mut moved = Instant::now();
        loop {
            // Check for the end before reading, because no more output arrives after it.
            let is_over = over.load(Ordering::Acquire);
            let size = self.source.metadata().map_or(self.at, |meta| meta.len());
            if self.at >= size {
                if is_over {
                    return;
                }
                let pause = if moved.elapsed() < Duration::from_secs(1) {
                    QUICK
                } else {
                    SLOW
                };
                std::thread::sleep(pause);
                continue;
            }
            self.leave_out(size);
            if self.step() {
                moved = Instant::now();
            } else if is_over && moved.elapsed() > LAST_WAIT {
                return;
            }
            self.release();
        }
    }

    /// Copies a piece. Returns false if the reader does not accept it now.
    fn step(&mut self) -> bool {
        let mut piece = [0; PIECE];
        let count = match self.source.read_at(&mut piece, self.at) {
            Ok(count) if count > 0 => count,
            _ => return false,
        };
        if self.is_closed {
            self.at += count as u64;
            return true;
        }
        let mut sinks = [PollFd::new(&self.sink, PollFlags::OUT)];
        let wait = Timespec::try_from(SLOW).ok();
        if !matches!(poll(&mut sinks, wait.as_ref()), Ok(1..)) {
            return false;
        }
        // Hold the lock, because our own lines must not split the piece.
        let mut last = self.passed.lock();
        match self.sink.write(piece.get(..count).unwrap_or_default()) {
            Ok(written) => {
                self.at += written as u64;
                *last = written.checked_sub(1).map_or(*last, |at| piece[at]);
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
                ) =>
            {
                return false;
            }
            Err(_) => self.is_closed = true,
        }
        true
    }

    /// Drops output if the reader is too slow, to limit the memory.
    fn leave_out(&mut self, size: u64) {
        if size - self.at > MAX_BEHIND {
            self.at = size - MAX_BEHIND / 2;
        }
    }

    /// Releases output that was copied a while ago.
    fn release(&mut self) {
        let done = self.at.saturating_sub(KEPT);
        if done.saturating_sub(self.let_go) < LET_GO {
            return;
        }
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // Ignore an error: if the memory cannot be released, it is kept.
        let _ = fallocate(&self.source, hole, self.let_go, done - self.let_go);
        self.let_go = done;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn everything_is_copied_and_memory_is_let_go() {
        let mut memory = memory().unwrap();
        let (read, write) = rustix::pipe::pipe().unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let (source, theirs) = (memory.try_clone().unwrap(), Arc::clone(&over));
        let copier = std::thread::spawn(move || {
            Copier::new(source, File::from(write), Passed::new(false)).run(&theirs)
        });
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            File::from(read).read_to_end(&mut all).unwrap();
            all
        });
        let text: Vec<u8> = (0..3_000_000_u32)
            .flat_map(|number| number.to_le_bytes())
            .collect();
        for piece in text.chunks(100_000) {
            memory.write_all(piece).unwrap();
        }
        over.store(true, Ordering::Release);
        copier.join().unwrap();
        assert!(reader.join().unwrap() == text);
        let kept = std::os::unix::fs::MetadataExt::blocks(&memory.metadata().unwrap()) * 512;
        assert!(kept < 6 << 20, "{kept} bytes are kept of {}", text.len());
    }

    #[test]
    fn a_reader_that_stops_holds_up_nobody() {
        let mut memory = memory().unwrap();
        let (read, write) = rustix::pipe::pipe().unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let (source, theirs) = (memory.try_clone().unwrap(), Arc::clone(&over));
        let copier = std::thread::spawn(move || {
            Copier::new(source, File::from(write), Passed::new(false)).run(&theirs)
        });
        let begun = Instant::now();
        for _ in 0..20 {
            memory.write_all(&vec![b'x'; 1 << 20]).unwrap();
        }
        assert!(begun.elapsed() < Duration::from_secs(10));
        drop(read);
        over.store(true, Ordering::Release);
        copier.join().unwrap();
    }
}
