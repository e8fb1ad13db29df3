//! The accepted peers. Their messages are merged into one queue, and answers go directly to their sockets. A peer costs
//! a task and a descriptor. While the queue is full, a peer's messages wait in its own socket.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::conduit::{ConduitError, Inlet, Outlet};

/// Maximum number of messages waiting for the aggregator, which takes one every few microseconds.
const WAITING: usize = 256;

type Outlets = BTreeMap<u64, Arc<Outlet>>;

/// A handle that adds accepted peers.
#[derive(Clone)]
pub struct Entrance {
    inbox: Sender<(u64, Vec<u8>)>,
    outlets: Arc<Mutex<Outlets>>,
    last: Arc<AtomicU64>,
}

/// The receiving end for all peers.
pub struct Hall {
    inbox: Receiver<(u64, Vec<u8>)>,
    /// Keeps the queue open even if there are no peers.
    entrance: Entrance,
}

impl Hall {
    /// Creates a hall without peers.
    pub fn build() -> Hall {
        let (sender, inbox) = channel(WAITING);
        Hall {
            inbox,
            entrance: Entrance {
                inbox: sender,
                outlets: Arc::default(),
                last: Arc::default(),
            },
        }
    }

    /// Returns the handle by which peers are added.
    pub fn entrance(&self) -> Entrance {
        self.entrance.clone()
    }

    /// Returns the next message of any peer, and the peer's number. Cancel-safe.
    pub async fn recv(&mut self) -> Option<(u64, Vec<u8>)> {
        self.inbox.recv().await
    }

    /// Ends a peer's connection.
    pub fn end(&self, peer: u64) {
        if let Some(outlet) = self.entrance.outlets().get(&peer) {
            outlet.end();
        }
    }

    /// Ends all current connections.
    pub fn end_all(&self) {
        self.entrance.outlets().values().for_each(|outlet| outlet.end());
    }

    /// Sends an answer to a peer. A peer that is gone or does not read will ask again.
    pub fn send(&self, peer: u64, message: &[u8]) {
        let outlet = self.entrance.outlets().get(&peer).cloned();
        if let Some(outlet) = outlet {
            outlet.send(message);
        }
    }
}

impl Entrance {
    /// Reads a peer until its connection ends.
    ///
    /// # Errors
    /// [`ConduitError`] says why the connection ended.
    pub async fn admit(self, mut inlet: Inlet, outlet: Arc<Outlet>) -> Result<(), ConduitError> {
        let peer = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.outlets().insert(peer, outlet);
        let _leave = Leave(&self, peer);
        let mut said = Vec::new();
        loop {
            let ended = inlet.recv(|message| said.push(message.to_vec())).await;
            for message in said.drain(..) {
                // The aggregator has ended, so messages have no receiver.
                if self.inbox.send((peer, message)).await.is_err() {
                    return Ok(());
                }
            }
            ended?;
        }
    }

    /// Returns the number of accepted peers.
    pub fn peers(&self) -> usize {
        self.outlets().len()
    }

    fn outlets(&self) -> MutexGuard<'_, Outlets> {
        self.outlets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes a peer when it is dropped, however the peer's task ends.
struct Leave<'a>(&'a Entrance, u64);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.outlets().remove(&self.1);
    }
}
