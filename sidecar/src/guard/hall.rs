//! Who was let in: what all of them say comes out of one queue, and answers go straight to their sockets. A peer costs a
//! task and a descriptor; its messages wait in its own socket while the queue is full.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::conduit::{ConduitError, Inlet, Outlet};

/// Messages that wait for the aggregator: it takes one every few microseconds.
const WAITING: usize = 256;

type Outlets = BTreeMap<u64, Arc<Outlet>>;

/// Where peers come in.
#[derive(Clone)]
pub struct Entrance {
    inbox: Sender<(u64, Vec<u8>)>,
    outlets: Arc<Mutex<Outlets>>,
    last: Arc<AtomicU64>,
}

/// Where they are heard.
pub struct Hall {
    inbox: Receiver<(u64, Vec<u8>)>,
    /// Keeps the queue open while nobody is there.
    entrance: Entrance,
}

impl Hall {
    /// An empty one.
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

    /// Where peers come in.
    pub fn entrance(&self) -> Entrance {
        self.entrance.clone()
    }

    /// The next message of anybody, and who said it. May be dropped while it waits.
    pub async fn recv(&mut self) -> Option<(u64, Vec<u8>)> {
        self.inbox.recv().await
    }

    /// Ends somebody's connection.
    pub fn end(&self, peer: u64) {
        if let Some(outlet) = self.entrance.outlets().get(&peer) {
            outlet.end();
        }
    }

    /// Ends all connections that there are.
    pub fn end_all(&self) {
        self.entrance.outlets().values().for_each(|outlet| outlet.end());
    }

    /// Answers somebody. One that is gone, or does not read, will ask again.
    pub fn send(&self, peer: u64, message: &[u8]) {
        let outlet = self.entrance.outlets().get(&peer).cloned();
        if let Some(outlet) = outlet {
            outlet.send(message);
        }
    }
}

impl Entrance {
    /// Hears a peer until its connection ends.
    ///
    /// # Errors
    /// [`ConduitError`]: why it ended.
    pub async fn admit(self, mut inlet: Inlet, outlet: Arc<Outlet>) -> Result<(), ConduitError> {
        let peer = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.outlets().insert(peer, outlet);
        let _leave = Leave(&self, peer);
        let mut said = Vec::new();
        loop {
            let ended = inlet.recv(|message| said.push(message.to_vec())).await;
            for message in said.drain(..) {
                // Nobody listens any more: the aggregator has ended.
                if self.inbox.send((peer, message)).await.is_err() {
                    return Ok(());
                }
            }
            ended?;
        }
    }

    /// Peers that are in.
    pub fn peers(&self) -> usize {
        self.outlets().len()
    }

    fn outlets(&self) -> MutexGuard<'_, Outlets> {
        self.outlets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A peer's place is given up however its task ends.
struct Leave<'a>(&'a Entrance, u64);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.outlets().remove(&self.1);
    }
}
