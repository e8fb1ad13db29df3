//! The aggregator's door to the network. A stranger costs a handshake at most: no memory beyond it, no more than so many
//! at once, no longer than a few seconds; and is counted by why it was turned away.

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

/// Strangers that may be at the door at once.
pub const STRANGERS: usize = 2048;
/// When there is no room for another stranger, the one that has been there longest and has said nothing with our key gives up
/// its place once it has had so long: nobody can stand in the way of others by saying nothing, and all nodes of a large job that
/// come at once do not push each other out in the middle of their handshakes, however short of CPU they are.
const PATIENCE: Duration = Duration::from_secs(1);
/// Who waits in the kernel until there is.
const WAITING: i32 = 16_384;
/// Whether there is room is seen this often.
const LOOK: Duration = Duration::from_millis(5);
/// Peers that are let in at once: 16,384 nodes, and as many that have not been found to be gone.
const PEERS: usize = 32_768;
/// A handshake takes less than this.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// When there are no descriptors left, the next look.
const BREATH: Duration = Duration::from_millis(100);

/// Why somebody was turned away, or let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Too many at once.
    Crowded,
    /// Not proved in time.
    Late,
    /// No handshake of ours.
    Foreign,
    /// Another version.
    Version,
    /// Another key.
    Key,
    /// A message was changed, repeated or forged.
    Damaged,
    /// The connection broke before the key was proved.
    Broken,
}

impl Reason {
    /// All of them, in the order of their numbers.
    pub const ALL: [Reason; 7] = [
        Reason::Crowded,
        Reason::Late,
        Reason::Foreign,
        Reason::Version,
        Reason::Key,
        Reason::Damaged,
        Reason::Broken,
    ];

    /// As metrics have it.
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

    /// The end of a socket is none.
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

/// How many were turned away, by reason.
#[derive(Debug, Default)]
pub struct Turned([AtomicU64; Reason::ALL.len()]);

impl Turned {
    fn count(&self, reason: Reason) {
        if let Some(count) = self.0.get(reason as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Each reason's count.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        let counts = Reason::ALL.iter().zip(&self.0);
        counts
            .map(|(reason, count)| (reason.name(), count.load(Ordering::Relaxed)))
            .collect()
    }
}

/// One at the door.
struct Stranger {
    since: Instant,
    /// It has begun a handshake with our key. It may have heard that of another: it is not let in for it.
    has_spoken: Arc<AtomicBool>,
    task: AbortHandle,
}

impl Stranger {
    fn is_silent(&self) -> bool {
        !self.has_spoken.load(Ordering::Relaxed)
    }
}

/// The door: who knows the key is let in.
#[derive(Clone)]
pub struct Gate {
    /// What a peer has to know.
    pub key: Key,
    /// Where it leads.
    pub entrance: Entrance,
    /// Counts who is not let in.
    pub turned: Arc<Turned>,
    /// For so many strangers at once: [`STRANGERS`].
    pub room: usize,
}

impl Gate {
    /// Lets peers in until the runtime ends.
    pub async fn keep(self, listener: TcpListener) {
        // All nodes of a large job knock at once; what does not fit in the kernel's queue knocks again a second later. A system
        // that has a lower limit cuts this to it.
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
            // Handshakes that can go on go first: who is in the middle of one is not there for long.
            yield_now().await;
        }
    }

    /// Waits until somebody has left or has been silent for long enough. Who comes meanwhile waits in the kernel.
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
                // Those who have spoken are done soon, or late.
                None => sleep(LOOK).await,
            }
        }
    }

    /// The handshake; who has done it is heard by a task of its own.
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
