//! What the kernel says a thread does: its state, and where it sleeps in a system call, on which file system.

use std::path::{Path, PathBuf};

use paceline_health::event::ThreadState;

use super::parse::short;
use crate::source::host::files::Files;

/// A process's main thread, as the kernel knows it.
#[derive(Debug, PartialEq, Eq)]
pub struct KernelView {
    pub state: ThreadState,
    /// Since the machine started, clock ticks.
    pub start_time: u64,
    /// `read of /data/x.bin (nfs4 at /data)`; empty: not known, or it does not sleep.
    pub waits_in: String,
}

/// Signals of a process, as bits: handled, and blocked by its main thread.
#[derive(Clone, Copy, Debug)]
pub struct Signals {
    pub caught: u64,
    pub blocked: u64,
}

/// A system call that tells what is waited for, by its number on this machine; with `true` it takes a file first.
fn name_of(call: i64) -> Option<(&'static str, bool)> {
    Some(match call {
        libc::SYS_read | libc::SYS_pread64 | libc::SYS_readv => ("read", true),
        libc::SYS_write | libc::SYS_pwrite64 | libc::SYS_writev => ("write", true),
        libc::SYS_fsync | libc::SYS_fdatasync => ("fsync", true),
        libc::SYS_getdents64 => ("directory listing", true),
        libc::SYS_recvfrom | libc::SYS_recvmsg => ("recv", true),
        libc::SYS_sendto | libc::SYS_sendmsg => ("send", true),
        libc::SYS_connect => ("connect", true),
        libc::SYS_flock => ("flock", true),
        libc::SYS_ioctl => ("ioctl", true),
        libc::SYS_openat => ("open", false),
        libc::SYS_futex => ("lock (futex)", false),
        libc::SYS_clock_nanosleep | libc::SYS_nanosleep => ("sleep", false),
        libc::SYS_ppoll | libc::SYS_pselect6 | libc::SYS_epoll_pwait => ("poll", false),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll | libc::SYS_select | libc::SYS_epoll_wait => ("poll", false),
        libc::SYS_wait4 | libc::SYS_waitid => ("wait for a child", false),
        _ => return None,
    })
}

/// Looks at the main thread of a process; `None`: it is not there.
pub fn look(files: &mut Files, pid: u32) -> Option<KernelView> {
    let stat = files.text(format!("proc/{pid}/stat")).ok()?;
    // The name may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = ThreadState::from_letter(fields.next()?);
    let start_time = fields.nth(18)?.parse().ok()?;
    let sleeps = matches!(state, ThreadState::Sleeping | ThreadState::Disk);
    let waits_in = if sleeps { waits_in(files, pid) } else { None };
    Some(KernelView {
        state,
        start_time,
        waits_in: waits_in.unwrap_or_default(),
    })
}

/// What a process does with signals.
pub fn signals(files: &mut Files, pid: u32) -> Option<Signals> {
    let status = files.text(format!("proc/{pid}/status")).ok()?;
    let bits = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        u64::from_str_radix(line.trim(), 16).ok()
    };
    Some(Signals {
        caught: bits("SigCgt:")?,
        blocked: bits("SigBlk:")?,
    })
}

/// The system call in which it sleeps, or else the kernel's function.
fn waits_in(files: &mut Files, pid: u32) -> Option<String> {
    let Some((number, argument)) = files.text(format!("proc/{pid}/syscall")).ok().and_then(call) else {
        // Where other processes may not be looked at that closely.
        let place = files.text(format!("proc/{pid}/wchan")).ok()?;
        return (!place.is_empty() && place != "0").then(|| format!("{place} (kernel)"));
    };
    let Some((name, takes_file)) = name_of(number) else {
        return Some(format!("system call {number}"));
    };
    let file = takes_file
        .then(|| files.at(format!("proc/{pid}/fd/{argument}")))
        .and_then(|link| std::fs::read_link(link).ok());
    Some(match file {
        Some(path) => format!("{name} of {}", described(files, pid, &path)),
        None => name.to_owned(),
    })
}

/// `/proc/PID/syscall`: number and arguments, in hexadecimal; `running` where it is in none.
/// <https://docs.kernel.org/filesystems/proc.html>
fn call(text: &str) -> Option<(i64, u64)> {
    let mut words = text.split_ascii_whitespace();
    let number = words.next()?.parse().ok().filter(|number| *number >= 0)?;
    let argument = words.next()?.strip_prefix("0x")?;
    Some((number, u64::from_str_radix(argument, 16).ok()?))
}

/// A file with its file system; a pipe or socket as what it is.
fn described(files: &mut Files, pid: u32, path: &Path) -> String {
    let name = short(&path.to_string_lossy());
    if let Some((kind, _)) = name.split_once(":[") {
        return format!("a {kind}");
    }
    let mounts = files.text(format!("proc/{pid}/mountinfo"));
    match mounts.ok().and_then(|text| mount_of(text, path)) {
        Some((point, kind)) => format!("{name} ({kind} at {})", point.display()),
        None => name.to_string(),
    }
}

/// The mount that holds `path`: where, and of which type.
/// `36 35 98:0 /root /mnt rw,noatime master:1 - ext4 /dev/x rw`
fn mount_of(text: &str, path: &Path) -> Option<(PathBuf, String)> {
    let mounts = text.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let point = before.split(' ').nth(4)?.replace("\\040", " ");
        Some((PathBuf::from(point), after.split(' ').next()?.to_owned()))
    });
    // Of two at one place the later one lies on top.
    mounts
        .filter(|(point, _)| path.starts_with(point))
        .max_by_key(|(point, _)| point.components().count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_of_a_file() {
        let text = "22 1 254:0 / / rw - ext4 /dev/vda rw\n\
                    36 22 0:40 / /data rw shared:1 master:2 - nfs4 host:/x rw\n\
                    37 22 0:41 / /a\\040b rw - fuse.s3 s3 rw\n\
                    nonsense";
        for (path, point, kind) in [
            ("/data/x.bin", "/data", "nfs4"),
            ("/database", "/", "ext4"),
            ("/a b/c", "/a b", "fuse.s3"),
        ] {
            assert_eq!(
                mount_of(text, Path::new(path)),
                Some((point.into(), kind.into())),
                "{path}"
            );
        }
        assert_eq!(mount_of("", Path::new("/x")), None);
    }

    #[test]
    fn a_system_call() {
        assert_eq!(call("0 0x3 0x7f 0x1 0x0 0x0 0x0 0x7ffd 0x7f2a"), Some((0, 3)));
        for text in ["running", "-1 0x7ffd 0x7f2a", "", "0"] {
            assert_eq!(call(text), None, "{text}");
        }
    }

    #[test]
    fn a_process_that_sleeps() {
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut files = Files::new(Path::new("/"));
        let seen = (0..500).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            look(&mut files, child.id()).filter(|seen| seen.state == ThreadState::Sleeping)
        });
        let waits_in = seen.unwrap().waits_in;
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(
            waits_in == "read of a pipe" || waits_in.ends_with(" (kernel)"),
            "{waits_in}"
        );
        assert_eq!(look(&mut files, child.id()), None);
    }
}
