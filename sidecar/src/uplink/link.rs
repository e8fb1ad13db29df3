//! Bytes between a sidecar and the aggregator. The rest of the program sees these traits; only this file sees ZeroMQ.
//!
//! What the `zeromq` crate does not do is done around it: a DEALER never connects again by itself, so a link that
//! breaks is dropped and made anew; after a break its sends may seem to work and its receive waits for ever, so
//! numbering and a deadline for acknowledgements ([`super::session`]) find out; one bad peer may make a receive fail,
//! which is counted and gone over.

use std::future::Future;
use std::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use paceline_seal::{Key, SealError};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use zeromq::{
    DealerSocket, RouterSocket, Socket, SocketOptions, SocketRecv, SocketSend, ZmqError, ZmqMessage,
};

use crate::guard::den::Den;
use crate::guard::tunnel;

/// A connection that takes longer than this is given up.
const CONNECT_DEADLINE: Duration = Duration::from_secs(2);
/// Consecutive failing receives after which a hub is given up.
const MAX_FAILURES: u32 = 10_000;

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
pub struct Peer(Vec<u8>);

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
    /// What carries its bytes to another machine.
    tunnel: Option<JoinHandle<()>>,
}

impl Dealer {
    /// Connects to a hub of this process.
    ///
    /// # Errors
    /// [`LinkError`] when nobody answers within two seconds.
    pub async fn connect(path: &Path) -> Result<Dealer, LinkError> {
        let mut options = SocketOptions::default();
        options.no_connect_timeout();
        let mut socket = DealerSocket::with_options(options);
        let endpoint = format!("ipc://{}", path.display());
        // What is behind a tunnel may never finish its greeting.
        timeout(CONNECT_DEADLINE, socket.connect(&endpoint))
            .await
            .map_err(|_| LinkError::Silent)??;
        Ok(Dealer { socket, tunnel: None })
    }

    /// Connects to the hub behind the gate at `address`, sealed with `key`.
    ///
    /// # Errors
    /// [`LinkError`] when it is not reached or not sealed within two seconds each.
    pub async fn through(address: SocketAddr, key: &Key, den: &Den) -> Result<Dealer, LinkError> {
        let stream = timeout(CONNECT_DEADLINE, TcpStream::connect(address)).await;
        let mut stream = stream.map_err(|_| LinkError::Silent)??;
        tunnel::tune(&stream);
        let called = timeout(CONNECT_DEADLINE, tunnel::call(&mut stream, key)).await;
        let pair = called.map_err(|_| LinkError::Silent)??;
        let (listener, path) = den.listen()?;
        listener.set_nonblocking(true)?;
        let listener = tokio::net::UnixListener::from_std(listener)?;
        let carried = tokio::spawn(async move {
            if let Ok((local, _)) = listener.accept().await {
                // That it ended shows in the socket that it carried.
                let _ = tunnel::carry(stream, pair, local).await;
            }
        });
        let connected = Dealer::connect(&path).await;
        // It has served.
        let _ = std::fs::remove_file(&path);
        match connected {
            Ok(mut dealer) => {
                dealer.tunnel = Some(carried);
                Ok(dealer)
            }
            Err(error) => {
                carried.abort();
                Err(error)
            }
        }
    }
}

impl Drop for Dealer {
    fn drop(&mut self) {
        if let Some(tunnel) = &self.tunnel {
            tunnel.abort();
        }
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

/// [`Hub`] over ZeroMQ.
pub struct Router(RouterSocket);

impl Router {
    /// Takes over a listener that nobody but this user can reach: its parser must not meet strangers.
    ///
    /// # Errors
    /// [`LinkError`]
    pub async fn listen(listener: UnixListener) -> Result<Router, LinkError> {
        let mut socket = RouterSocket::new();
        socket.bind_listener(listener).await?;
        Ok(Router(socket))
    }
}

impl Hub for Router {
    async fn send(&mut self, peer: &Peer, message: Vec<u8>) {
        let mut envelope = ZmqMessage::from(message);
        envelope.push_front(peer.0.clone().into());
        // The peer may be gone; it will ask again.
        let _ = self.0.send(envelope).await;
    }

    async fn recv(&mut self) -> Result<(Peer, Vec<u8>), LinkError> {
        let mut failures = 0;
        loop {
            // Unconstrained: tokio's cooperative budget makes the crate's fair queue collapse at thousands of peers.
            match tokio::task::unconstrained(self.0.recv()).await {
                Ok(message) => {
                    let mut frames = message.into_vec().into_iter();
                    if let (Some(peer), Some(body)) = (frames.next(), frames.next_back()) {
                        return Ok((Peer(peer.to_vec()), body.to_vec()));
                    }
                }
                Err(error) => {
                    failures += 1;
                    if failures >= MAX_FAILURES {
                        return Err(error.into());
                    }
                    tokio::task::yield_now().await;
                }
            }
        }
    }
}
