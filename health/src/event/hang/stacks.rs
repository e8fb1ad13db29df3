//! Activity of stalled ranks: Python stacks and kernel state.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::id::Rank;

/// Most frames of a stack.
pub const MAX_FRAMES: usize = 16;
/// Path components of code that is not the user's own.
const LIBRARIES: [&str; 5] = [
    "/site-packages/",
    "/dist-packages/",
    "/lib/python",
    "<frozen ",
    // The hook.
    "paceline/_",
];
/// Most distinct activities of a rank's loader workers.
pub const MAX_WORKERS: usize = 4;

/// See [`crate::event::Event::Stacks`]. Ranks of a node that have the same activity are sent in one event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stacks {
    /// The ranks with this activity.
    pub ranks: Vec<Rank>,
    /// Restart count of their epoch.
    pub restart: u32,
    /// The main thread.
    pub main: Activity,
    /// Child processes that run Python, such as loader workers, or that are in an uninterruptible sleep.
    pub workers: Vec<WorkerActivity>,
}

/// Workers of a rank with the same activity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerActivity {
    /// Number of workers.
    pub count: u32,
    /// Their activity.
    pub activity: Activity,
}

/// What a thread is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// State in the kernel.
    pub state: ThreadState,
    /// Python frames, innermost first, at most [`MAX_FRAMES`].
    pub frames: Vec<StackFrame>,
    /// Index of the innermost frame of the user's own code, or `None` if there is none.
    pub own: Option<u8>,
    /// The system call in which it sleeps, with the file and its file system, for example `read of /data/x.bin (nfs4 at
    /// /data)`. Empty if it is not known or if the thread does not sleep.
    pub waits_in: Arc<str>,
    /// Why there are no frames. Empty if there are frames.
    pub missing: Arc<str>,
    /// The resource for which it sleeps.
    #[serde(default)]
    pub waits_for: WaitFor,
}

/// The resource for which a thread sleeps, according to its system call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitFor {
    /// The resource is not known, or the thread does not sleep.
    #[default]
    Unknown,
    /// A file on a local file system.
    LocalFile,
    /// A file on a network file system, or one served by a program (FUSE).
    NetworkFile,
    /// The GPU driver.
    GpuDriver,
    /// A pipe to or from a local process.
    Pipe,
    /// A socket.
    Socket,
    /// Another thread, through a lock, an event or a queue.
    Lock,
    /// A timer.
    Time,
    /// One of several of these.
    Any,
    /// The exit of a child process.
    Child,
}

/// One Python frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackFrame {
    /// The function's name.
    pub function: Arc<str>,
    /// The file's path.
    pub file: Arc<str>,
    /// The line. Zero if not known.
    pub line: u32,
}

impl StackFrame {
    /// Returns true if the frame is in the user's own code.
    pub fn is_own(&self) -> bool {
        is_own_code(&self.file)
    }
}

/// Returns true if a path is in the user's own code rather than in a library, Python or the hook.
pub fn is_own_code(file: &str) -> bool {
    !LIBRARIES.iter().any(|part| file.contains(part))
}

/// Prints as `data.py:88 in next_batch`.
impl fmt::Display for StackFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.rsplit('/').next().unwrap_or(&self.file);
        write!(f, "{file}:{} in {}", self.line, self.function)
    }
}

/// State of a thread; the letters are those of `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThreadState {
    /// R: running or runnable.
    Running,
    /// S: interruptible sleep.
    Sleeping,
    /// D: uninterruptible sleep, for example in storage that does not respond.
    Disk,
    /// T: stopped by a signal.
    Stopped,
    /// t: stopped by a debugger.
    Traced,
    /// Z, X: exited.
    Zombie,
    /// The state is not known.
    #[default]
    Unknown,
}

impl ThreadState {
    /// Converts the state's letter in `/proc/PID/stat`.
    pub fn from_letter(letter: &str) -> ThreadState {
        match letter {
            "R" => ThreadState::Running,
            "S" | "I" => ThreadState::Sleeping,
            "D" => ThreadState::Disk,
            "T" => ThreadState::Stopped,
            "t" => ThreadState::Traced,
            "Z" | "X" => ThreadState::Zombie,
            _ => ThreadState::Unknown,
        }
    }
}
