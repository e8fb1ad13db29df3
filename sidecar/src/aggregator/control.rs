//! Requests to a running aggregator, such as changes of its policy.
//!
//! The aggregator listens on a Unix socket in the run directory, which only its own user and root may use. A client
//! sends one line of JSON and receives one. SIGHUP has the same effect as a reload request.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};

use super::inject::Injection;
use crate::sink::write_whole;
use crate::{safe_file, warn};

/// The socket's name in the run directory.
pub const SOCKET: &str = "control.sock";
/// The file that holds the aggregator's process id.
pub const PID: &str = "aggregator.pid";
/// Maximum length of a line, bytes.
const MAX_LINE: u64 = 64 << 10;
/// How long a client may take to send its line. After that it is disconnected.
const LINE_DEADLINE: Duration = Duration::from_secs(2);
/// Maximum time that a client waits for its answer. It is long because the configuration files may be on a slow disk.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);

/// A request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Change these values. Either all of them change or none.
    Set(Vec<(String, f64)>),
    /// Reread the configuration files.
    Reload,
    /// Inject faults manually.
    Inject {
        /// The faults. Either all of them begin or none.
        faults: Vec<Injection>,
        /// Also allow the injection in a job on real GPUs.
        force: bool,
    },
}

/// The aggregator's answer to a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The request succeeded. Lists the values that changed; unchanged values are not listed.
    Changed(Vec<Changed>),
    /// Nothing was changed, for this reason.
    Refused(String),
    /// This many faults begin.
    Injected(usize),
}

/// One value that has changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Changed {
    /// The dotted name of the value.
    pub key: String,
    /// The old value.
    pub was: f64,
    /// The new value.
    pub now: f64,
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No process listens on the socket.
    #[error("{0}: no aggregator runs here: its job has ended, or runs on another node")]
    Nobody(PathBuf),
    /// The job belongs to another user.
    #[error("{0}: belongs to another user")]
    NotOurs(PathBuf),
    /// The connection was closed.
    #[error("{0}: the aggregator did not answer: it is ending, or the request came too late")]
    NoAnswer(PathBuf),
    /// Another I/O error.
    #[error("{0}: {1}")]
    Io(PathBuf, io::Error),
}

/// A function that returns values by key, or why the files cannot be read.
type ReadFiles = dyn Fn() -> Result<Vec<(String, f64)>, String> + Send + Sync;

/// Reads the configuration files. The program that starts the sidecar defines their paths and contents.
#[derive(Clone)]
pub struct Reload {
    read: Arc<ReadFiles>,
    /// Keys that are set by a source with precedence over the files. A reload ignores them.
    pinned: Vec<String>,
}

impl Reload {
    /// Creates it from `read`, which returns the current values in the files.
    pub fn new(read: impl Fn() -> Result<Vec<(String, f64)>, String> + Send + Sync + 'static) -> Reload {
        Reload {
            read: Arc::new(read),
            pinned: Vec::new(),
        }
    }

    /// Excludes these keys from reloads.
    pub fn without(self, pinned: Vec<String>) -> Reload {
        Reload { pinned, ..self }
    }

    /// Returns those of a job's starting values that came from the files.
    pub fn of_files(&self, policy: &[(String, f64)]) -> Vec<(String, f64)> {
        let values = policy.iter().filter(|(key, _)| !self.pinned.contains(key));
        values.cloned().collect()
    }

    fn read(&self) -> Result<Vec<(String, f64)>, String> {
        Ok(self.of_files(&(self.read)()?))
    }
}

impl fmt::Debug for Reload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reload")
    }
}

/// A request for the aggregator.
#[derive(Debug)]
pub struct Ask {
    /// A request.
    pub what: What,
    /// Receives the answer.
    pub answer: oneshot::Sender<Answer>,
}

/// The requested operation.
#[derive(Debug)]
pub enum What {
    /// Change values of the policy.
    Change {
        /// Values by key.
        changes: Vec<(String, f64)>,
        /// The source of the change: [`SET`] or [`RELOAD`].
        by: &'static str,
    },
    /// A request to start injecting faults into incoming frames.
    Inject {
        /// The faults. Either all of them begin or none.
        faults: Vec<Injection>,
        /// Also allow the injection in a job on real GPUs.
        force: bool,
    },
}

/// The source of a change that a user requested manually.
pub const SET: &str = "set";
/// The source of a change that came from reloading the configuration files.
pub const RELOAD: &str = "reload";

/// The socket and the file with the process ID in the run directory. Both are removed on drop.
#[derive(Debug)]
pub struct Door {
    dir: PathBuf,
    listener: tokio::net::UnixListener,
}

impl Door {
    /// Creates the socket in a directory that this aggregator has locked. If that fails, only SIGHUP works.
    pub fn open(dir: &Path) -> Option<Door> {
        let path = dir.join(SOCKET);
        // A killed aggregator may have left its socket behind. Removing it is safe because we hold the directory's
        // lock.
        let _ = std::fs::remove_file(&path);
        let opened = at(dir, UnixListener::bind).and_then(|listener| {
            safe_file::make_socket_private(&path)?;
            listener.set_nonblocking(true)?;
            tokio::net::UnixListener::from_std(listener)
        });
        let _ = write_whole(&dir.join(PID), format!("{}\n", std::process::id()).as_bytes());
        match opened {
            Ok(listener) => Some(Door {
                dir: dir.to_owned(),
                listener,
            }),
            Err(error) => {
                warn::once("control", format_args!("{}: {error}", path.display()));
                None
            }
        }
    }

    /// Reads the request of an authorized client.
    async fn request(mut stream: tokio::net::UnixStream) -> io::Result<(tokio::net::UnixStream, Request)> {
        let uid = stream.peer_cred()?.uid();
        if uid != 0 && uid != rustix::process::geteuid().as_raw() {
            let refused = Answer::Refused("this job belongs to another user".to_owned());
            reply(stream, &refused).await;
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let mut line = Vec::new();
        let mut reader = tokio::io::BufReader::new((&mut stream).take(MAX_LINE));
        tokio::time::timeout(LINE_DEADLINE, reader.read_until(b'\n', &mut line))
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        match serde_json::from_slice(&line) {
            Ok(request) => Ok((stream, request)),
            Err(error) => {
                let refused = Answer::Refused(format!("invalid request: {error}"));
                reply(stream, &refused).await;
                Err(io::ErrorKind::InvalidData.into())
            }
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        for name in [SOCKET, PID] {
            let _ = std::fs::remove_file(self.dir.join(name));
        }
    }
}

/// Serves requests until the aggregator is gone. Requests are served one at a time, so that changes are ordered.
/// `known` holds the values in the files when the policy in force was read from them.
pub async fn serve(
    door: Option<Door>,
    reload: Option<Reload>,
    known: Vec<(String, f64)>,
    mut hangups: mpsc::Receiver<()>,
    asks: mpsc::Sender<Ask>,
) {
    let mut files = Files { reload, known };
    loop {
        let next = async {
            match &door {
                Some(door) => door.listener.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            visitor = next => match visitor {
                Ok((stream, _)) => match Door::request(stream).await {
                    Ok((stream, Request::Set(changes))) => {
                        let what = What::Change { changes, by: SET };
                        reply(stream, &ask(&asks, what).await).await;
                    }
                    Ok((stream, Request::Inject { faults, force })) => {
                        let what = What::Inject { faults, force };
                        reply(stream, &ask(&asks, what).await).await;
                    }
                    Ok((stream, Request::Reload)) => reply(stream, &files.reload(&asks).await).await,
                    // The client is unauthorized or has disconnected.
                    Err(_) => {}
                },
                // The process is out of file descriptors. Wait, to avoid a tight loop.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            },
            hangup = hangups.recv() => match hangup {
                Some(()) => say(&files.reload(&asks).await),
                None => return,
            },
        }
    }
}

/// Logs the result of a SIGHUP.
fn say(answer: &Answer) {
    match answer {
        Answer::Refused(why) => warn::answer(format_args!("SIGHUP: nothing was changed: {why}")),
        Answer::Changed(changed) if changed.is_empty() => warn::answer("SIGHUP: nothing has changed"),
        Answer::Injected(_) => {}
        Answer::Changed(changed) => {
            for Changed { key, was, now } in changed {
                warn::answer(format_args!("SIGHUP: {key} = {now}, was {was}"));
            }
        }
    }
}

async fn reply(mut stream: tokio::net::UnixStream, answer: &Answer) {
    let mut line = serde_json::to_vec(answer).unwrap_or_default();
    line.push(b'\n');
    // The client may have disconnected.
    let _ = stream.write_all(&line).await;
}

async fn ask(asks: &mpsc::Sender<Ask>, what: What) -> Answer {
    let (answer, answered) = oneshot::channel();
    let _ = asks.send(Ask { what, answer }).await;
    let gone = |_| Answer::Refused("the aggregator is ending".to_owned());
    answered.await.unwrap_or_else(gone)
}

/// The configuration files, and their values at the last read.
struct Files {
    reload: Option<Reload>,
    known: Vec<(String, f64)>,
}

impl Files {
    async fn read(&self) -> Result<Vec<(String, f64)>, String> {
        let Some(reload) = self.reload.clone() else {
            return Err("this sidecar was started without configuration files".to_owned());
        };
        let read = tokio::task::spawn_blocking(move || reload.read()).await;
        read.unwrap_or_else(|error| Err(error.to_string()))
    }

    /// Rereads the files. Only values that differ from the last read change, so a value that was set manually in
    /// between stays.
    async fn reload(&mut self, asks: &mpsc::Sender<Ask>) -> Answer {
        let now = match self.read().await {
            Ok(now) => now,
            Err(why) => return Answer::Refused(why),
        };
        let changes = difference(&self.known, &now);
        let answer = ask(asks, What::Change { changes, by: RELOAD }).await;
        if matches!(answer, Answer::Changed(_)) {
            self.known = now;
        }
        answer
    }
}

/// Returns the changes between two reads. A key that was removed gets its default value.
fn difference(before: &[(String, f64)], now: &[(String, f64)]) -> Vec<(String, f64)> {
    let shipped = paceline_health::Policy::default();
    let gone = before.iter().filter_map(|(key, _)| {
        let stays = now.iter().any(|(other, _)| other == key);
        (!stays).then(|| Some((key.clone(), shipped.get(key)?)))?
    });
    let new = now.iter().filter(|entry| !before.contains(entry)).cloned();
    gone.chain(new).collect()
}

/// Sends a request to the aggregator that writes to `dir`, and waits for its answer.
///
/// # Errors
/// [`AskError`]: no aggregator is there, or it belongs to another user.
pub fn request(dir: &Path, request: &Request) -> Result<Answer, AskError> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => AskError::Nobody(dir.to_owned()),
        io::ErrorKind::PermissionDenied => AskError::NotOurs(dir.to_owned()),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => AskError::NoAnswer(dir.to_owned()),
        _ => AskError::Io(dir.join(SOCKET), error),
    };
    let exchange = || {
        let mut stream = at(dir, UnixStream::connect)?;
        stream.set_read_timeout(Some(ANSWER_DEADLINE))?;
        stream.set_write_timeout(Some(ANSWER_DEADLINE))?;
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        stream.write_all(&line)?;
        let mut answer = Vec::new();
        BufReader::new(stream.take(1 << 20)).read_until(b'\n', &mut answer)?;
        if answer.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_slice(&answer)?)
    };
    exchange().map_err(failed)
}

/// Returns true if an aggregator of this user on this host uses `dir`.
pub fn is_there(dir: &Path) -> bool {
    at(dir, UnixStream::connect).is_ok()
}

/// Calls `open` with a short path of the socket in `dir`. This is needed because a socket address holds only 108 bytes
/// (unix(7)), and the path of a run directory may be longer.
fn at<T>(dir: &Path, open: impl FnOnce(PathBuf) -> io::Result<T>) -> io::Result<T> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let held = rustix::fs::open(dir, flags, Mode::empty())?;
    open(
        Path::new("/proc/self/fd")
            .join(held.as_raw_fd().to_string())
            .join(SOCKET),
    )
}

#[cfg(test)]
#[path = "control_tests.rs"]
mod tests;
