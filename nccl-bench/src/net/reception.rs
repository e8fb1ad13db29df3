//! A rank's seat. It has one listener that accepts its peers' connections and rejects strangers, and it opens
//! connections to peers.
//!
//! Each incoming connection is handled by a thread of a small pool, so that a silent stranger blocks no peer.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::OwnedFd;

use super::hello::{Hello, Purpose, answer, read_answer};
use super::{Handshake, Place, Role, Wire};
use crate::transport::{Deadline, TransportError};

/// Time limit for a hello.
const GREETING: Duration = Duration::from_secs(5);
/// Limit of connections handled at a time. Further connections wait in the listener's queue.
const GREETED: usize = 64;
/// Interval of attempts to reach a peer that is not listening yet.
const RETRY: Duration = Duration::from_millis(20);

/// A rank's seat in a group.
pub struct Seat {
    /// This rank.
    pub rank: usize,
    /// Number of ranks.
    pub ranks: usize,
    peers: Vec<SocketAddr>,
    group: u64,
    handshake: Option<Handshake>,
    arrivals: Receiver<(Hello, TcpStream)>,
    waiting: BTreeMap<(Purpose, usize), TcpStream>,
    /// The last rejected connection and the reason. It is kept because it may explain why a peer never connects.
    refused: Arc<Mutex<Option<String>>>,
    stop: Arc<OwnedFd>,
}

impl Seat {
    /// Starts to accept peers.
    pub fn take(place: Place) -> io::Result<Seat> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let (sender, arrivals) = channel();
        place.listener.set_nonblocking(true)?;
        let porch = Porch {
            rank: place.rank,
            ranks: place.peers.len(),
            group: place.group,
            handshake: place.handshake.clone(),
            sender,
            refused: Arc::default(),
            busy: Arc::default(),
        };
        let refused = porch.refused.clone();
        let stopped = stop.clone();
        let name = format!("reception-{}", place.rank);
        thread::Builder::new()
            .name(name)
            .spawn(move || porch.open(&place.listener, &stopped))?;
        Ok(Seat {
            rank: place.rank,
            ranks: place.peers.len(),
            peers: place.peers,
            group: place.group,
            handshake: place.handshake,
            arrivals,
            waiting: BTreeMap::new(),
            refused,
            stop,
        })
    }

    /// Returns the connection with `peer` for `purpose`. The higher rank connects, and the lower one waits for the
    /// connection.
    pub fn connect(
        &mut self,
        peer: usize,
        purpose: Purpose,
        deadline: &Deadline,
    ) -> Result<Wire, TransportError> {
        let stream = if peer < self.rank {
            self.dial(peer, purpose, deadline)?
        } else {
            self.await_peer(peer, purpose, deadline)?
        };
        Wire::new(stream, peer).map_err(|error| deadline.local("a new connection", error))
    }

    /// Returns the listen address of every rank.
    pub fn peers(&self) -> &[SocketAddr] {
        &self.peers
    }

    pub(super) fn set_peers(&mut self, peers: Vec<SocketAddr>) {
        self.peers = peers;
    }

    fn dial(&self, peer: usize, purpose: Purpose, deadline: &Deadline) -> Result<TcpStream, TransportError> {
        let hello = Hello {
            purpose,
            group: self.group,
            rank: self.rank,
            ranks: self.ranks,
        };
        dial(self.peers[peer], peer, &hello, self.handshake.as_ref(), deadline)
    }

    fn await_peer(
        &mut self,
        peer: usize,
        purpose: Purpose,
        deadline: &Deadline,
    ) -> Result<TcpStream, TransportError> {
        loop {
            if let Some(stream) = self.waiting.remove(&(purpose, peer)) {
                return Ok(stream);
            }
            let Some(left) = deadline.remaining() else {
                let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner).take();
                return Err(match refused {
                    None => deadline.passed(Some(peer)),
                    Some(what) => TransportError::Refused {
                        phase: deadline.phase().to_owned(),
                        peer,
                        reason: what,
                    },
                });
            };
            match self.arrivals.recv_timeout(left) {
                Ok((hello, stream)) => drop(self.waiting.insert((hello.purpose, hello.rank), stream)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    let error = io::Error::other("its thread ended");
                    return Err(deadline.local("the listener", error));
                }
            }
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // A write to an eventfd fails only if its counter is full, and then it is readable anyway.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
    }
}

/// Connects, retrying until the peer listens.
pub(super) fn dial(
    address: SocketAddr,
    peer: usize,
    hello: &Hello,
    handshake: Option<&Handshake>,
    deadline: &Deadline,
) -> Result<TcpStream, TransportError> {
    let unreached = |source| TransportError::Unreached {
        phase: deadline.phase().to_owned(),
        peer,
        address,
        source,
    };
    let mut last = io::Error::from(ErrorKind::TimedOut);
    while let Some(left) = deadline.remaining() {
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => return introduce(stream, peer, hello, handshake, deadline),
            Err(error) => last = error,
        }
        thread::sleep(RETRY.min(deadline.remaining().unwrap_or_default()));
    }
    Err(unreached(last))
}

fn introduce(
    stream: TcpStream,
    peer: usize,
    hello: &Hello,
    handshake: Option<&Handshake>,
    deadline: &Deadline,
) -> Result<TcpStream, TransportError> {
    let lost = |source: io::Error| match source.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => deadline.passed(Some(peer)),
        _ => TransportError::Lost {
            phase: deadline.phase().to_owned(),
            peer,
            source,
        },
    };
    let said = (|| {
        limit(&stream, deadline.remaining().unwrap_or(RETRY))?;
        let mut stream = match handshake {
            Some(handshake) => handshake(stream, Role::Dialled, deadline)?,
            None => stream,
        };
        stream.set_nonblocking(false)?;
        limit(&stream, deadline.remaining().unwrap_or(RETRY))?;
        stream.write_all(&hello.bytes())?;
        let said = read_answer(&mut stream)?;
        Ok((said, stream))
    })();
    let (said, stream) = said.map_err(lost)?;
    match said {
        Ok(()) => Ok(stream),
        Err(reason) => Err(TransportError::Refused {
            phase: deadline.phase().to_owned(),
            peer,
            reason,
        }),
    }
}

fn limit(stream: &TcpStream, left: Duration) -> io::Result<()> {
    stream.set_read_timeout(Some(left))?;
    stream.set_write_timeout(Some(left))
}

/// The state of the listener's thread.
#[derive(Clone)]
struct Porch {
    rank: usize,
    ranks: usize,
    group: u64,
    handshake: Option<Handshake>,
    sender: Sender<(Hello, TcpStream)>,
    refused: Arc<Mutex<Option<String>>>,
    busy: Arc<AtomicUsize>,
}

impl Porch {
    /// Accepts connections until `stop` is readable.
    fn open(&self, listener: &TcpListener, stop: &OwnedFd) {
        loop {
            let mut fds = [
                PollFd::new(stop, PollFlags::IN),
                PollFd::new(listener, PollFlags::IN),
            ];
            if poll(&mut fds, None).is_err_and(|error| error != rustix::io::Errno::INTR) {
                return;
            }
            if !fds[0].revents().is_empty() {
                return;
            }
            if self.busy.load(Ordering::Acquire) >= GREETED {
                thread::sleep(RETRY);
                continue;
            }
            let Ok((stream, from)) = listener.accept() else {
                continue;
            };
            self.busy.fetch_add(1, Ordering::AcqRel);
            let porch = self.clone();
            let greet = move || {
                porch.greet(stream, from);
                porch.busy.fetch_sub(1, Ordering::AcqRel);
            };
            if thread::Builder::new()
                .name("greet".to_owned())
                .spawn(greet)
                .is_err()
            {
                self.busy.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    fn greet(&self, stream: TcpStream, from: SocketAddr) {
        if let Err(problem) = self.admit(stream) {
            let text = format!("a connection from {from} was rejected: {problem}");
            *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
        }
    }

    fn admit(&self, stream: TcpStream) -> io::Result<()> {
        let deadline = Deadline::new("greeting", GREETING);
        stream.set_nonblocking(false)?;
        limit(&stream, GREETING)?;
        let mut stream = match &self.handshake {
            Some(handshake) => handshake(stream, Role::Accepted, &deadline)?,
            None => stream,
        };
        stream.set_nonblocking(false)?;
        limit(&stream, GREETING)?;
        let hello = Hello::read(&mut stream)?.and_then(|hello| self.belongs(&hello).map(|()| hello));
        let verdict = hello.as_ref().map(|_| ()).map_err(String::clone);
        stream.write_all(&answer(&verdict))?;
        match hello {
            // If the seat no longer exists, there is no receiver.
            Ok(hello) => {
                let _ = self.sender.send((hello, stream));
                Ok(())
            }
            Err(problem) => Err(io::Error::new(ErrorKind::InvalidData, problem)),
        }
    }

    fn belongs(&self, hello: &Hello) -> Result<(), String> {
        if hello.group != self.group {
            return Err("it belongs to another job".to_owned());
        }
        if hello.ranks != self.ranks {
            return Err(format!(
                "it counts {} ranks, here there are {}",
                hello.ranks, self.ranks
            ));
        }
        if hello.rank >= self.ranks || hello.rank == self.rank {
            return Err(format!("there is no rank {} of {}", hello.rank, self.ranks));
        }
        Ok(())
    }
}
