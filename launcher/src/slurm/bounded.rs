//! Runs a command with a time limit and returns its output. Does not wait for a process that cannot be killed.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use thiserror::Error;

/// Maximum size of the output in bytes, which is more than these commands print.
const MOST: u64 = 4 << 20;
/// Time to wait for a killed process. A driver that hangs may keep the process for longer.
const BURIAL: Duration = Duration::from_millis(500);

/// Why a command has no result.
#[derive(Debug, Error)]
pub(super) enum Failed {
    /// The program does not exist or is not executable.
    #[error("{program} cannot be started: {source}")]
    Start { program: String, source: std::io::Error },
    /// The program exceeded its time limit and was killed.
    #[error("{program} did not end within {} s", limit.as_secs())]
    Late { program: String, limit: Duration },
}

/// The result of a command.
#[derive(Debug)]
pub(super) struct Ran {
    /// The exit code, or `None` if a signal ended the command.
    pub(super) code: Option<i32>,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

/// Runs the command until it ends or `limit` has passed.
pub(super) fn run(command: &mut Command, limit: Duration) -> Result<Ran, Failed> {
    let program = command.get_program().to_string_lossy().into_owned();
    let began = Instant::now();
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|source| Failed::Start {
        program: program.clone(),
        source,
    })?;
    let (stdout, stderr) = (collect(child.stdout.take()), collect(child.stderr.take()));
    let late = Failed::Late { program, limit };
    let Some(code) = wait(&mut child, limit) else {
        let _ = child.kill();
        let _ = wait(&mut child, BURIAL);
        return Err(late);
    };
    // Limit the wait for the output, because child processes of the command may keep the pipe open.
    let left = limit.saturating_sub(began.elapsed()).max(BURIAL);
    let text = |pipe: std::sync::mpsc::Receiver<String>| pipe.recv_timeout(left).unwrap_or_default();
    Ok(Ran {
        code,
        stdout: text(stdout),
        stderr: text(stderr),
    })
}

fn wait(child: &mut Child, limit: Duration) -> Option<Option<i32>> {
    let began = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status.code()),
            Ok(None) if began.elapsed() < limit => thread::sleep(Duration::from_millis(5)),
            Ok(None) | Err(_) => return None,
        }
    }
}

fn collect(pipe: Option<impl Read + Send + 'static>) -> std::sync::mpsc::Receiver<String> {
    let (tell, text) = channel();
    if let Some(pipe) = pipe {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = pipe.take(MOST).read_to_end(&mut bytes);
            let _ = tell.send(String::from_utf8_lossy(&bytes).into_owned());
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_printed_and_no_longer_than_allowed() {
        let ran = run(
            Command::new("sh").args(["-c", "echo a; echo b >&2; exit 3"]),
            Duration::from_secs(20),
        )
        .unwrap();
        assert_eq!((ran.code, &*ran.stdout, &*ran.stderr), (Some(3), "a\n", "b\n"));
        let late = run(Command::new("sleep").arg("60"), Duration::from_millis(50));
        assert!(matches!(late, Err(Failed::Late { .. })));
        let absent = run(&mut Command::new("/no/such/command"), Duration::from_secs(1));
        assert!(matches!(absent, Err(Failed::Start { .. })));
    }
}
