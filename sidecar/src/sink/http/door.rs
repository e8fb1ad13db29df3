//! Connections to the page: so many at once, each for a while, sealed by TLS where that was asked for.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Sleep, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Connections at once; the next one waits in the kernel.
const VISITORS: usize = 32;
/// A connection ends after this, whatever it does: who stays away from the kernel's queue stands in nobody's way for long.
const VISIT: Duration = Duration::from_secs(30);
/// TLS is agreed on within this.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// When there are no descriptors left, the next look.
const BREATH: Duration = Duration::from_millis(100);

/// Certificates and their key, for TLS 1.2 and 1.3.
///
/// # Errors
/// What is wrong with the files.
pub fn tls(certificates: &Path, key: &Path) -> anyhow::Result<TlsAcceptor> {
    use anyhow::Context as _;
    let chain = CertificateDer::pem_file_iter(certificates)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .with_context(|| certificates.display().to_string())?;
    let key = PrivateKeyDer::from_pem_file(key).with_context(|| key.display().to_string())?;
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .with_context(|| certificates.display().to_string())?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Who has come in.
pub struct Visitors {
    come: mpsc::Receiver<(Visit, SocketAddr)>,
    address: SocketAddr,
}

impl Visitors {
    /// Takes connections from now on.
    ///
    /// # Errors
    /// What the system says.
    pub fn of(listener: TcpListener, tls: Option<TlsAcceptor>) -> io::Result<Visitors> {
        let address = listener.local_addr()?;
        let (sender, come) = mpsc::channel(1);
        tokio::spawn(take(listener, tls, sender));
        Ok(Visitors { come, address })
    }
}

impl axum::serve::Listener for Visitors {
    type Io = Visit;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Visit, SocketAddr) {
        match self.come.recv().await {
            Some(visit) => visit,
            // The runtime ends.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}

async fn take(listener: TcpListener, tls: Option<TlsAcceptor>, come: mpsc::Sender<(Visit, SocketAddr)>) {
    let room = Arc::new(Semaphore::new(VISITORS));
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else {
            return;
        };
        let Ok((stream, from)) = listener.accept().await else {
            sleep(BREATH).await;
            continue;
        };
        let (tls, come) = (tls.clone(), come.clone());
        tokio::spawn(async move {
            let stream = match tls {
                None => Stream::Plain(stream),
                Some(tls) => match timeout(HANDSHAKE, tls.accept(stream)).await {
                    Ok(Ok(stream)) => Stream::Sealed(Box::new(stream)),
                    _ => return,
                },
            };
            let visit = Visit {
                stream,
                until: Box::pin(sleep(VISIT)),
                _permit: permit,
            };
            // The runtime ends.
            let _ = come.send((visit, from)).await;
        });
    }
}

enum Stream {
    Plain(TcpStream),
    Sealed(Box<TlsStream<TcpStream>>),
}

/// A connection that ends by itself.
pub struct Visit {
    stream: Stream,
    until: Pin<Box<Sleep>>,
    _permit: OwnedSemaphorePermit,
}

impl Visit {
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.until.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for Visit {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Sealed(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Visit {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Stream::Sealed(stream) => Pin::new(stream).poll_write(context, bytes),
        }
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
