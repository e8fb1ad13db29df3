//! A program as a receiver. It gets our JSON on its standard input. Exit code zero means that it accepted the notices.

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

/// Timeout of the program.
const DEADLINE: Duration = Duration::from_secs(10);
/// Exit codes that mean a temporary failure: `EX_TEMPFAIL` of sysexits.h, and a shell's codes for a missing program.
const NOT_NOW: [i32; 3] = [75, 126, 127];

/// A variable in the program's environment. Its value identifies the session and the process that started the program.
const MARK: &str = "PACELINE_TOLD_BY";

fn mark() -> String {
    let own = std::process::id();
    format!("{} {}", session_number(own), Process::of(own).words())
}

/// Returns the session of a process, or zero for a process outside our PID namespace.
fn session_number(pid: u32) -> i32 {
    session(pid).map_or(0, |session| session.as_raw_nonzero().get())
}

/// Returns true if the process has this mark and was left behind. A job submitted by the program inherits its
/// environment, but runs in another session, so it is not one of these.
fn is_left_behind(pid: Pid, mark: &str) -> bool {
    let session = session_number(pid.as_raw_nonzero().get().cast_unsigned());
    mark.split_once(' ').is_some_and(|(told_in, by)| {
        told_in == session.to_string() && Process::read(by).is_some_and(|by| !by.is_alive())
    })
}

/// Kills programs that were left running by a killed aggregator, which could not end their process groups.
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

/// A handle on the running program. Its owner can kill the program when it stops waiting. Clones share the handle.
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

    /// Starts the program, unless the leash was pulled before.
    fn start(&self, command: &mut Command) -> std::io::Result<Option<Child>> {
        let mut held = self.held();
        if held.is_over {
            return Ok(None);
        }
        let child = command.spawn()?;
        held.group = Some(Pid::from_child(&child));
        Ok(Some(child))
    }

    /// Kills the program's remaining children and reaps it. Until it is reaped, its process ID and its group's are not
    /// reused. Both steps happen under the lock that other callers need to kill it.
    fn bury(&self, child: &mut Child) -> std::io::Result<ExitStatus> {
        let mut held = self.held();
        held.group = None;
        end(Some(Pid::from_child(child)));
        child.wait()
    }
}

/// Kills a process group. A process that has left the group is not killed, because it left intentionally.
fn end(group: Option<Pid>) {
    if let Some(group) = group {
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// Runs the program once, in its own process group. The group is killed when the program ends, when this process ends,
/// or when `leash` is pulled.
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
        // A program that does not read must not block us. The writer thread may block; it is released when the program
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

/// Returns true if the process exits within this time. The process is not reaped, so its process ID is not reused.
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
