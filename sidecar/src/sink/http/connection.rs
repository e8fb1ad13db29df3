//! One connection to the page. It is closed after a timeout, whatever its client does. It also records whether it is
//! idle.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};
use tokio_rustls::server::TlsStream;

use super::slots::Slot;

/// Maximum lifetime of a connection, so that none blocks others for long.
const LONGEST: Duration = Duration::from_secs(30);
/// Deadline for a complete request head.
pub(super) const HEAD: Duration = Duration::from_secs(5);
/// How long to wait for the next request after an answer.
const IDLE: Duration = Duration::from_secs(10);
/// The bytes that end a request's head.
const END: &[u8; 4] = b"\r\n\r\n";

/// A plain or a TLS stream.
pub(super) enum Stream {
    Plain(TcpStream),
    Sealed(Box<TlsStream<TcpStream>>),
}

/// A connection with timeouts.
pub struct Connection {
    stream: Stream,
    /// The timer that closes the connection in any case.
    last: Pin<Box<Sleep>>,
    /// The timer that closes the connection while no request is being answered.
    idle: Pin<Box<Sleep>>,
    /// The number of bytes of [`END`] that the last bytes read have matched.
    matched: usize,
    slot: Slot,
}

impl Connection {
    pub(super) fn new(stream: Stream, slot: Slot) -> Connection {
        Connection {
            stream,
            last: Box::pin(sleep(LONGEST)),
            idle: Box::pin(sleep(HEAD)),
            matched: 0,
            slot,
        }
    }

    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let is_idle = self.slot.is_idle() && self.idle.as_mut().poll(context).is_ready();
        if is_idle || self.slot.is_evicted(context) || self.last.as_mut().poll(context).is_ready() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }

    /// Looks for the end of a request's head in bytes that were read.
    fn note_read(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.matched = match byte {
                byte if *byte == END[self.matched] => self.matched + 1,
                b'\r' => 1,
                _ => 0,
            };
            if self.matched == END.len() {
                self.matched = 0;
                self.slot.set_idle(false);
            }
        }
    }

    /// Marks the connection as idle. Written bytes belong to an answer, so the next request may follow.
    fn note_written(&mut self) {
        self.slot.set_idle(true);
        self.idle.as_mut().reset(Instant::now() + IDLE);
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        let before = buffer.filled().len();
        let read = match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Sealed(stream) => Pin::new(stream).poll_read(context, buffer),
        };
        self.note_read(&buffer.filled()[before..]);
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        let written = match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Stream::Sealed(stream) => Pin::new(stream).poll_write(context, bytes),
        };
        if matches!(written, Poll::Ready(Ok(count)) if count > 0) {
            self.note_written();
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(context)?;
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(context),
            Stream::Sealed(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Sealed(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
