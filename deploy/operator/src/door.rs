//! Connections with TLS, each counted, none kept that is silent for long.

mod visit;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use prometheus::{IntCounter, IntGauge};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use visit::Visit;

/// TLS is agreed on within this.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// When there are no descriptors left, the next look.
const BREATH: Duration = Duration::from_millis(50);

/// Who counts them.
#[derive(Clone, Debug)]
pub(crate) struct Counted {
    /// Connections that are open.
    pub(crate) connections: IntGauge,
    /// Those that did not agree on TLS.
    pub(crate) handshakes_failed: IntCounter,
}

/// See the module.
pub(crate) struct Door {
    come: mpsc::Receiver<(Visit, SocketAddr)>,
    address: SocketAddr,
}

impl Door {
    /// Takes in who comes to `listener`, `most` at once; the next one waits in the kernel.
    ///
    /// # Errors
    /// When it tells no address.
    pub(crate) fn of(
        listener: TcpListener,
        acceptor: TlsAcceptor,
        most: usize,
        counted: Counted,
    ) -> io::Result<Door> {
        let address = listener.local_addr()?;
        let (sender, come) = mpsc::channel(16);
        tokio::spawn(take(listener, acceptor, most, counted, sender));
        Ok(Door { come, address })
    }
}

impl axum::serve::Listener for Door {
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

async fn take(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    most: usize,
    counted: Counted,
    come: mpsc::Sender<(Visit, SocketAddr)>,
) {
    let room = Arc::new(Semaphore::new(most));
    while let Ok(permit) = Arc::clone(&room).acquire_owned().await {
        let Ok((stream, from)) = listener.accept().await else {
            sleep(BREATH).await;
            continue;
        };
        let (acceptor, counted, come) = (acceptor.clone(), counted.clone(), come.clone());
        tokio::spawn(async move {
            match handshake(stream, &acceptor).await {
                Some(stream) => {
                    let visit = Visit::new(stream, permit, counted.connections);
                    // The runtime ends.
                    let _ = come.send((visit, from)).await;
                }
                None => counted.handshakes_failed.inc(),
            }
        });
    }
}

async fn handshake(stream: TcpStream, acceptor: &TlsAcceptor) -> Option<TlsStream<TcpStream>> {
    // An answer that waits for the acknowledgement of its first half takes 40 ms more.
    stream.set_nodelay(true).ok()?;
    timeout(HANDSHAKE, acceptor.accept(stream)).await.ok()?.ok()
}
