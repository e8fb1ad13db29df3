//! Bytes between a sidecar and the aggregator. The rest of the program sees these traits; only this file sees ZeroMQ.
//!
//! What the `zeromq` crate does not do is done around it: a DEALER never connects again by itself, so a link that
//! breaks is dropped and made anew; after a break its sends may seem to work and its receive waits for ever, so
//! numbering and a deadline for acknowledgements ([`super::session`]) find out; one bad peer may make a receive fail,
//! which is counted and gone over.

use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use tokio::time::timeout;
use zeromq::{
    DealerSocket, RouterSocket, Socket, SocketOptions, SocketRecv, SocketSend, ZmqError, ZmqMessage,
};

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
pub struct Dealer(DealerSocket);

impl Dealer {
    /// Connects.
    ///
    /// # Errors
    /// [`LinkError`] when nobody answers within two seconds.
    pub async fn connect(address: SocketAddr) -> Result<Dealer, LinkError> {
        let mut options = SocketOptions::default();
        options.no_connect_timeout();
        let mut socket = DealerSocket::with_options(options);
        let endpoint = format!("tcp://{address}");
        // Whoever listens may be no ZeroMQ at all and never finish its greeting.
        timeout(CONNECT_DEADLINE, socket.connect(&endpoint))
            .await
            .map_err(|_| LinkError::Silent)??;
        Ok(Dealer(socket))
    }
}

impl Link for Dealer {
    async fn send(&mut self, message: Vec<u8>) -> Result<(), LinkError> {
        Ok(self.0.send(ZmqMessage::from(message)).await?)
    }

    async fn recv(&mut self) -> Result<Vec<u8>, LinkError> {
        let message = self.0.recv().await?;
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
    /// Takes over a listener that is bound to a loopback address: its parser must not meet strangers.
    ///
    /// # Errors
    /// [`LinkError`]
    pub async fn listen(listener: TcpListener) -> Result<Router, LinkError> {
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
