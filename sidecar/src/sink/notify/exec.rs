//! A program as a receiver: gets our JSON on its standard input; exit code zero means accepted.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, set_parent_process_death_signal,
    waitid,
};

use super::body::Letter;
use super::courier::Delivery;
use crate::host::{Process, session};

/// Timeout.
const DEADLINE: Duration = Duration::from_secs(10);
/// Temporary failure: `EX_TEMPFAIL` of sysexits.h, and a shell's codes for a missing program.
const NOT_NOW: [i32; 3] = [75, 126, 127];

/// Variable in the program's environment: the session and the process that started it.
const MARK: &str = "PACELINE_TOLD_BY";

fn mark() -> String {
    let own = std::process::id();
    format!("{} {}", session_number(own), Process::of(own).words())
}

/// Zero for a process outside our PID namespace.
fn session_number(pid: u32) -> i32 {
    session(pid).map_or(0, |session| session.as_raw_nonzero().get())
}

/// Whether a process with this mark was left behind. A job submitted by the program inherits its environment, but has
/// another session.
fn is_left_behind(pid: Pid, mark: &str) -> bool {
    let session = session_number(pid.as_raw_nonzero().get().cast_unsigned());
    mark.split_once(' ').is_some_and(|(told_in, by)| {
        told_in == session.to_string() && Process::read(by).is_some_and(|by| !by.is_alive())
    })
}

/// Kills programs left running by a killed aggregator, which could not end their groups.
pub fn clear_left_behind() {
    let user = rustix::process::geteuid().as_raw();
    let start = format!("{MARK}=");
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name
            .to_str()
            .and_then(|name| name.parse().ok())
            .and_then(Pid::from_raw);
        let is_ours = entry.metadata().is_ok_and(|meta| meta.uid() == user);
        let (Some(pid), true) = (pid, is_ours) else {
            continue;
        };
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        let mut words = environment.split(|byte| *byte == 0);
        let by = words.find_map(|word| std::str::from_utf8(word).ok()?.strip_prefix(&start));
        if by.is_some_and(|mark| is_left_behind(pid, mark)) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// A handle on the running program, with which it can be killed by an owner that stops waiting. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Leash(Arc<Mutex<Held>>);

#[derive(Debug, Default)]
struct Held {
    is_over: bool,
    group: Option<Pid>,
}

impl Leash {
    /// Kills the running program, and prevents new ones.
    pub fn pull(&self) {
        let mut held = self.held();
        held.is_over = true;
        end(held.group.take());
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the program, unless the leash was pulled.
    fn start(&self, command: &mut Command) -> std::io::Result<Option<Child>> {
        let mut held = self.held();
        if held.is_over {
            return Ok(None);
        }
        let child = command.spawn()?;
        held.group = Some(Pid::from_child(&child));
        Ok(Some(child))
    }

    /// Kills its remaining children and reaps it. Its process id, and its group's, are not reused until it is reaped:
    /// both happen under the lock that other callers need to kill it.
    fn bury(&self, child: &mut Child) -> std::io::Result<ExitStatus> {
        let mut held = self.held();
        held.group = None;
        end(Some(Pid::from_child(child)));
        child.wait()
    }
}

/// A process that has left the group is not killed: that is intentional.
fn end(group: Option<Pid>) {
    if let Some(group) = group {
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// Runs the program once, in its own process group, which ends with the program, with us, or when `leash` is pulled.
pub fn run(program: &str, letter: &Letter, leash: &Leash) -> Delivery {
    let mut command = Command::new(program);
    command
        .env("PACELINE_DELIVERY", &letter.id)
        .env(MARK, mark())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0);
    // SAFETY: between fork and exec only one system call is made, and nothing is allocated.
    unsafe { command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?)) };
    let mut child = match leash.start(&mut command) {
        Ok(Some(child)) => child,
        Ok(None) => return Delivery::Later(format!("{program}: the job is over"), None),
        Err(error) => return Delivery::Later(format!("{program}: {error}"), None),
    };
    let body = letter.body.to_string();
    if let Some(mut input) = child.stdin.take() {
        // A program that does not read must not block us: the writer thread may block, and is released when the program
        // ends.
        let _ = thread::Builder::new().stack_size(64 << 10).spawn(move || {
            let _ = input.write_all(body.as_bytes());
        });
    }
    let in_time = has_ended(&child, DEADLINE);
    let status = leash.bury(&mut child);
    if !in_time {
        return Delivery::Later(format!("{program}: took longer than {DEADLINE:?}"), None);
    }
    match status.ok().and_then(|status| status.code()) {
        Some(0) => Delivery::Taken,
        Some(code) if NOT_NOW.contains(&code) => Delivery::Later(format!("{program}: code {code}"), None),
        Some(code) => Delivery::Never(format!("{program}: code {code}")),
        None => Delivery::Later(format!("{program}: ended by a signal"), None),
    }
}

/// Whether the process exits within this time. It is not reaped, so its process id is not reused.
fn has_ended(child: &Child, within: Duration) -> bool {
    let until = Instant::now() + within;
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    loop {
        match waitid(WaitId::Pid(Pid::from_child(child)), look) {
            Ok(Some(_)) => return true,
            Ok(None) | Err(rustix::io::Errno::INTR) if Instant::now() < until => {
                thread::sleep(Duration::from_millis(10));
            }
            Ok(None) | Err(_) => return false,
        }
    }
}
