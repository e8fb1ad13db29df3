//! A program that is told: our JSON on its standard input, exit code zero for taken.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::body::Letter;
use super::courier::Delivery;

/// Longest that it may take.
const DEADLINE: Duration = Duration::from_secs(10);
/// Not now: `EX_TEMPFAIL` of sysexits.h, and what a shell says of a program that is not there.
const NOT_NOW: [i32; 3] = [75, 126, 127];

/// Runs it once, in a process group of its own, which ends with it.
pub fn run(program: &str, letter: &Letter) -> Delivery {
    let spawned = Command::new(program)
        .env("PACELINE_DELIVERY", &letter.id)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) => return Delivery::Later(format!("{program}: {error}"), None),
    };
    let group = Pid::from_child(&child);
    let body = letter.body.to_string();
    if let Some(mut input) = child.stdin.take() {
        // One that does not read must not hold us up: whoever writes may wait for it, and is freed by its end.
        let _ = thread::Builder::new().stack_size(64 << 10).spawn(move || {
            let _ = input.write_all(body.as_bytes());
        });
    }
    let until = Instant::now() + DEADLINE;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if Instant::now() < until => thread::sleep(Duration::from_millis(10)),
            Ok(None) | Err(_) => break None,
        }
    };
    // What it left running is ours to end; the number is its own until it was waited for, and its group's after.
    if status.is_none() {
        let _ = kill_process_group(group, Signal::KILL);
        let _ = child.wait();
        return Delivery::Later(format!("{program}: took longer than {DEADLINE:?}"), None);
    }
    match status.and_then(|status| status.code()) {
        Some(0) => Delivery::Taken,
        Some(code) if NOT_NOW.contains(&code) => Delivery::Later(format!("{program}: code {code}"), None),
        Some(code) => Delivery::Never(format!("{program}: code {code}")),
        None => Delivery::Later(format!("{program}: ended by a signal"), None),
    }
}
