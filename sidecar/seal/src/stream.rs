//! Sealed messages over a blocking TCP stream. Every call returns by its deadline.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Instant;

use crate::codec::{Caller, HANDSHAKE_BYTES, Opener, Sealer, answer};
use crate::{Key, SealError};

/// Both directions of a sealed stream.
pub struct Sealed {
    /// The sending half.
    pub sender: Sender,
    /// The receiving half.
    pub receiver: Receiver,
}

/// Sends to the peer.
pub struct Sender {
    stream: TcpStream,
    sealer: Sealer,
}

/// Receives from the peer.
pub struct Receiver {
    stream: TcpStream,
    opener: Opener,
}

/// Seals a stream that this end opened. Both ends must pass the same `purpose`.
pub fn dial(mut stream: TcpStream, key: &Key, purpose: &str, deadline: Instant) -> Result<Sealed, SealError> {
    // Disable Nagle's algorithm, because it would delay the three small messages of the handshake.
    let _ = stream.set_nodelay(true);
    let (caller, first) = Caller::start(key, purpose)?;
    write(&mut stream, &first, deadline, "handshake")?;
    let mut reply = [0; HANDSHAKE_BYTES];
    read(&mut stream, &mut reply, deadline, "answer to the handshake")?;
    let ((sealer, opener), proof) = caller.finish(&reply)?;
    write(&mut stream, &proof, deadline, "handshake")?;
    Sealed::of(stream, sealer, opener)
}

/// Seals a stream that the peer opened. Before the peer is authenticated, the amount of data that it may send is
/// limited, and nothing but the handshake is read.
pub fn accept(
    mut stream: TcpStream,
    key: &Key,
    purpose: &str,
    deadline: Instant,
) -> Result<Sealed, SealError> {
    let _ = stream.set_nodelay(true);
    let mut first = [0; HANDSHAKE_BYTES];
    read(&mut stream, &mut first, deadline, "handshake")?;
    let (reply, made) = answer(key, purpose, &first);
    // A peer with another protocol gets no answer.
    if !matches!(made, Err(SealError::Foreign)) {
        write(&mut stream, &reply, deadline, "answer to the handshake")?;
    }
    let (sealer, opener) = made?;
    let mut sealed = Sealed::of(stream, sealer, opener)?;
    let proof = sealed.receiver.receive(0, deadline)?;
    if proof.is_empty() {
        Ok(sealed)
    } else {
        Err(SealError::Damaged)
    }
}

impl Sealed {
    fn of(stream: TcpStream, sealer: Sealer, opener: Opener) -> Result<Sealed, SealError> {
        let io = |source| SealError::Io {
            what: "stream",
            source,
        };
        let sender = Sender {
            stream: stream.try_clone().map_err(io)?,
            sealer,
        };
        let receiver = Receiver { stream, opener };
        Ok(Sealed { sender, receiver })
    }

    /// Sends one message.
    pub fn send(&mut self, message: &[u8], deadline: Instant) -> Result<(), SealError> {
        self.sender.send(message, deadline)
    }

    /// Waits for one message of at most `limit` bytes.
    pub fn receive(&mut self, limit: usize, deadline: Instant) -> Result<Vec<u8>, SealError> {
        self.receiver.receive(limit, deadline)
    }

    /// Returns the unsealed stream, for bulk data that needs no seal. No data that follows the last message is lost,
    /// because bytes after a message are never read.
    pub fn into_bare(self) -> TcpStream {
        let stream = self.receiver.stream;
        // Remove our deadlines; the new owner sets its own.
        let _ = stream.set_read_timeout(None);
        let _ = stream.set_write_timeout(None);
        stream
    }
}

impl Sender {
    /// Sends one message.
    pub fn send(&mut self, message: &[u8], deadline: Instant) -> Result<(), SealError> {
        let bytes = self.sealer.seal(message)?;
        write(&mut self.stream, &bytes, deadline, "message")
    }

    /// Closes the stream for both ends and in both directions. Blocked readers then return.
    pub fn close(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl Receiver {
    /// Waits for one message of at most `limit` bytes.
    pub fn receive(&mut self, limit: usize, deadline: Instant) -> Result<Vec<u8>, SealError> {
        loop {
            let mut piece = vec![0; self.opener.needs()];
            read(&mut self.stream, &mut piece, deadline, "message")?;
            if let Some(message) = self.opener.take(&piece, limit)? {
                return Ok(message);
            }
        }
    }
}

fn read(
    stream: &mut TcpStream,
    into: &mut [u8],
    deadline: Instant,
    what: &'static str,
) -> Result<(), SealError> {
    let mut filled = 0;
    while filled < into.len() {
        let left = left(deadline, what)?;
        let got = stream
            .set_read_timeout(Some(left))
            .and_then(|()| stream.read(&mut into[filled..]));
        match got {
            Ok(0) => {
                let source = io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the other end closed the connection",
                );
                return Err(SealError::Io { what, source });
            }
            Ok(more) => filled += more,
            Err(problem) => again(problem, what)?,
        }
    }
    Ok(())
}

fn write(
    stream: &mut TcpStream,
    mut bytes: &[u8],
    deadline: Instant,
    what: &'static str,
) -> Result<(), SealError> {
    while !bytes.is_empty() {
        let left = left(deadline, what)?;
        let put = stream
            .set_write_timeout(Some(left))
            .and_then(|()| stream.write(bytes));
        match put {
            Ok(put) => bytes = &bytes[put..],
            Err(problem) => again(problem, what)?,
        }
    }
    Ok(())
}

/// Returns the time left until the deadline. Fails if there is none, because a socket rejects a timeout of zero.
fn left(deadline: Instant, what: &'static str) -> Result<std::time::Duration, SealError> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        Err(SealError::Deadline { what })
    } else {
        Ok(left)
    }
}

/// Ignores timeouts and signals, because the loop checks the deadline again. Returns other errors.
fn again(problem: io::Error, what: &'static str) -> Result<(), SealError> {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    match problem.kind() {
        Interrupted | TimedOut | WouldBlock => Ok(()),
        _ => Err(SealError::Io {
            what,
            source: problem,
        }),
    }
}
