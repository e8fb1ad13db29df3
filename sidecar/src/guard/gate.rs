//! The aggregator's network listener. An unauthenticated connection costs no more than a handshake: it uses no other
//! memory, lasts a few seconds at most, and their number is limited. Each rejection is counted by reason.

use std::collections::VecDeque;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use paceline_seal::{Key, SealError};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, yield_now};
use tokio::time::{Instant, sleep, timeout};

use super::conduit::{self, ConduitError};
use super::hall::Entrance;
use super::tunnel;
use crate::{host, warn};

/// Maximum number of unauthenticated connections at a time.
pub const STRANGERS: usize = 2048;
/// How long a connection is safe from being closed to make room. If there is no room for a new connection, the oldest
/// one that has not sent a handshake with our key is closed after this time. Silent connections thus cannot block
/// others, and nodes of a large job that connect all at once do not abort each other's handshakes, even if CPU is
/// scarce.
const PATIENCE: Duration = Duration::from_secs(1);
/// Length of the kernel's queue of connections that are not accepted yet.
const WAITING: i32 = 16_384;
/// Interval between checks for room.
const LOOK: Duration = Duration::from_millis(5);
/// Maximum number of accepted peers. It allows for 16,384 nodes, and as many dead connections that are not detected
/// yet.
const PEERS: usize = 32_768;
/// Deadline for a handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Pause before the next attempt if no file descriptors are left.
const BREATH: Duration = Duration::from_millis(100);

/// Why a connection was rejected or closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// There were too many connections at once.
    Crowded,
    /// The handshake exceeded its deadline.
    Late,
    /// The peer did not send a handshake of this protocol.
    Foreign,
    /// The peer has another version.
    Version,
    /// The peer has another key.
    Key,
    /// A message was changed, repeated or forged.
    Damaged,
    /// The connection broke during the handshake.
    Broken,
}

impl Reason {
    /// All reasons, in the order of their discriminants.
    pub const ALL: [Reason; 7] = [
        Reason::Crowded,
        Reason::Late,
        Reason::Foreign,
        Reason::Version,
        Reason::Key,
        Reason::Damaged,
        Reason::Broken,
    ];

    /// Returns the label value in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Crowded => "crowded",
            Reason::Late => "late",
            Reason::Foreign => "foreign",
            Reason::Version => "version",
            Reason::Key => "key",
            Reason::Damaged => "damaged",
            Reason::Broken => "broken",
        }
    }

    /// Returns the reason to count for an error. Returns `None` if the socket was simply closed or failed, because that
    /// is not a rejection.
    fn of_end(error: &ConduitError) -> Option<Reason> {
        match error {
            ConduitError::Io(_) => None,
            ConduitError::Seal(error) => Some(Reason::of(error)),
            ConduitError::Zmtp(_) => Some(Reason::Foreign),
        }
    }

    fn of(error: &SealError) -> Reason {
        match error {
            SealError::Deadline { .. } => Reason::Late,
            SealError::Io { .. } => Reason::Broken,
            SealError::Foreign => Reason::Foreign,
            SealError::Version { .. } => Reason::Version,
            SealError::Key => Reason::Key,
            SealError::Damaged | SealError::TooLong { .. } => Reason::Damaged,
        }
    }
}

/// Number of rejected connections, by reason.
#[derive(Debug, Default)]
pub struct Turned([AtomicU64; Reason::ALL.len()]);

impl Turned {
    fn count(&self, reason: Reason) {
        if let Some(count) = self.0.get(reason as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns each reason's count.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        let counts = Reason::ALL.iter().zip(&self.0);
        counts
            .map(|(reason, count)| (reason.name(), count.load(Ordering::Relaxed)))
            .collect()
    }
}

/// A connection before the end of its handshake.
struct Stranger {
    since: Instant,
    /// True if the connection has sent a first message made with our key. The message may be a replay, so it does not
    /// authenticate the peer.
    has_spoken: Arc<AtomicBool>,
    task: AbortHandle,
}

impl Stranger {
    fn is_silent(&self) -> bool {
        !self.has_spoken.load(Ordering::Relaxed)
    }
}

/// The listener. It accepts peers that have the key.
#[derive(Clone)]
pub struct Gate {
    /// The key that a peer must have.
    pub key: Key,
    /// Receives the accepted peers.
    pub entrance: Entrance,
    /// Counts rejected connections.
    pub turned: Arc<Turned>,
    /// Maximum number of unauthenticated connections, normally [`STRANGERS`].
    pub room: usize,
}

impl Gate {
    /// Accepts peers until the runtime ends.
    pub async fn keep(self, listener: TcpListener) {
        // All nodes of a large job connect at once. A connection that does not fit into the kernel's queue is retried
        // only a second later, so make the queue long. The kernel may reduce this to its own limit.
        let _ = rustix::net::listen(&listener, WAITING);
        let listener = listener
            .set_nonblocking(true)
            .and_then(|()| tokio::net::TcpListener::from_std(listener));
        let listener = match listener {
            Ok(listener) => listener,
            Err(error) => {
                return warn::once(
                    "gate",
                    format_args!("the aggregator accepts no connections: {error}"),
                );
            }
        };
        let mut strangers: VecDeque<Stranger> = VecDeque::new();
        let peers = Arc::new(Semaphore::new(PEERS));
        loop {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    let limit = host::raise_descriptors();
                    warn::once(
                        "accept",
                        format_args!(
                            "a connection could not be accepted: {error}; every node uses one of {limit} file \
                             descriptors \
                             (ulimit -n, LimitNOFILE=)"
                        ),
                    );
                    sleep(BREATH).await;
                    continue;
                }
            };
            self.make_room(&mut strangers).await;
            let has_spoken = Arc::<AtomicBool>::default();
            let meeting = self
                .clone()
                .meet(stream, Arc::clone(&peers), Arc::clone(&has_spoken));
            strangers.push_back(Stranger {
                since: Instant::now(),
                has_spoken,
                task: tokio::spawn(meeting).abort_handle(),
            });
            // Let pending handshakes continue first, so that they end soon and free their places.
            yield_now().await;
        }
    }

    /// Waits until a connection has ended, or until one has been silent for long enough to be closed. New connections
    /// meanwhile wait in the kernel.
    async fn make_room(&self, strangers: &mut VecDeque<Stranger>) {
        while strangers.len() >= self.room {
            strangers.retain(|stranger| !stranger.task.is_finished());
            if strangers.len() < self.room {
                return;
            }
            let silent = strangers.iter().position(Stranger::is_silent);
            match silent.filter(|at| strangers[*at].since.elapsed() >= PATIENCE) {
                Some(at) => {
                    if let Some(longest) = strangers.remove(at) {
                        longest.task.abort();
                        self.turned.count(Reason::Crowded);
                    }
                }
                // No connection may be closed yet. The handshakes in progress will end soon or reach their deadline.
                None => sleep(LOOK).await,
            }
        }
    }

    /// Performs the handshake. If the peer is accepted, another task then reads its messages.
    async fn meet(self, mut stream: TcpStream, peers: Arc<Semaphore>, has_spoken: Arc<AtomicBool>) {
        tunnel::tune(&stream);
        let spoken = || has_spoken.store(true, Ordering::Relaxed);
        let shaken = timeout(HANDSHAKE, tunnel::answer_call(&mut stream, &self.key, spoken));
        let late = Err(SealError::Deadline { what: "handshake" });
        let pair = match shaken.await.unwrap_or(late) {
            Ok(pair) => pair,
            Err(error) => return self.turned.count(Reason::of(&error)),
        };
        let Ok(peer) = peers.try_acquire_owned() else {
            return self.turned.count(Reason::Crowded);
        };
        let (inlet, outlet) = conduit::sealed(stream, pair, "ROUTER");
        tokio::spawn(async move {
            let ended = self.entrance.admit(inlet, outlet).await;
            if let Some(reason) = ended.err().and_then(|error| Reason::of_end(&error)) {
                self.turned.count(reason);
            }
            drop(peer);
        });
    }
}
