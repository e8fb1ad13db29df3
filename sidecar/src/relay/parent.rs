//! A relay's link to the next hop, which is another relay or the aggregator.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use paceline_seal::SealError;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use crate::guard::Key;
use crate::guard::conduit::{self, ConduitError, Inlet, Outlet};
use crate::guard::tunnel;
use crate::uplink::bundle::Carried;
use crate::uplink::wire::{Down, Hello, Up, decode_down, encode};

/// Deadline for each step of joining.
const DEADLINE: Duration = Duration::from_secs(2);
/// Interval between attempts while the aggregator reads its journal.
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// How long the aggregator may read its journal.
const LATER_DEADLINE: Duration = Duration::from_secs(120);

/// Why there is no parent at an address, or why the parent was lost.
#[derive(Debug, thiserror::Error)]
pub enum Miss {
    /// The parent does not answer.
    #[error("no answer")]
    Silent,
    /// The parent is the job's aggregator, but its version does not support relays.
    #[error("the aggregator's version does not support relays: update paceline there")]
    Old,
    /// The parent refuses this relay, with this reason.
    #[error("refused: {0}")]
    Refused(String),
    /// The parent is a relay that cannot find the aggregator itself, and disconnects all waiting peers.
    #[error(
        "it did not connect this relay in time: it finds no aggregator either; make sure that its own \
         --aggregator does not point back here"
    )]
    NoWay,
    /// The parent cannot be reached.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The parent does not have the job's key.
    #[error("{0}")]
    Seal(#[from] SealError),
    /// The connection is over.
    #[error("{0}")]
    Over(#[from] ConduitError),
}

/// A link to a parent, after its handshake.
pub struct Parent {
    /// The parent's address.
    pub address: SocketAddr,
    inlet: Inlet,
    out: Arc<Outlet>,
}

impl Parent {
    /// Joins a parent. The steps are the gate's handshake, the same greeting as a node's, and an empty bundle. Only a
    /// parent that supports relays answers the bundle.
    ///
    /// # Errors
    /// [`Miss`]
    pub async fn join(address: SocketAddr, key: &Key, me: &Hello) -> Result<Parent, Miss> {
        let connected = timeout(DEADLINE, TcpStream::connect(address)).await;
        let mut stream = connected.map_err(|_| Miss::Silent)??;
        tunnel::tune(&stream);
        let called = timeout(DEADLINE, tunnel::call(&mut stream, key)).await;
        let pair = called.map_err(|_| Miss::Silent)??;
        let (inlet, out) = conduit::sealed(stream, pair, "DEALER");
        let mut parent = Parent { address, inlet, out };
        parent.greet(me).await?;
        parent.send(Vec::new());
        let carries = |down: &Down| matches!(down, Down::Carried(_));
        match parent.answer(carries).await {
            Err(Miss::Silent) => Err(Miss::Old),
            other => other.map(|_| parent),
        }
    }

    async fn greet(&mut self, me: &Hello) -> Result<(), Miss> {
        let began = Instant::now();
        let concerns = |down: &Down| match down {
            Down::Welcome(welcome) => welcome.is_for(me),
            Down::Later(later) => later.job == me.job,
            Down::Refused(_) => true,
            _ => false,
        };
        let mut was_let_wait = false;
        loop {
            self.out.send(&encode(&Up::Hello(me.clone())));
            match self.answer(concerns).await {
                Ok(Down::Refused(refused)) => return Err(Miss::Refused(refused.why)),
                Ok(Down::Later(_)) if began.elapsed() < LATER_DEADLINE => {
                    was_let_wait = true;
                    sleep(ASK_AGAIN).await;
                }
                Ok(Down::Later(_)) => return Err(Miss::Silent),
                Ok(_) => return Ok(()),
                Err(Miss::Over(_)) if was_let_wait => return Err(Miss::NoWay),
                Err(miss) => return Err(miss),
            }
        }
    }

    /// Waits for the first matching answer and returns it.
    async fn answer(&mut self, is_one: impl Fn(&Down) -> bool) -> Result<Down, Miss> {
        let waited = timeout(DEADLINE, async {
            let mut messages = Vec::new();
            loop {
                self.recv(&mut messages).await?;
                let downs = messages
                    .drain(..)
                    .filter_map(|message| decode_down(&message).ok());
                let found: Vec<Down> = downs.filter(|down| is_one(down)).collect();
                if let Some(down) = found.into_iter().next() {
                    return Ok(down);
                }
            }
        });
        waited.await.map_err(|_| Miss::Silent)?
    }

    /// Waits for messages. Cancel-safe.
    ///
    /// # Errors
    /// [`Miss::Over`]. Messages that were received before are in `messages`.
    pub async fn recv(&mut self, messages: &mut Vec<Vec<u8>>) -> Result<(), Miss> {
        Ok(self.inlet.recv(|message| messages.push(message.to_vec())).await?)
    }

    /// Sends a bundle. If there is no room, it is dropped, and the nodes will send its contents again.
    pub fn send(&self, carried: Carried) {
        self.out.send(&encode(&Up::Carried(carried)));
    }

    /// Returns the number of bytes not yet sent to the parent.
    pub fn unsent(&self) -> usize {
        self.out.unsent()
    }
}
