//! On a real terminal, the command must be in the foreground, so that it gets keys as if it had been started alone.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::launched::{Place, until};

/// Starts a program as the session leader of a new terminal. Returns the terminal and the program.
pub fn begin(mut command: Command) -> (File, Child) {
    let keys = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&keys).unwrap();
    unlockpt(&keys).unwrap();
    let name = ptsname(&keys, Vec::new()).unwrap();
    let screen = open(
        name,
        OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .unwrap();
    let copy = |fd: &OwnedFd| Stdio::from(fd.try_clone().unwrap());
    command
        .stdin(copy(&screen))
        .stdout(copy(&screen))
        .stderr(copy(&screen));
    // SAFETY: two async-signal-safe system calls (signal-safety(7)), as required between fork and exec.
    unsafe {
        command.pre_exec(|| {
            rustix::process::setsid()?;
            rustix::process::ioctl_tiocsctty(std::io::stdin())?;
            Ok(())
        });
    }
    let child = command.spawn().unwrap();
    (File::from(keys), child)
}

/// A user at a terminal.
pub struct Typed {
    keys: File,
    screen: Receiver<String>,
    /// The output so far.
    pub seen: String,
    child: Child,
}

impl Typed {
    fn start(place: &Place, script: &str) -> Typed {
        Typed::start_as(place.shell(&["--quiet"], script))
    }

    /// Starts any command of the program.
    pub fn start_as(command: Command) -> Typed {
        let (keys, child) = begin(command);
        let (sender, screen) = channel();
        let mut reader = keys.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 1024];
            // Ends at an error, which means that the last process has closed the terminal.
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                let _ = sender.send(String::from_utf8_lossy(&buffer[..count]).into_owned());
            }
        });
        Typed {
            keys,
            screen,
            seen: String::new(),
            child,
        }
    }

    /// Polls until the text is on the screen.
    pub fn until_shown(&mut self, text: &str) {
        until(text, || {
            self.seen.extend(self.screen.try_iter());
            self.seen.contains(text).then_some(())
        });
    }

    /// Polls until the text is on a redrawn screen of 40 or 41 columns. A resize is needed because otherwise only
    /// changes are drawn. It resizes repeatedly, because earlier keys may be processed after a resize.
    pub fn until_drawn(&mut self, text: &str, rows: u16) {
        let mut is_wide = false;
        until(text, || {
            is_wide = !is_wide;
            self.resize(40 + u16::from(is_wide), rows);
            std::thread::sleep(Duration::from_millis(100));
            self.seen.extend(self.screen.try_iter());
            self.seen.contains(text).then_some(())
        });
    }

    /// Types these keys.
    pub fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Resizes the screen.
    pub fn resize(&self, columns: u16, rows: u16) {
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&self.keys, size).unwrap();
    }

    /// Waits and returns its exit code.
    pub fn end(mut self) -> Option<i32> {
        until("the end", || self.child.try_wait().unwrap()).code()
    }
}

impl Drop for Typed {
    /// Ends the process, so that a failed test leaves none running.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_command_may_read_what_is_typed() {
    let place = Place::new();
    let mut typed = Typed::start(&place, "echo ready; read word; test \"$word\" = hello && exit 21");
    typed.until_shown("ready");
    typed.press("hello\n");
    assert_eq!(typed.end(), Some(21));
}

#[test]
fn ctrl_c_reaches_the_command_once() {
    let place = Place::new();
    let script =
        "trap 'n=$((n+1)); echo int-$n' INT; trap 'exit 22' QUIT; echo ready; while :; do sleep 0.02; done";
    let mut typed = Typed::start(&place, script);
    typed.until_shown("ready");
    typed.press("\x03");
    typed.until_shown("int-1");
    typed.press("\x1c");
    let seen = typed.seen.clone();
    assert_eq!(typed.end(), Some(22));
    assert!(!seen.contains("int-2"), "{seen}");
}

/// No shell could continue the process group, so the command must not stay stopped forever.
#[test]
fn ctrl_z_without_a_shell_does_not_freeze() {
    let place = Place::new();
    // The script does not fork, because a shell that is stopped between its vfork and exec is never seen as stopped.
    let script = "trap 'echo continued; exit 23' CONT; echo ready; while :; do read line; done";
    let mut typed = Typed::start(&place, script);
    typed.until_shown("ready");
    typed.press("\x1a");
    typed.until_shown("continued");
    assert_eq!(typed.end(), Some(23));
}
