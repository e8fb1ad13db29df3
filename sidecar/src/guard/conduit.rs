//! A bidirectional message connection that needs only one task and one descriptor. It combines the seal, ZMTP inside
//! it, and the socket. Of the data that was read, only incomplete messages are kept.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use paceline_seal::SealError;
use paceline_seal::codec::{Opener, Pair, Sealer};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::{TcpStream, UnixStream, tcp, unix};
use tokio::sync::Notify;

use super::tunnel::PIECE;
use super::zmtp::{self, ZmtpError};

/// Size of one read, bytes.
const READ: usize = 64 << 10;
/// Limit of buffered data for a peer that does not read. Further messages to it are dropped, and the peer will request
/// them again.
const UNSENT: usize = 256 << 10;

thread_local! {
    /// The read buffer. All connections of a thread share it.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; READ]);
}

/// Why a connection failed.
#[derive(Debug, thiserror::Error)]
pub enum ConduitError {
    /// The connection was closed, or the socket failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The data was tampered with.
    #[error("{0}")]
    Seal(#[from] SealError),
    /// The peer violates the protocol.
    #[error("{0}")]
    Zmtp(#[from] ZmtpError),
}

/// Traffic of a connection on the network, bytes.
#[derive(Debug, Default)]
pub struct Traffic {
    /// Bytes from the peer.
    pub read: AtomicU64,
    /// Bytes to the peer.
    pub written: AtomicU64,
}

impl Traffic {
    /// Returns the bytes to the peer and the bytes from the peer.
    pub fn both(&self) -> (u64, u64) {
        (
            self.written.load(Ordering::Relaxed),
            self.read.load(Ordering::Relaxed),
        )
    }
}

enum Input {
    Tcp(tcp::OwnedReadHalf),
    Unix(unix::OwnedReadHalf),
}

enum Output {
    Tcp(tcp::OwnedWriteHalf),
    Unix(unix::OwnedWriteHalf),
}

/// The reading half.
pub struct Inlet {
    socket: Input,
    /// `None` if the connection is not sealed, because only our own user can access the socket.
    opener: Option<Opener>,
    reader: zmtp::Reader,
    out: Arc<Outlet>,
}

/// The writing half. Writes never block the caller.
pub struct Outlet {
    socket: Output,
    writing: Mutex<Writing>,
    /// Notifies the reader that the socket did not accept some data at once.
    stuck: Notify,
    /// Notifies the reader that this end closes the connection.
    over: Notify,
    traffic: Traffic,
}

struct Writing {
    sealer: Option<Sealer>,
    /// Data that is sealed and not yet written, from `at` on.
    unsent: Vec<u8>,
    at: usize,
}

/// Makes both halves of a stream after its handshake. `socket` is this end's socket type, `ROUTER` or `DEALER`.
pub fn sealed(stream: TcpStream, (sealer, opener): Pair, socket: &str) -> (Inlet, Arc<Outlet>) {
    let (input, output) = stream.into_split();
    open(
        Input::Tcp(input),
        Output::Tcp(output),
        Some(sealer),
        Some(opener),
        socket,
    )
}

/// Makes both halves of a stream that only this user can reach.
pub fn bare(stream: UnixStream, socket: &str) -> (Inlet, Arc<Outlet>) {
    let (input, output) = stream.into_split();
    open(Input::Unix(input), Output::Unix(output), None, None, socket)
}

fn open(
    input: Input,
    output: Output,
    sealer: Option<Sealer>,
    opener: Option<Opener>,
    socket: &str,
) -> (Inlet, Arc<Outlet>) {
    let out = Arc::new(Outlet {
        socket: output,
        writing: Mutex::new(Writing {
            sealer,
            unsent: Vec::new(),
            at: 0,
        }),
        stuck: Notify::new(),
        over: Notify::new(),
        traffic: Traffic::default(),
    });
    out.put(&zmtp::opening(socket));
    let inlet = Inlet {
        socket: input,
        opener,
        reader: zmtp::Reader::default(),
        out: Arc::clone(&out),
    };
    (inlet, out)
}

impl Inlet {
    /// Waits for messages, and meanwhile writes pending data. Cancel-safe.
    ///
    /// # Errors
    /// [`ConduitError`] if the connection is over. Messages that were received before are still passed to `each`.
    pub async fn recv(&mut self, mut each: impl FnMut(&[u8])) -> Result<(), ConduitError> {
        let out = Arc::clone(&self.out);
        tokio::select! {
            read = poll_fn(|context| self.poll(context, &mut each)) => read,
            error = out.push() => Err(error.into()),
            () = out.over.notified() => Err(io::Error::from(io::ErrorKind::ConnectionAborted).into()),
        }
    }

    fn poll(
        &mut self,
        context: &mut Context<'_>,
        each: &mut impl FnMut(&[u8]),
    ) -> Poll<Result<(), ConduitError>> {
        SCRATCH.with_borrow_mut(|scratch| {
            let mut buffer = ReadBuf::new(scratch);
            let polled = match &mut self.socket {
                Input::Tcp(socket) => Pin::new(socket).poll_read(context, &mut buffer),
                Input::Unix(socket) => Pin::new(socket).poll_read(context, &mut buffer),
            };
            ready!(polled)?;
            if buffer.filled().is_empty() {
                return Poll::Ready(Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()));
            }
            let read = buffer.filled().len() as u64;
            self.out.traffic.read.fetch_add(read, Ordering::Relaxed);
            Poll::Ready(self.take(buffer.filled(), each))
        })
    }

    fn take(&mut self, mut bytes: &[u8], each: &mut impl FnMut(&[u8])) -> Result<(), ConduitError> {
        let Inlet { opener, reader, .. } = self;
        let Some(opener) = opener else {
            return Ok(reader.take(bytes, each)?);
        };
        while !bytes.is_empty() {
            let (piece, rest) = bytes.split_at(opener.needs().min(bytes.len()));
            if let Some(plain) = opener.take(piece, PIECE)? {
                reader.take(&plain, &mut *each)?;
            }
            bytes = rest;
        }
        Ok(())
    }
}

impl Outlet {
    /// Sends a message. Returns false if there was no room for it.
    pub fn send(&self, message: &[u8]) -> bool {
        self.put(&zmtp::frame(message))
    }

    /// Ends the connection. Its reader then returns an error.
    pub fn end(&self) {
        self.over.notify_one();
    }

    /// Returns the number of bytes not yet written to the socket.
    pub fn unsent(&self) -> usize {
        let writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        writing.unsent.len() - writing.at
    }

    /// Returns the traffic in both directions.
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    fn put(&self, plain: &[u8]) -> bool {
        let mut writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        if writing.unsent.len() > UNSENT {
            return false;
        }
        let was_empty = writing.unsent.is_empty();
        let Writing { sealer, unsent, .. } = &mut *writing;
        match sealer {
            None => unsent.extend_from_slice(plain),
            Some(sealer) => {
                for piece in plain.chunks(PIECE) {
                    // A failed seal has used up its nonce, so no data can follow. The peer will open a new link.
                    let Ok(bytes) = sealer.seal(piece) else {
                        return false;
                    };
                    unsent.extend_from_slice(&bytes);
                }
            }
        }
        // If the buffer was not empty, the data waits for `push`, which keeps the order. Errors are returned there and
        // by the reader.
        if was_empty && !matches!(self.write(&mut writing), Ok(true)) {
            self.stuck.notify_one();
        }
        true
    }

    /// Writes as much as the socket accepts. Returns true if that was everything.
    fn write(&self, writing: &mut Writing) -> io::Result<bool> {
        while writing.at < writing.unsent.len() {
            let rest = &writing.unsent[writing.at..];
            let wrote = match &self.socket {
                Output::Tcp(socket) => socket.try_write(rest),
                Output::Unix(socket) => socket.try_write(rest),
            };
            match wrote {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => {
                    writing.at += bytes;
                    self.traffic.written.fetch_add(bytes as u64, Ordering::Relaxed);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        writing.unsent.clear();
        // Do not keep the memory of one long answer.
        writing.unsent.shrink_to(512);
        writing.at = 0;
        Ok(true)
    }

    /// Writes whenever the socket accepts more. Returns when the connection fails.
    async fn push(&self) -> io::Error {
        loop {
            // Check for data before waiting, because a call that was cancelled may have consumed the notification.
            if !self.is_behind() {
                self.stuck.notified().await;
            }
            while self.is_behind() {
                let ready = match &self.socket {
                    Output::Tcp(socket) => socket.writable().await,
                    Output::Unix(socket) => socket.writable().await,
                };
                if let Err(error) = ready {
                    return error;
                }
                let mut writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
                if let Err(error) = self.write(&mut writing) {
                    return error;
                }
            }
        }
    }

    fn is_behind(&self) -> bool {
        let writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        !writing.unsent.is_empty()
    }
}
