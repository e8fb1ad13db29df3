//! On a real terminal: the command has the foreground, so keys reach it as if it had been started alone.

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

/// A terminal as its window has it, and a program as the first process on it.
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
    // SAFETY: two system calls, as signal-safety(7) allows between fork and exec.
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

/// Somebody at a terminal.
pub struct Typed {
    keys: File,
    screen: Receiver<String>,
    /// All that came to the screen so far.
    pub seen: String,
    child: Child,
}

impl Typed {
    fn start(place: &Place, script: &str) -> Typed {
        Typed::start_as(place.shell(&["--quiet"], script))
    }

    /// Any command of the program.
    pub fn start_as(command: Command) -> Typed {
        let (keys, child) = begin(command);
        let (sender, screen) = channel();
        let mut reader = keys.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 1024];
            // An error: the terminal's last user is gone.
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

    /// Polls until it is on the screen.
    pub fn until_shown(&mut self, text: &str) {
        until(text, || {
            self.seen.extend(self.screen.try_iter());
            self.seen.contains(text).then_some(())
        });
    }

    /// Polls until it is on a screen of 40 or 41 columns that was drawn anew: usually only what is different is drawn. Keys that were
    /// pressed before may come after a change of size, so there are several.
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

    /// As if typed.
    pub fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// The screen has another size from now on.
    pub fn resize(&self, columns: u16, rows: u16) {
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&self.keys, size).unwrap();
    }

    /// Its exit code.
    pub fn end(mut self) -> Option<i32> {
        until("the end", || self.child.try_wait().unwrap()).code()
    }
}

impl Drop for Typed {
    /// What a failed test left is not left running.
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

/// No shell stands above us that could continue us: the command must not stay stopped for ever.
#[test]
fn ctrl_z_without_a_shell_does_not_freeze() {
    let place = Place::new();
    // No fork in it: a shell that is stopped between its vfork and exec is never seen as stopped.
    let script = "trap 'echo continued; exit 23' CONT; echo ready; while :; do read line; done";
    let mut typed = Typed::start(&place, script);
    typed.until_shown("ready");
    typed.press("\x1a");
    typed.until_shown("continued");
    assert_eq!(typed.end(), Some(23));
}
