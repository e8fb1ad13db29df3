//! Determines whether the process that writes a ring is alive.

use std::fs::File;

use rustix::process::{Flock, FlockType, fcntl_getlk};

use crate::host::Process;

/// How this is determined.
#[derive(Debug)]
pub(super) enum Life {
    /// By the process ID in the ring's header, if the process is visible from here.
    Seen(Process),
    /// By the lock that the process holds on its ring as long as it lives. This is used for another container, where
    /// process IDs differ.
    Lock(File),
}

impl Life {
    /// Uses the process ID of the writer.
    pub(super) fn of(pid: u32) -> Life {
        Life::Seen(Process::of(pid))
    }

    pub(super) fn is_alive(&self) -> bool {
        match self {
            Life::Seen(process) => process.is_alive(),
            // After an error, assume that the process is alive.
            Life::Lock(file) => fcntl_getlk(file, &write_lock()).map_or(true, |lock| lock.is_some()),
        }
    }

    /// Returns the process ID in our namespace, if the process is visible. `pid` is the ID that the process itself
    /// reports.
    pub(super) fn number(&self, pid: u32) -> Option<u32> {
        match self {
            Life::Seen(_) => Some(pid),
            // The kernel reports ID 0 for a process in a namespace that is not visible here (fcntl(2)).
            Life::Lock(file) => {
                let holder = fcntl_getlk(file, &write_lock()).ok()??.pid?;
                u32::try_from(holder.as_raw_nonzero().get()).ok()
            }
        }
    }
}

fn write_lock() -> Flock {
    Flock::from(FlockType::WriteLock)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_lock_says_who_lives() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1.ring");
        std::fs::write(&path, "ring").unwrap();
        let open = || File::options().read(true).write(true).open(&path).unwrap();
        let life = Life::Lock(open());
        assert!(!life.is_alive() && life.number(7).is_none());
        let script = "import fcntl, sys\nfile = open(sys.argv[1], 'r+')\nfcntl.lockf(file, fcntl.LOCK_EX)\nprint('locked', flush=True)\nsys.stdin.read()";
        let mut child = Command::new("python3")
            .args(["-c", script])
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "locked\n");
        assert!(life.is_alive());
        assert_eq!(
            life.number(7),
            Some(child.id()),
            "its number as we see it, not as it says"
        );
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!life.is_alive());
    }
}
