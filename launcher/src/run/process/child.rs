//! Runs the command's process: its environment, its process group, and its end.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, kill_current_process_group, kill_process_group, waitpid,
};

use super::tee::Tee;
use super::terminal::Terminal;
use crate::output;
use crate::run::Plan;
use crate::run::directories::place::Place;
use crate::run::instrumentation::environment::additions;

/// The exit codes of a shell for a command that cannot be started (POSIX, 2.8.2).
const NOT_FOUND: i32 = 127;
const NOT_EXECUTABLE: i32 = 126;
/// If we continue within this time after stopping ourselves, we were not really stopped.
const AT_ONCE: Duration = Duration::from_millis(10);

/// The command, running in its own process group.
#[derive(Debug)]
pub(crate) struct Child {
    pid: Pid,
    terminal: Option<Terminal>,
    ended: Option<i32>,
}

/// The change of the child's state since the last poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Nothing has changed.
    None,
    /// The child was stopped by this signal.
    Stopped(i32),
    /// The child has ended with this exit code, which is 128 + n for signal n.
    Ended(i32),
}

/// Why the command could not be started.
#[derive(Debug)]
pub(crate) struct StartError {
    command: String,
    problem: io::Error,
    hint: Option<String>,
}

impl StartError {
    fn of(program: &OsStr, problem: io::Error) -> StartError {
        let command = program.to_string_lossy().into_owned();
        StartError {
            hint: hint(&command, &problem),
            command,
            problem,
        }
    }

    fn of_nothing() -> StartError {
        StartError {
            command: "(nothing)".to_owned(),
            problem: io::ErrorKind::NotFound.into(),
            hint: None,
        }
    }

    /// Returns the exit code that a shell would return.
    pub(crate) fn code(&self) -> i32 {
        if self.problem.kind() == io::ErrorKind::NotFound {
            NOT_FOUND
        } else {
            NOT_EXECUTABLE
        }
    }

    /// Returns true if the start may have failed because of resources that we use.
    pub(crate) fn is_of_us(&self) -> bool {
        let lacking = [libc::EMFILE, libc::ENFILE, libc::EAGAIN, libc::ENOMEM];
        self.problem
            .raw_os_error()
            .is_some_and(|code| lacking.contains(&code))
    }
}

impl std::error::Error for StartError {}

/// Replaces this process with the command, unmonitored. This is the last resort if resources do not suffice for more.
/// Returns only if the command cannot be started.
pub(crate) fn become_command(plan: &Plan, why: &dyn fmt::Display) -> StartError {
    output::warning(plan.style, format_args!("the job runs unwatched: {why}"));
    let (program, args) = match plan.command.split_first() {
        Some(split) => split,
        None => return StartError::of_nothing(),
    };
    let mut command = Command::new(program);
    command.args(args).env_remove("PACELINE_RING_DIR");
    command.envs(additions(plan, None, None));
    let problem = command.exec();
    StartError::of(program, problem)
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let command = match self.command.as_str() {
            "" => "\"\" (the command is empty)",
            command => command,
        };
        match self.problem.kind() {
            io::ErrorKind::NotFound => write!(f, "{command}: command not found")?,
            io::ErrorKind::PermissionDenied => write!(f, "{command}: not executable")?,
            _ => write!(f, "{command}: cannot be started: {}", self.problem)?,
        }
        match &self.hint {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

impl Child {
    /// Starts the command. Without a place it runs unmonitored, but otherwise the same. `python` is the path of the
    /// hook.
    pub(crate) fn start(
        plan: &Plan,
        place: Option<&Place>,
        python: Option<&Path>,
        terminal: Option<Terminal>,
        tee: Option<&Tee>,
    ) -> Result<Child, StartError> {
        let (program, args) = plan.command.split_first().ok_or_else(StartError::of_nothing)?;
        let mut command = Command::new(program);
        command.args(args).process_group(0);
        if place.is_none() {
            command.env_remove("PACELINE_RING_DIR");
        }
        command.envs(additions(plan, place.map(|place| &*place.ring_dir), python));
        if let Some(tee) = tee {
            let attached = tee.attach(&mut command);
            attached.map_err(|problem| StartError {
                command: program.to_string_lossy().into_owned(),
                problem,
                hint: None,
            })?;
        }
        if let Some(tty) = terminal.as_ref().and_then(Terminal::to_hand_over) {
            let tty = tty.as_raw_fd();
            // SAFETY: the closure runs between fork and exec and calls only what signal-safety(7) allows; the
            // descriptor stays open in the parent until spawn has returned.
            unsafe { command.pre_exec(move || super::terminal::take_in_child(tty)) };
        }
        let spawned = command
            .spawn()
            .map_err(|problem| StartError::of(program, problem))?;
        Ok(Child {
            pid: Pid::from_child(&spawned),
            terminal,
            ended: None,
        })
    }

    /// Returns the child's process id, which is also that of its group.
    pub(crate) fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Signals the child's whole group. After the child has been reaped, it does nothing, because the id may belong to
    /// another process.
    pub(crate) fn signal(&self, signal: Signal) {
        if self.ended.is_none() {
            // Ignore an error, because a group that has just ended needs no signal.
            let _ = kill_process_group(self.pid, signal);
        }
    }

    /// Polls the child's state without waiting.
    pub(crate) fn poll(&mut self) -> Change {
        if let Some(code) = self.ended {
            return Change::Ended(code);
        }
        match waitpid(Some(self.pid), WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            Ok(None) | Err(rustix::io::Errno::INTR) => Change::None,
            Ok(Some((_, status))) => match (status.stopping_signal(), code(status)) {
                (Some(signal), _) => Change::Stopped(signal),
                (None, Some(code)) => self.end(code),
                (None, None) => Change::None,
            },
            // The exit code is lost, because SIGCHLD was ignored before we started.
            Err(_) => self.end(1),
        }
    }

    fn end(&mut self, code: i32) -> Change {
        self.ended = Some(code);
        if let Some(terminal) = &self.terminal {
            terminal.take_back(self.pid);
        }
        Change::Ended(code)
    }

    /// Called if the child was stopped from the terminal. Stops us too, so that the shell sees its job stopped. When we
    /// are continued, continues the child.
    pub(crate) fn stop_along(&self, signal: i32) {
        let job_control = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU].contains(&signal);
        let (Some(terminal), true) = (&self.terminal, job_control) else {
            return;
        };
        terminal.take_back(self.pid);
        let Some(signal) = Signal::from_named_raw(signal) else {
            return;
        };
        let before = Instant::now();
        // We are stopped inside this call, until the shell continues us.
        let _ = kill_current_process_group(signal);
        // Leave the child stopped, to wait for a SIGCONT, if the kernel did not really stop us. The kernel does this if
        // no shell could continue our group. A child that wants to read in the background would be stopped again at
        // once.
        if signal != Signal::TSTP && before.elapsed() < AT_ONCE {
            return;
        }
        self.continued();
    }

    /// Continues the child, because we were continued, perhaps in the foreground.
    pub(crate) fn continued(&self) {
        if let Some(terminal) = &self.terminal {
            terminal.give_to(self.pid);
        }
        self.signal(Signal::CONT);
    }
}

fn code(status: WaitStatus) -> Option<i32> {
    status
        .exit_status()
        .or_else(|| status.terminating_signal().map(|signal| 128 + signal))
}

fn hint(program: &str, problem: &io::Error) -> Option<String> {
    let here = Path::new(program);
    let named = !program.contains('/');
    if program.ends_with(".py") && here.is_file() {
        return Some(format!("did you mean `python {program}`?"));
    }
    match problem.kind() {
        io::ErrorKind::NotFound if program.is_empty() => None,
        io::ErrorKind::NotFound if program.contains(' ') => {
            Some("pass its words as separate arguments, without quotes around all of them".to_owned())
        }
        io::ErrorKind::NotFound if named && here.is_file() => Some(format!("did you mean `./{program}`?")),
        io::ErrorKind::NotFound if !named && here.is_file() => {
            Some("the file exists, but the interpreter in its first line does not".to_owned())
        }
        io::ErrorKind::NotFound if named => Some("is its environment active, and PATH correct?".to_owned()),
        io::ErrorKind::PermissionDenied if here.is_dir() => Some("it is a directory".to_owned()),
        io::ErrorKind::PermissionDenied => Some(format!("make it executable: `chmod +x {program}`")),
        _ => None,
    }
}
