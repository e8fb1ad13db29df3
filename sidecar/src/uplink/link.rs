//! Transports bytes between a sidecar and the aggregator. The rest of the program uses these traits; only this file
//! uses ZeroMQ.
//!
//! This file works around limits of the `zeromq` crate. A DEALER never reconnects by itself, so a broken link is
//! dropped and replaced. After a break its sends may seem to succeed and its receive may wait forever; numbering and a
//! deadline for acknowledgements ([`super::session`]) detect that. Its ROUTER takes three descriptors and two more hops
//! per node, and its parser is not robust against malicious input. The aggregator's end therefore implements ZMTP
//! itself ([`crate::guard::zmtp`], docs/adr/0008).

use std::future::Future;
use std::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use paceline_seal::{Key, SealError};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use zeromq::{DealerSocket, Socket, SocketOptions, SocketRecv, SocketSend, ZmqError, ZmqMessage};

use crate::guard::den::Den;
use crate::guard::hall::{Entrance, Hall};
use crate::guard::{conduit, tunnel};

/// Timeout of the first attempt to connect.
pub const CONNECT_DEADLINE: Duration = Duration::from_secs(2);
/// Timeout of the first handshake. It is as long as the gate's deadline, because a gate crowded by a large job may take
/// that long.
pub const CALL_DEADLINE: Duration = Duration::from_secs(5);

/// Returns the timeout for this attempt (the first is 0). It is doubled with each attempt, up to three times. If
/// thousands of clients connect to a server that is short of CPU, a client that gives up too soon wastes the server's
/// work and tries again, so that no connection would ever succeed.
/// ever succeed.
pub fn patience(first: Duration, attempt: u32) -> Duration {
    first * (1 << attempt.min(3))
}

/// Pause before the next attempt if no file descriptors are left.
const BREATH: Duration = Duration::from_millis(100);

/// Why a link failed.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The listener does not use our protocol.
    #[error("taken by another program")]
    Silent,
    /// The address cannot be reached.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The peer does not have the job's key.
    #[error("{0}")]
    Seal(#[from] SealError),
    /// The library returned an error.
    #[error("{0}")]
    Socket(#[from] ZmqError),
}

/// A sidecar's end of a link.
pub trait Link: Send {
    /// Sends a message. Success does not mean that the message arrives.
    fn send(&mut self, message: Vec<u8>) -> impl Future<Output = Result<(), LinkError>> + Send;
    /// Waits for the next message. Cancel-safe.
    fn recv(&mut self) -> impl Future<Output = Result<Vec<u8>, LinkError>> + Send;
}

/// The sender of a message. Use it only to send answers. It is valid only while its link exists.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Peer(u64);

/// The aggregator's end of all links.
pub trait Hub: Send {
    /// Sends an answer to a peer. It is not an error if the peer is gone.
    fn send(&mut self, peer: &Peer, message: Vec<u8>) -> impl Future<Output = ()> + Send;
    /// Waits for the next message of any peer. Cancel-safe.
    fn recv(&mut self) -> impl Future<Output = Result<(Peer, Vec<u8>), LinkError>> + Send;
}

/// [`Link`] over ZeroMQ.
pub struct Dealer {
    socket: DealerSocket,
    /// The task that forwards the socket's bytes to another machine, if there is one.
    _tunnel: Option<Tunnel>,
}

/// A task that is aborted with its owner, even if the owner is dropped while it connects.
struct Tunnel(JoinHandle<()>);

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Dealer {
    /// Connects to a hub in this process.
    ///
    /// # Errors
    /// [`LinkError`] if there is no answer within two seconds.
    pub async fn connect(path: &Path) -> Result<Dealer, LinkError> {
        Dealer::connect_within(path, CONNECT_DEADLINE).await
    }

    async fn connect_within(path: &Path, deadline: Duration) -> Result<Dealer, LinkError> {
        let mut options = SocketOptions::default();
        options.no_connect_timeout();
        let mut socket = DealerSocket::with_options(options);
        let endpoint = format!("ipc://{}", path.display());
        // A peer behind a tunnel may never finish its greeting, so set a timeout.
        timeout(deadline, socket.connect(&endpoint))
            .await
            .map_err(|_| LinkError::Silent)??;
        Ok(Dealer {
            socket,
            _tunnel: None,
        })
    }

    /// Connects to the hub behind the gate at `address`, sealed with `key`.
    ///
    /// # Errors
    /// [`LinkError`] if, at the first attempt, the gate is not reached within two seconds or the stream is not sealed
    /// within five. At later attempts, [`patience`] gives the timeouts.
    pub async fn through(
        address: SocketAddr,
        key: &Key,
        den: &Den,
        attempt: u32,
    ) -> Result<Dealer, LinkError> {
        let reach = patience(CONNECT_DEADLINE, attempt);
        let stream = timeout(reach, TcpStream::connect(address)).await;
        let mut stream = stream.map_err(|_| LinkError::Silent)??;
        tunnel::tune(&stream);
        let called = timeout(patience(CALL_DEADLINE, attempt), tunnel::call(&mut stream, key)).await;
        let pair = called.map_err(|_| LinkError::Silent)??;
        let (listener, path) = den.listen()?;
        listener.set_nonblocking(true)?;
        let listener = tokio::net::UnixListener::from_std(listener)?;
        let tunnel = Tunnel(tokio::spawn(async move {
            if let Ok((local, _)) = listener.accept().await {
                // Errors need no handling here, because the end of the socket shows them.
                let _ = tunnel::carry(stream, pair, local).await;
            }
        }));
        let connected = Dealer::connect_within(&path, reach).await;
        // The path is no longer needed once the socket is connected.
        let _ = std::fs::remove_file(&path);
        Ok(Dealer {
            _tunnel: Some(tunnel),
            ..connected?
        })
    }
}

impl Link for Dealer {
    async fn send(&mut self, message: Vec<u8>) -> Result<(), LinkError> {
        Ok(self.socket.send(ZmqMessage::from(message)).await?)
    }

    async fn recv(&mut self) -> Result<Vec<u8>, LinkError> {
        let message = self.socket.recv().await?;
        Ok(message
            .into_vec()
            .pop()
            .map(|frame| frame.to_vec())
            .unwrap_or_default())
    }
}

/// The [`Hub`] for ZeroMQ's DEALERs. It takes connections to a Unix socket and those accepted by the gate.
pub struct Router {
    hall: Hall,
    listening: JoinHandle<()>,
}

impl Router {
    /// Takes over a listener that only this user can reach. Its connections are not sealed.
    ///
    /// # Errors
    /// [`LinkError`]
    pub fn listen(listener: UnixListener) -> Result<Router, LinkError> {
        listener.set_nonblocking(true)?;
        let listener = tokio::net::UnixListener::from_std(listener)?;
        let hall = Hall::build();
        let entrance = hall.entrance();
        let listening = tokio::spawn(async move {
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => {
                        let (inlet, outlet) = conduit::bare(stream, "ROUTER");
                        tokio::spawn(entrance.clone().admit(inlet, outlet));
                    }
                    // The clients are our own processes, and they will try again.
                    Err(_) => sleep(BREATH).await,
                }
            }
        });
        Ok(Router { hall, listening })
    }

    /// Returns the handle for the gate's accepted peers.
    pub fn entrance(&self) -> Entrance {
        self.hall.entrance()
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

impl Hub for Router {
    async fn send(&mut self, peer: &Peer, message: Vec<u8>) {
        self.hall.send(peer.0, &message);
    }

    async fn recv(&mut self) -> Result<(Peer, Vec<u8>), LinkError> {
        match self.hall.recv().await {
            Some((peer, message)) => Ok((Peer(peer), message)),
            // This cannot happen, because the hall keeps the queue open.
            None => Err(LinkError::Silent),
        }
    }
}
