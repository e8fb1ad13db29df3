//! What ranks that do not move are doing: Python stacks, and what the kernel says.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::id::Rank;

/// Most frames of a stack.
pub const MAX_FRAMES: usize = 16;
/// Parts of the paths of code that is not the user's own.
const LIBRARIES: [&str; 5] = [
    "/site-packages/",
    "/dist-packages/",
    "/lib/python",
    "<frozen ",
    // The hook.
    "paceline/_",
];
/// Most different activities of a rank's loader workers.
pub const MAX_WORKERS: usize = 4;

/// See [`crate::event::Event::Stacks`]. Ranks of a node that do the same share an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stacks {
    /// Who does it.
    pub ranks: Vec<Rank>,
    /// Their restart count.
    pub restart: u32,
    /// The main thread.
    pub main: Activity,
    /// Its children that run Python, as loader workers do, or that are in an uninterruptible sleep.
    pub workers: Vec<WorkerActivity>,
}

/// Workers of a rank that do the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerActivity {
    /// How many.
    pub count: u32,
    /// What they do.
    pub activity: Activity,
}

/// What a thread is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// As the kernel says.
    pub state: ThreadState,
    /// Python frames, innermost first, at most [`MAX_FRAMES`].
    pub frames: Vec<StackFrame>,
    /// Which of them is the innermost one of the user's own code; `None`: none is.
    pub own: Option<u8>,
    /// The system call in which it sleeps, with the file and its file system: `read of /data/x.bin (nfs4 at /data)`;
    /// empty: not known, or it does not sleep.
    pub waits_in: Arc<str>,
    /// Why there are no frames; empty: there are.
    pub missing: Arc<str>,
    /// What it sleeps for.
    #[serde(default)]
    pub waits_for: WaitFor,
}

/// What a thread sleeps for, as far as its system call tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitFor {
    /// Not known, or it does not sleep.
    #[default]
    Unknown,
    /// A file on a file system of this machine.
    LocalFile,
    /// A file on a file system that other machines serve, or a program (FUSE).
    NetworkFile,
    /// The GPU's driver.
    GpuDriver,
    /// Data from or to a process of this machine, through a pipe.
    Pipe,
    /// Data from or to a socket.
    Socket,
    /// Another thread: a lock, an event, a queue.
    Lock,
    /// A time.
    Time,
    /// One of several of these.
    Any,
    /// The end of a process that it started.
    Child,
}

/// One Python frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackFrame {
    /// The function's name.
    pub function: Arc<str>,
    /// The file's path.
    pub file: Arc<str>,
    /// The line; zero: not known.
    pub line: u32,
}

impl StackFrame {
    /// Whether it is the user's own code.
    pub fn is_own(&self) -> bool {
        is_own_code(&self.file)
    }
}

/// Whether a file, by its path, is the user's own: of no library, not of Python, not of the hook.
pub fn is_own_code(file: &str) -> bool {
    !LIBRARIES.iter().any(|part| file.contains(part))
}

/// `data.py:88 in next_batch`.
impl fmt::Display for StackFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.rsplit('/').next().unwrap_or(&self.file);
        write!(f, "{file}:{} in {}", self.line, self.function)
    }
}

/// State of a thread, by the letters of `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThreadState {
    /// R: it runs, or is ready to.
    Running,
    /// S: it sleeps until something happens, a signal included.
    Sleeping,
    /// D: it sleeps and takes no signal, as it does in storage that does not respond.
    Disk,
    /// T, t: stopped by a signal or a debugger.
    Stopped,
    /// Z, X: it has ended.
    Zombie,
    /// Not known.
    #[default]
    Unknown,
}

impl ThreadState {
    /// By its letter.
    pub fn from_letter(letter: &str) -> ThreadState {
        match letter {
            "R" => ThreadState::Running,
            "S" | "I" => ThreadState::Sleeping,
            "D" => ThreadState::Disk,
            "T" | "t" => ThreadState::Stopped,
            "Z" | "X" => ThreadState::Zombie,
            _ => ThreadState::Unknown,
        }
    }
}
