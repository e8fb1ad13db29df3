//! Bytes between a sidecar and the aggregator. The rest of the program uses these traits; only this file uses ZeroMQ.
//!
//! Workarounds for limits of the `zeromq` crate: a DEALER never reconnects by itself, so a broken link is dropped and
//! replaced; after a break its sends may seem to succeed and its receive may wait forever, so numbering and a deadline
//! for acknowledgements ([`super::session`]) detect that. Its ROUTER takes three descriptors and two more hops per
//! node, and its parser is not robust against malicious input: the aggregator's end implements ZMTP itself
//! ([`crate::guard::zmtp`], docs/adr/0008).

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

/// Timeout of a connection attempt, the first time.
pub const CONNECT_DEADLINE: Duration = Duration::from_secs(2);
/// As long as the gate's deadline for a handshake: a gate crowded by a large job may take that long.
pub const CALL_DEADLINE: Duration = Duration::from_secs(5);

/// The timeout for this attempt (the first is 0): doubled up to three times. If thousands of clients connect to a
/// server short of CPU, a client that gives up too soon wastes the server's work and tries again: no connection would
/// ever succeed.
pub fn patience(first: Duration, attempt: u32) -> Duration {
    first * (1 << attempt.min(3))
}

/// Pause before the next attempt when no descriptors are left.
const BREATH: Duration = Duration::from_millis(100);

/// A link failed.
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
    /// An error of the library.
    #[error("{0}")]
    Socket(#[from] ZmqError),
}

/// A sidecar's end.
pub trait Link: Send {
    /// Sends a message. Success does not mean that it arrives.
    fn send(&mut self, message: Vec<u8>) -> impl Future<Output = Result<(), LinkError>> + Send;
    /// The next message. Cancel-safe.
    fn recv(&mut self) -> impl Future<Output = Result<Vec<u8>, LinkError>> + Send;
}

/// The source of a message: valid for answers while its link exists, and for nothing else.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Peer(u64);

/// The aggregator's end.
pub trait Hub: Send {
    /// Answers a peer. A peer that is gone is not an error.
    fn send(&mut self, peer: &Peer, message: Vec<u8>) -> impl Future<Output = ()> + Send;
    /// The next message of any peer. Cancel-safe.
    fn recv(&mut self) -> impl Future<Output = Result<(Peer, Vec<u8>), LinkError>> + Send;
}

/// [`Link`] over ZeroMQ.
pub struct Dealer {
    socket: DealerSocket,
    /// Forwards its bytes to another machine.
    _tunnel: Option<Tunnel>,
}

/// A task that is aborted with its owner, also if the owner is dropped during the connection.
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
        // A peer behind a tunnel may never finish its greeting.
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
    /// [`LinkError`] if at the first attempt it is not reached within two seconds, or not sealed within five; at later
    /// attempts according to [`patience`].
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
                // The socket that it forwards shows its end.
                let _ = tunnel::carry(stream, pair, local).await;
            }
        }));
        let connected = Dealer::connect_within(&path, reach).await;
        // No longer needed.
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

/// [`Hub`] for ZeroMQ's DEALERs: connections to a Unix socket, and those accepted by the gate.
pub struct Router {
    hall: Hall,
    listening: JoinHandle<()>,
}

impl Router {
    /// Takes over a listener that only this user can reach: its connections are not sealed.
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
                    // They are our own processes, and will try again.
                    Err(_) => sleep(BREATH).await,
                }
            }
        });
        Ok(Router { hall, listening })
    }

    /// For the gate's accepted peers.
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
            // Unreachable: the hall keeps its own entrance open.
            None => Err(LinkError::Silent),
        }
    }
}
