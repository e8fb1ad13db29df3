//! Accepts TLS connections. Each connection is counted, and is closed after a long idle time.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use prometheus::{IntCounter, IntGauge};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::connection::Connection;

/// Time limit of the TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Pause when the process is out of file descriptors.
const BREATH: Duration = Duration::from_millis(50);

/// Metrics of connections.
#[derive(Clone, Debug)]
pub(crate) struct Counted {
    /// Open connections.
    pub(crate) connections: IntGauge,
    /// Failed handshakes.
    pub(crate) handshakes_failed: IntCounter,
}

/// The listener; see the module documentation.
pub(crate) struct TlsListener {
    come: mpsc::Receiver<(Connection, SocketAddr)>,
    address: SocketAddr,
}

impl TlsListener {
    /// Accepts connections of `listener`, at most `most` at once. Further connections wait in the kernel.
    ///
    /// # Errors
    /// Returns an error if the listener has no address.
    pub(crate) fn of(
        listener: TcpListener,
        acceptor: TlsAcceptor,
        most: usize,
        counted: Counted,
    ) -> io::Result<TlsListener> {
        let address = listener.local_addr()?;
        let (sender, come) = mpsc::channel(16);
        tokio::spawn(take(listener, acceptor, most, counted, sender));
        Ok(TlsListener { come, address })
    }
}

/// Listens on an address. For [::] on a machine without IPv6, it listens on all IPv4 addresses instead.
///
/// # Errors
/// Returns the address and the system's error if the address cannot be bound.
pub(crate) async fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let bound = match TcpListener::bind(address).await {
        Err(problem) => match instead(address, &problem) {
            Some(other) => TcpListener::bind(other).await,
            None => Err(problem),
        },
        bound => bound,
    };
    bound.with_context(|| address.to_string())
}

/// Returns the address to use instead of one that cannot be bound. There is none if the address is in use or forbidden.
fn instead(address: SocketAddr, problem: &io::Error) -> Option<SocketAddr> {
    let is_of_address = matches!(
        problem.kind(),
        io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied
    );
    let is_any = address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    (is_any && !is_of_address).then(|| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port()))
}

impl axum::serve::Listener for TlsListener {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        match self.come.recv().await {
            Some(connection) => connection,
            // The runtime is shutting down.
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
    come: mpsc::Sender<(Connection, SocketAddr)>,
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
                    let connection = Connection::new(stream, permit, counted.connections);
                    // The runtime is shutting down.
                    let _ = come.send((connection, from)).await;
                }
                None => counted.handshakes_failed.inc(),
            }
        });
    }
}

async fn handshake(stream: TcpStream, acceptor: &TlsAcceptor) -> Option<TlsStream<TcpStream>> {
    // With Nagle's algorithm, a response in two parts would take 40 ms longer.
    stream.set_nodelay(true).ok()?;
    timeout(HANDSHAKE, acceptor.accept(stream)).await.ok()?.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel without IPv6 returns EAFNOSUPPORT (97). A kernel with IPv6 disabled on the interface returns
    /// EADDRNOTAVAIL (99).
    #[test]
    fn without_ipv6_all_addresses_are_those_of_ipv4() {
        let check = |address: &str, code: i32, wanted: Option<&str>| {
            let other = instead(address.parse().unwrap(), &io::Error::from_raw_os_error(code));
            assert_eq!(
                other,
                wanted.map(|text| text.parse().unwrap()),
                "{address} {code}"
            );
        };
        for code in [97, 99] {
            check("[::]:9443", code, Some("0.0.0.0:9443"));
            check("[::1]:9443", code, None);
            check("10.0.0.1:9443", code, None);
        }
        for code in [13, 98] {
            check("[::]:9443", code, None);
        }
    }
}
