//! Values from the kernel: clocks, processes, our own CPU time and memory. The other modules take them as plain
//! numbers, so that tests can choose them.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::OFlags;
use rustix::process::{Pid, Resource, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

pub use paceline_ring::monotonic_ns;

/// Wall-clock time in milliseconds since 1970, for display.
pub fn unix_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |span| span.as_millis() as u64)
}

/// A unique number of this incarnation of a sidecar: nanoseconds since 1970, mixed with the process ID.
pub fn incarnation() -> u64 {
    let ns = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(1, |span| span.as_nanos() as u64);
    (ns ^ u64::from(std::process::id())).max(1)
}

/// CPU time of this process, nanoseconds.
pub fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    (time.tv_sec as u64)
        .saturating_mul(1_000_000_000)
        .saturating_add(time.tv_nsec as u64)
}

/// Resident memory of this process in bytes; zero if unknown.
pub fn rss_bytes() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|statm| statm.split_ascii_whitespace().nth(1)?.parse::<u64>().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}

/// Raises the limit of open files and sockets to the hard limit and returns the limit now in force.
pub fn raise_descriptors() -> u64 {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let asked = limit.maximum;
        limit.current = asked;
        // On failure, the previous limit still applies.
        if setrlimit(Resource::Nofile, limit).is_err() {
            limit = getrlimit(Resource::Nofile);
        }
    }
    limit.current.unwrap_or(u64::MAX)
}

/// Reads the first `most` bytes of a file in a directory that others can write to. Does not follow a symbolic link, and
/// does not block on a pipe.
///
/// # Errors
/// If the file cannot be read or is not UTF-8.
pub fn read_plain(path: &Path, most: u64) -> io::Result<String> {
    let mut text = String::new();
    open_plain(path)?.take(most).read_to_string(&mut text)?;
    Ok(text)
}

/// Like [`read_plain`], but for a binary file.
///
/// # Errors
/// If the file cannot be read.
pub fn read_plain_bytes(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_plain(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Like [`read_plain`], but returns the complete lines in the last `most` bytes, oldest first. Replaces invalid UTF-8.
///
/// # Errors
/// If the file cannot be read.
pub fn read_last_lines(path: &Path, most: u64) -> io::Result<String> {
    let mut file = open_plain(path)?;
    let skipped = file.metadata()?.len().saturating_sub(most);
    if skipped > 0 {
        // Start one byte earlier: if that byte is a newline, the tail begins with a complete line.
        file.seek(SeekFrom::Start(skipped - 1))?;
    }
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    let first = match skipped {
        0 => 0,
        _ => bytes
            .iter()
            .position(|byte| *byte == b'\n')
            .map_or(bytes.len(), |end| end + 1),
    };
    Ok(String::from_utf8_lossy(&bytes[first..]).into_owned())
}

fn open_plain(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    File::options()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)
}

/// ID of this boot of the machine; `None` if unknown.
pub fn boot_id() -> Option<String> {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .ok()
        .map(|id| id.trim().to_owned())
}

/// The host's name.
pub fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// A process, identified by its ID and its start time, because IDs are reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    pid: u32,
    /// Start time in clock ticks since boot; zero if the process had already exited.
    started: u64,
}

impl Process {
    /// Identifies the process that has this ID now.
    pub fn of(pid: u32) -> Process {
        Process {
            pid,
            started: running_since(pid).unwrap_or(0),
        }
    }

    /// Returns a text that [`Process::read`] parses.
    pub fn words(&self) -> String {
        format!("{} {}", self.pid, self.started)
    }

    /// Parses the text of [`Process::words`]. The ID may belong to another process by now.
    pub fn read(words: &str) -> Option<Process> {
        let (pid, started) = words.trim().split_once(' ')?;
        Some(Process {
            pid: pid.parse().ok()?,
            started: started.parse().ok()?,
        })
    }

    /// Returns true if the process is still running. A zombie does not count as running.
    pub fn is_alive(&self) -> bool {
        self.started != 0 && running_since(self.pid) == Some(self.started)
    }
}

/// Returns the process group of a process; `None` if the process has exited, or if its group is outside our PID
/// namespace. The kernel reports group and session 0 for such a process, for example one started by `nsenter` or by a
/// container's first process. [`Pid`] cannot hold 0, so rustix's `getpgid`, `getpgrp` and `getsid` must not be called
/// for it.
pub fn process_group(pid: u32) -> Option<Pid> {
    Stat::of(pid)?.group
}

/// Returns the session of a process, with the same exceptions as [`process_group`].
pub fn session(pid: u32) -> Option<Pid> {
    Stat::of(pid)?.session
}

fn running_since(pid: u32) -> Option<u64> {
    let stat = Stat::of(pid)?;
    (!stat.has_ended).then_some(stat.started)
}

/// A parsed line of /proc/PID/stat.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    has_ended: bool,
    group: Option<Pid>,
    session: Option<Pid>,
    /// Start time in clock ticks since boot.
    started: u64,
}

impl Stat {
    fn of(pid: u32) -> Option<Stat> {
        Stat::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Parses the line from its last parenthesis on, because the process name in parentheses may contain any
    /// characters.
    fn parse(line: &str) -> Option<Stat> {
        let mut fields = line.rsplit_once(')')?.1.split_ascii_whitespace();
        let state = fields.next()?;
        let _parent = fields.next()?;
        let mut id = || Some(Pid::from_raw(fields.next()?.parse().ok()?));
        let (group, session) = (id()?, id()?);
        Some(Stat {
            has_ended: matches!(state, "Z" | "X" | "x"),
            group,
            session,
            started: fields.nth(15)?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;

    use super::*;

    #[test]
    fn processes() {
        assert!(Process::of(std::process::id()).is_alive());
        let me = Process::of(std::process::id()).words();
        assert!(Process::read(&me).unwrap().is_alive());
        assert!(!Process::read(&format!("{me}0")).unwrap().is_alive());
        assert!(Process::read("1").is_none());
        assert!(!Process::of(0).is_alive());
        let mut child = std::process::Command::new("true");
        let mut child = child.process_group(0).spawn().unwrap();
        let process = Process::of(child.id());
        assert_eq!(process_group(child.id()), Some(Pid::from_child(&child)));
        assert_eq!(session(child.id()), session(std::process::id()));
        child.wait().unwrap();
        assert!(!process.is_alive());
    }

    #[test]
    fn what_stat_says() {
        let line = |name: &str, state: &str, ids: &str| {
            format!("7 ({name}) {state} 1 {ids} 0 -1 4194304 100 0 0 0 1 2 0 0 20 0 1 0 4321 9000 300")
        };
        let stat = |has_ended, ids: [i32; 2]| {
            let [group, session] = ids.map(Pid::from_raw);
            let started = 4321;
            Some(Stat {
                has_ended,
                group,
                session,
                started,
            })
        };
        assert_eq!(Stat::parse(&line("a) Z b", "S", "8 9")), stat(false, [8, 9]));
        assert_eq!(Stat::parse(&line("a", "Z", "8 9")), stat(true, [8, 9]));
        assert_eq!(Stat::parse(&line("a", "R", "0 0")), stat(false, [0, 0]));
        assert_eq!(Stat::parse("7 (a"), None);
    }

    #[test]
    fn the_last_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        fs::write(&path, "one\ntwo\nthr\u{e9}e\nhalf").unwrap();
        for (most, wanted) in [
            (0, ""),
            (4, "half"),
            (10, "half"),
            (11, "thr\u{e9}e\nhalf"),
            (14, "thr\u{e9}e\nhalf"),
            (1000, "one\ntwo\nthr\u{e9}e\nhalf"),
        ] {
            assert_eq!(read_last_lines(&path, most).unwrap(), wanted, "{most}");
        }
        let pipe = dir.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        assert_eq!(read_last_lines(&pipe, 10).unwrap(), "", "nobody waits for it");
        std::os::unix::fs::symlink(&path, dir.path().join("link")).unwrap();
        assert!(read_last_lines(&dir.path().join("link"), 10).is_err());
    }

    #[test]
    fn own_cost() {
        assert!(cpu_ns() > 0 && rss_bytes() > 100_000);
        assert!(incarnation() > 0 && !hostname().is_empty());
    }
}
