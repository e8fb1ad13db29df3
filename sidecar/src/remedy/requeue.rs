//! The command that requeues a job.

use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use paceline_health::id::NodeId;
use paceline_health::remedy::Decision;

/// Runs the command in the background. The returned receiver gets its result as a message.
///
/// # Errors
/// If the command cannot be started.
pub fn run(command: Vec<String>, decision: &Decision) -> std::io::Result<Receiver<String>> {
    let (program, args) = command.split_first().ok_or(std::io::ErrorKind::NotFound)?;
    // Use this program's own path for `paceline`, because it may not be on PATH, or a batch job's PATH may lead to
    // another version.
    let path = match program.as_str() {
        "paceline" => std::env::current_exe()?,
        other => other.into(),
    };
    let mut child = Command::new(path)
        .args(args)
        .env("PACELINE_REMEDY_MARK", &*decision.mark)
        .env("PACELINE_REMEDY_FINDING", decision.ask.finding.name())
        .env(
            "PACELINE_REMEDY_NODE",
            decision.ask.node().map_or("", NodeId::as_str),
        )
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .spawn()?;
    let (sender, answer) = sync_channel(1);
    let program = program.clone();
    thread::Builder::new()
        .name("requeue".into())
        .stack_size(64 << 10)
        .spawn(move || {
            let what = match child.wait() {
                Ok(status) if status.success() => "requeued".to_owned(),
                Ok(status) => format!("{program}: {status}: the job continues"),
                Err(error) => format!("{program}: {error}"),
            };
            let _ = sender.send(what);
        })?;
    Ok(answer)
}
