//! A connection that is closed after a long idle time and counted while it is open.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use prometheus::IntGauge;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep, sleep};
use tokio_rustls::server::TlsStream;

/// Idle time after which a connection is closed. API servers keep an idle connection for 90 s.
const QUIET: Duration = Duration::from_secs(180);

/// The connection; see the module documentation.
pub(crate) struct Connection {
    stream: TlsStream<TcpStream>,
    until: Pin<Box<Sleep>>,
    count: IntGauge,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    pub(crate) fn new(
        stream: TlsStream<TcpStream>,
        permit: OwnedSemaphorePermit,
        count: IntGauge,
    ) -> Connection {
        count.inc();
        Connection {
            stream,
            until: Box::pin(sleep(QUIET)),
            count,
            _permit: permit,
        }
    }

    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.until.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(()),
        }
    }

    fn lives(&mut self) {
        self.until.as_mut().reset(Instant::now() + QUIET);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.count.dec();
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if read.is_ready() {
            self.lives();
        }
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
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
