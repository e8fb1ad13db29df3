//! Accepts connections to the page while there is room, with TLS if configured.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::IncomingStream;
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::connection::{Connection, HEAD, Stream};
use super::slots::{Client, Slot, Slots};

/// Maximum number of connections that are answered at a time although there is no slot for them.
const MAX_REFUSALS: usize = 16;
/// How long a client without a slot may take to read the answer.
const REFUSAL: Duration = Duration::from_secs(1);
/// Pause before the next attempt if no file descriptors are left.
const BREATH: Duration = Duration::from_millis(100);
const FULL: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 5\r\nContent-Length: 37\r\n\r\n\
# too many requests, try again soon.\n";

/// Loads certificates and their key, for TLS 1.2 and 1.3.
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

/// The accepted connections.
pub struct Visitors {
    come: mpsc::Receiver<(Connection, Client)>,
    address: SocketAddr,
}

impl Visitors {
    /// Starts to accept connections.
    ///
    /// # Errors
    /// The system's error.
    pub fn of(listener: TcpListener, tls: Option<TlsAcceptor>) -> io::Result<Visitors> {
        let address = listener.local_addr()?;
        let (sender, come) = mpsc::channel(1);
        tokio::spawn(take(listener, tls, sender));
        Ok(Visitors { come, address })
    }
}

impl axum::serve::Listener for Visitors {
    type Io = Connection;
    type Addr = Client;

    async fn accept(&mut self) -> (Connection, Client) {
        match self.come.recv().await {
            Some(come) => come,
            // The runtime is shutting down.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<Client> {
        Ok(Slots::new().client(self.address))
    }
}

impl Connected<IncomingStream<'_, Visitors>> for Client {
    fn connect_info(stream: IncomingStream<'_, Visitors>) -> Client {
        stream.remote_addr().clone()
    }
}

async fn take(listener: TcpListener, tls: Option<TlsAcceptor>, come: mpsc::Sender<(Connection, Client)>) {
    let slots = Slots::new();
    let refusals = Arc::new(Semaphore::new(MAX_REFUSALS));
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            sleep(BREATH).await;
            continue;
        };
        let Some(slot) = slots.take() else {
            if let (Ok(permit), None) = (Arc::clone(&refusals).try_acquire_owned(), &tls) {
                tokio::spawn(async move {
                    let _ = timeout(REFUSAL, refuse(stream)).await;
                    drop(permit);
                });
            }
            continue;
        };
        let (tls, come, client) = (tls.clone(), come.clone(), slots.client(from));
        tokio::spawn(async move {
            if let Some(connection) = begin(stream, tls, slot).await {
                // The runtime is shutting down.
                let _ = come.send((connection, client)).await;
            }
        });
    }
}

async fn begin(stream: TcpStream, tls: Option<TlsAcceptor>, mut slot: Slot) -> Option<Connection> {
    let stream = match tls {
        None => Stream::Plain(stream),
        Some(tls) => tokio::select! {
            agreed = timeout(HEAD, tls.accept(stream)) => Stream::Sealed(Box::new(agreed.ok()?.ok()?)),
            () = slot.evicted() => return None,
        },
    };
    Some(Connection::new(stream, slot))
}

/// Answers that there is no room. It also reads the request, because closing a socket with unread bytes would discard
/// the answer.
async fn refuse(mut stream: TcpStream) -> io::Result<()> {
    stream.write_all(FULL).await?;
    stream.shutdown().await?;
    let mut rest = [0; 1024];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}
