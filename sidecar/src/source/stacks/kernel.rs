//! What a thread does, according to the kernel: its state, the system call in which it sleeps, and the file system
//! concerned.

use std::path::{Path, PathBuf};

use paceline_health::event::{ThreadState, WaitFor};
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};

use super::parse::short;
use crate::source::host::files::Files;

/// The kernel's information about a process's main thread.
#[derive(Debug, PartialEq, Eq)]
pub struct KernelView {
    pub state: ThreadState,
    /// Start time in clock ticks since boot.
    pub start_time: u64,
    /// The wait, such as `read of /data/x.bin (nfs4 at /data)`; empty if the thread does not sleep or the wait is
    /// unknown.
    pub waits_in: String,
    pub waits_for: WaitFor,
}

/// Signals of a process as bit masks: those that it handles, and those that its main thread blocks.
#[derive(Clone, Copy, Debug)]
pub struct Signals {
    pub caught: u64,
    pub blocked: u64,
}

/// Types of network file systems. The types of FUSE begin with `fuse`.
const NETWORK_FILE_SYSTEMS: [&str; 14] = [
    "nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "beegfs", "gpfs", "wekafs", "9p", "virtiofs", "afs",
    "orangefs", "panfs",
];
/// Types of local FUSE file systems, which containers use.
const LOCAL_FUSE: [&str; 2] = ["fuse.fuse-overlayfs", "fuse.lxcfs"];
/// Types of file systems that are not storage.
const NO_STORAGE: [&str; 4] = ["devtmpfs", "proc", "sysfs", "devpts"];
/// Beginnings of the names of kernel functions in which a thread waits for pages of a file. They are needed because a
/// page fault is no system call.
const WAITS_FOR_PAGES: [&str; 7] = [
    "folio_wait",
    "wait_on_page",
    "io_schedule",
    "rpc_wait",
    "nfs_",
    "fuse_",
    "request_wait_answer",
];

/// Returns the name of a system call, by its number on this machine, and what a thread waits for in it. The latter is
/// `None` if it depends on the file in the call's first argument.
fn name_of(call: i64) -> Option<(&'static str, Option<WaitFor>)> {
    Some(match call {
        libc::SYS_read | libc::SYS_pread64 | libc::SYS_readv => ("read", None),
        libc::SYS_write | libc::SYS_pwrite64 | libc::SYS_writev => ("write", None),
        libc::SYS_fsync | libc::SYS_fdatasync => ("fsync", None),
        libc::SYS_getdents64 => ("directory listing", None),
        libc::SYS_recvfrom | libc::SYS_recvmsg => ("recv", None),
        libc::SYS_sendto | libc::SYS_sendmsg => ("send", None),
        libc::SYS_connect => ("connect", None),
        libc::SYS_flock => ("flock", None),
        libc::SYS_ioctl => ("ioctl", None),
        libc::SYS_openat => ("open", Some(WaitFor::Unknown)),
        libc::SYS_futex => ("lock (futex)", Some(WaitFor::Lock)),
        libc::SYS_clock_nanosleep | libc::SYS_nanosleep => ("sleep", Some(WaitFor::Time)),
        libc::SYS_ppoll | libc::SYS_pselect6 | libc::SYS_epoll_pwait => ("poll", Some(WaitFor::Any)),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll | libc::SYS_select | libc::SYS_epoll_wait => ("poll", Some(WaitFor::Any)),
        libc::SYS_wait4 | libc::SYS_waitid => ("wait for a child", Some(WaitFor::Child)),
        _ => return None,
    })
}

/// Reads the state of a process's main thread. Returns `None` if the process is gone.
pub fn look(files: &mut Files, pid: u32) -> Option<KernelView> {
    let stat = files.text(format!("proc/{pid}/stat")).ok()?;
    // The process name may contain any characters, so parse from its last parenthesis on.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = ThreadState::from_letter(fields.next()?);
    let start_time = fields.nth(18)?.parse().ok()?;
    let sleeps = matches!(state, ThreadState::Sleeping | ThreadState::Disk);
    let waits = if sleeps { waits(files, pid) } else { None };
    let (waits_in, waits_for) = waits.unwrap_or_default();
    Some(KernelView {
        state,
        start_time,
        waits_in,
        waits_for,
    })
}

/// Returns a process's handled and blocked signals.
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

/// Returns the system call in which the thread sleeps, or else the kernel function, and what it waits for.
fn waits(files: &mut Files, pid: u32) -> Option<(String, WaitFor)> {
    let Some((number, argument)) = files.text(format!("proc/{pid}/syscall")).ok().and_then(call) else {
        // The thread is in a page fault, or we may not read other processes' system calls.
        let place = files.text(format!("proc/{pid}/wchan")).ok()?;
        let is_page = WAITS_FOR_PAGES.iter().any(|begin| place.starts_with(begin));
        let what = if is_page {
            WaitFor::LocalFile
        } else {
            WaitFor::Unknown
        };
        return (!place.is_empty() && place != "0").then(|| (format!("{place} (kernel)"), what));
    };
    let Some((name, what)) = name_of(number) else {
        return Some((format!("system call {number}"), WaitFor::Unknown));
    };
    if let Some(what) = what {
        return Some((name.to_owned(), what));
    }
    let link = files.at(format!("proc/{pid}/fd/{argument}"));
    Some(match std::fs::read_link(&link) {
        Ok(path) => {
            let (file, what) = described(files, pid, &path);
            // Check this only for local files, because the server of a remote file may not respond.
            let is_pipe = what == WaitFor::LocalFile && is_fifo(&link);
            let what = if is_pipe { WaitFor::Pipe } else { what };
            (format!("{name} of {file}"), what)
        }
        Err(_) => (name.to_owned(), WaitFor::Unknown),
    })
}

/// Parses `/proc/PID/syscall`, which has the number and arguments in hexadecimal, or `running` if the thread is in no
/// system call. See <https://docs.kernel.org/filesystems/proc.html>.
fn call(text: &str) -> Option<(i64, u64)> {
    let mut words = text.split_ascii_whitespace();
    let number = words.next()?.parse().ok().filter(|number| *number >= 0)?;
    let argument = words.next()?.strip_prefix("0x")?;
    Some((number, u64::from_str_radix(argument, 16).ok()?))
}

/// Returns true if the file is a pipe, whatever its name, as far as this is known without contacting a file server.
fn is_fifo(link: &Path) -> bool {
    let kind = statx(CWD, link, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE);
    kind.is_ok_and(|stat| FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Fifo)
}

/// Returns a description of a file with its file system, or of a pipe or socket, and what a thread that sleeps there
/// waits for.
fn described(files: &mut Files, pid: u32, path: &Path) -> (String, WaitFor) {
    let name = short(&path.to_string_lossy());
    if let Some((kind, _)) = name.split_once(":[") {
        let what = match kind {
            "pipe" => WaitFor::Pipe,
            "socket" => WaitFor::Socket,
            _ => WaitFor::Unknown,
        };
        return (format!("a {kind}"), what);
    }
    let mounts = files.text(format!("proc/{pid}/mountinfo"));
    let Some((point, kind)) = mounts.ok().and_then(|text| mount_of(text, path)) else {
        return (name.to_string(), WaitFor::Unknown);
    };
    let what = match () {
        () if name.starts_with("/dev/nvidia") => WaitFor::GpuDriver,
        () if NO_STORAGE.contains(&&*kind) => WaitFor::Unknown,
        () if LOCAL_FUSE.contains(&&*kind) => WaitFor::LocalFile,
        () if kind.starts_with("fuse") || NETWORK_FILE_SYSTEMS.contains(&&*kind) => WaitFor::NetworkFile,
        () => WaitFor::LocalFile,
    };
    (format!("{name} ({kind} at {})", point.display()), what)
}

/// Returns the mount point and type of the mount that contains `path`. A line is `36 35 98:0 /root /mnt rw,noatime
/// master:1 - ext4 /dev/x rw`.
fn mount_of(text: &str, path: &Path) -> Option<(PathBuf, String)> {
    let mounts = text.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let point = before.split(' ').nth(4)?.replace("\\040", " ");
        Some((PathBuf::from(point), after.split(' ').next()?.to_owned()))
    });
    // Of two mounts at the same point, take the later one, because it hides the earlier one.
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
        let KernelView {
            waits_in, waits_for, ..
        } = seen.unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(
            (&*waits_in, waits_for) == ("read of a pipe", WaitFor::Pipe) || waits_in.ends_with(" (kernel)"),
            "{waits_in} {waits_for:?}"
        );
        assert_eq!(look(&mut files, child.id()), None);
    }
}
