//! Bytes between a sidecar and the aggregator. The rest of the program sees these traits; only this file sees ZeroMQ.
//!
//! What the `zeromq` crate does not do is done around it: a DEALER never connects again by itself, so a link that
//! breaks is dropped and made anew; after a break its sends may seem to work and its receive waits for ever, so
//! numbering and a deadline for acknowledgements ([`super::session`]) find out. Its ROUTER takes three descriptors and
//! two more hops for each node, and its parser is no match for what peers may send: the aggregator's end speaks ZMTP
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

/// A connection that takes longer than this is given up, the first time.
pub const CONNECT_DEADLINE: Duration = Duration::from_secs(2);
/// As long as the gate gives a stranger: one that is crowded by a large job may take it.
pub const CALL_DEADLINE: Duration = Duration::from_secs(5);

/// How long to wait for something at this attempt (the first is 0): doubling, three times. Where thousands come to one that is
/// short of CPU, whoever gives up too soon has been served for nothing and comes again: nobody would ever get in.
pub fn patience(first: Duration, attempt: u32) -> Duration {
    first * (1 << attempt.min(3))
}

/// When there are no descriptors left, the next look.
const BREATH: Duration = Duration::from_millis(100);

/// A link failed.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// Whoever listens does not speak our protocol.
    #[error("taken by another program")]
    Silent,
    /// Nobody can be reached there.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// Who is there does not share the job's key.
    #[error("{0}")]
    Seal(#[from] SealError),
    /// The library's own word.
    #[error("{0}")]
    Socket(#[from] ZmqError),
}

/// A sidecar's end.
pub trait Link: Send {
    /// Hands a message over. That it was taken says nothing of its arrival.
    fn send(&mut self, message: Vec<u8>) -> impl Future<Output = Result<(), LinkError>> + Send;
    /// The next message. May be dropped while it waits.
    fn recv(&mut self) -> impl Future<Output = Result<Vec<u8>, LinkError>> + Send;
}

/// Which peer a message came from: good for answers while its link lasts, and for nothing else.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Peer(u64);

/// The aggregator's end.
pub trait Hub: Send {
    /// Answers a peer. One that is gone is no error.
    fn send(&mut self, peer: &Peer, message: Vec<u8>) -> impl Future<Output = ()> + Send;
    /// The next message of anybody. May be dropped while it waits.
    fn recv(&mut self) -> impl Future<Output = Result<(Peer, Vec<u8>), LinkError>> + Send;
}

/// [`Link`] over ZeroMQ.
pub struct Dealer {
    socket: DealerSocket,
    /// Carries its bytes to another machine.
    _tunnel: Option<Tunnel>,
}

/// A task that ends with its owner, also one who is given up half-way.
struct Tunnel(JoinHandle<()>);

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Dealer {
    /// Connects to a hub of this process.
    ///
    /// # Errors
    /// [`LinkError`] when nobody answers within two seconds.
    pub async fn connect(path: &Path) -> Result<Dealer, LinkError> {
        Dealer::connect_within(path, CONNECT_DEADLINE).await
    }

    async fn connect_within(path: &Path, deadline: Duration) -> Result<Dealer, LinkError> {
        let mut options = SocketOptions::default();
        options.no_connect_timeout();
        let mut socket = DealerSocket::with_options(options);
        let endpoint = format!("ipc://{}", path.display());
        // What is behind a tunnel may never finish its greeting.
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
    /// [`LinkError`] when at the first attempt it is not reached within two seconds, or not sealed within five; at later ones
    /// [`patience`] grows.
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
                // That it ended shows in the socket that it carried.
                let _ = tunnel::carry(stream, pair, local).await;
            }
        }));
        let connected = Dealer::connect_within(&path, reach).await;
        // It has served.
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

/// [`Hub`] for ZeroMQ's DEALERs: who comes by a Unix socket, and who is let in by the gate.
pub struct Router {
    hall: Hall,
    listening: JoinHandle<()>,
}

impl Router {
    /// Takes over a listener that nobody but this user can reach: what comes by it is not sealed.
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
                    // Of our own processes each tries again.
                    Err(_) => sleep(BREATH).await,
                }
            }
        });
        Ok(Router { hall, listening })
    }

    /// Where the gate leads.
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
            // It keeps its own entrance open.
            None => Err(LinkError::Silent),
        }
    }
}
