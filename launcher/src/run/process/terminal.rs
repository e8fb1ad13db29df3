//! Hands the terminal to the child's process group if we are in its foreground, and takes it back, as a shell does for
//! its jobs.
//!
//! Ctrl-C and Ctrl-Z then go from the kernel to the child alone, and the child may read from the terminal.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;

use paceline_sidecar::host::process_group;
use rustix::process::Pid;
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// The controlling terminal.
#[derive(Debug)]
pub(crate) struct Terminal {
    tty: File,
    own: Pid,
}

impl Terminal {
    /// Returns the controlling terminal, if we have one and it supports our process group.
    pub(crate) fn ours() -> Option<Terminal> {
        let options = File::options()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOCTTY)
            .open("/dev/tty");
        Some(Terminal {
            tty: options.ok()?,
            own: process_group(std::process::id())?,
        })
    }

    /// Returns the terminal's descriptor if our group is in the foreground. In the background there is nothing to hand
    /// over.
    pub(crate) fn to_hand_over(&self) -> Option<BorrowedFd<'_>> {
        self.is_ours().then(|| self.tty.as_fd())
    }

    /// Returns true if our process group is in the foreground.
    pub(crate) fn is_ours(&self) -> bool {
        self.foreground() == Some(self.own)
    }

    /// Puts our group in the foreground again, if `group` is there.
    pub(crate) fn take_back(&self, group: Pid) {
        if self.foreground() == Some(group) {
            self.set(self.own);
        }
    }

    /// Puts the child's group in the foreground, if ours is there.
    pub(crate) fn give_to(&self, group: Pid) {
        if self.is_ours() {
            self.set(group);
        }
    }

    fn foreground(&self) -> Option<Pid> {
        tcgetpgrp(&self.tty).ok()
    }

    /// Sets the foreground group. SIGTTOU is blocked meanwhile, because from the background it would stop us.
    fn set(&self, group: Pid) {
        let before = mask(libc::SIG_BLOCK, &ttou());
        // Ignore an error. After a hangup, the terminal has no foreground group.
        let _ = tcsetpgrp(&self.tty, group);
        mask(libc::SIG_SETMASK, &before);
    }
}

/// Puts the calling process, which must be a group leader, in the foreground. It is called between fork and exec,
/// because a child that reads before its parent has handed over the terminal would be stopped.
pub(crate) fn take_in_child(tty: RawFd) -> io::Result<()> {
    let before = mask(libc::SIG_BLOCK, &ttou());
    // SAFETY: these are plain system calls on numbers. A failure leaves the child in the background, where it can still
    // run.
    unsafe { libc::tcsetpgrp(tty, libc::getpid()) };
    mask(libc::SIG_SETMASK, &before);
    Ok(())
}

fn ttou() -> libc::sigset_t {
    // SAFETY: sigset_t is plain memory, and sigemptyset fills it before it is read.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGTTOU);
        set
    }
}

fn mask(how: libc::c_int, set: &libc::sigset_t) -> libc::sigset_t {
    // SAFETY: both pointers are to valid sets of the right type. With a valid `how`, the call cannot fail.
    unsafe {
        let mut before = std::mem::zeroed();
        libc::pthread_sigmask(how, set, &mut before);
        before
    }
}
