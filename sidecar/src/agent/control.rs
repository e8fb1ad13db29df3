//! The launcher's messages on stdin, and signals to this process. A separate thread, which may block, reads each of the
//! two; both threads send to one channel.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::thread;

use serde::Deserialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::{tasks, witness};
use crate::warn;

/// Maximum length of a line, bytes.
const MAX_LINE: u64 = 64 << 10;

/// An event that controls the sidecar itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// The launcher started its command, which has this process ID.
    Child(u32),
    /// The launched command ended with this exit code.
    Exit(i32),
    /// The launcher closed its end of stdin.
    Eof,
    /// SIGTERM: shut down cleanly. Ignored while a launcher with a command is there, because the signal was then meant
    /// for the command.
    Terminate,
    /// SIGHUP: read the configuration files again.
    HangUp,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Child(u32),
    Exit { code: i32 },
}

/// Parses one line from the launcher.
pub(super) fn parse(line: &[u8]) -> Option<Control> {
    match serde_json::from_slice(line).ok()? {
        Line::Child(pid) => Some(Control::Child(pid)),
        Line::Exit { code } => Some(Control::Exit(code)),
    }
}

/// Where the launcher's messages come from.
pub enum Words<R> {
    /// One launcher, line by line.
    Lines(R),
    /// This many launchers (tasks), through files in the ring directory.
    Tasks(PathBuf, u32),
    /// There is no launcher; only signals are received.
    None,
}

/// Listens to the launcher and to signals. Records signals that were sent to the job in `ring_dir`.
///
/// A scheduler signals all processes of a job, including this one. SIGINT, SIGQUIT, SIGUSR1 and SIGUSR2 are ignored
/// here, because the launcher forwards them and the trainer's last records are still to be read. SIGHUP reloads the
/// configuration, as for any daemon. The SIGHUP of a closing terminal goes to the launcher's process group, which is
/// not ours; if it arrived here, it would do no harm.
///
/// # Errors
/// If the thread or the signal handlers cannot be created.
pub fn listen<R: Read + Send + 'static>(
    words: Words<R>,
    ring_dir: Option<PathBuf>,
) -> std::io::Result<Receiver<Control>> {
    let (sender, receiver) = channel(16);
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2])?;
    let terminate = sender.clone();
    thread::Builder::new()
        .name("signals".into())
        .stack_size(64 << 10)
        .spawn(move || {
            for signal in &mut signals {
                if let Some(dir) = &ring_dir {
                    witness::note(dir, signal);
                }
                let control = match signal {
                    SIGTERM => Control::Terminate,
                    SIGHUP => Control::HangUp,
                    _ => continue,
                };
                if terminate.blocking_send(control).is_err() {
                    break;
                }
            }
        })?;
    match words {
        Words::Lines(input) => thread::Builder::new()
            .name("control".into())
            .stack_size(128 << 10)
            .spawn(move || read(input, &sender))
            .map(drop)?,
        Words::Tasks(ring_dir, expected) => tasks::attend(ring_dir, expected, sender)?,
        Words::None => {}
    }
    Ok(receiver)
}

fn read(input: impl Read, sender: &Sender<Control>) {
    let mut reader = BufReader::new(input);
    let mut line = Vec::new();
    loop {
        line.clear();
        let said = match (&mut reader).take(MAX_LINE).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => Some(Control::Eof),
            Ok(_) => parse(&line),
        };
        match said {
            Some(control) => {
                if sender.blocking_send(control).is_err() || control == Control::Eof {
                    return;
                }
            }
            None if line.trim_ascii().is_empty() => {}
            None => warn::once("control", "a control line is invalid"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let check = |line: &str, wanted| assert_eq!(parse(line.as_bytes()), wanted, "{line}");
        check(r#"{"child":42}"#, Some(Control::Child(42)));
        check(r#"{"exit":{"code":139}}"#, Some(Control::Exit(139)));
        check(r#"{"exit":{}}"#, None);
        check("nonsense", None);
    }

    #[test]
    fn a_stream() {
        let (sender, mut receiver) = channel(16);
        read(
            &b"{\"child\":7}\n\nnonsense\n{\"exit\":{\"code\":3}}\n"[..],
            &sender,
        );
        let mut said = Vec::new();
        while let Ok(control) = receiver.try_recv() {
            said.push(control);
        }
        assert_eq!(said, [Control::Child(7), Control::Exit(3), Control::Eof]);
    }
}
