//! Connections between ranks. Each rank has a seat with one listener, and all ranks form a star around rank 0.
//!
//! Measured data does not pass through this module, but links between peers are opened here. If there is a
//! [`Handshake`], nothing else is read from a connection before the handshake has authenticated the peer.

mod control;
mod hello;
mod reception;
mod rendezvous;
mod wire;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use paceline_seal::{Key, SealError, Sealed};

pub use control::Control;
pub use hello::Purpose;
pub use reception::Seat;
pub use rendezvous::{Meeting, meet};
pub use wire::Wire;
pub(crate) use wire::{is_pause, ready};

use crate::transport::Deadline;

/// This process's side of a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// This process opened the connection.
    Dialled,
    /// This process accepted the connection.
    Accepted,
}

/// Authenticates a new connection with the job's key before any other data is read. Returns the stream ready for use,
/// or an error. The stream is blocking, with timeouts, and the deadline limits the total time.
pub type Handshake = Arc<dyn Fn(TcpStream, Role, &Deadline) -> io::Result<TcpStream> + Send + Sync>;

/// The members of a group, and this rank's listener.
pub struct Place {
    /// This rank.
    pub rank: usize,
    /// The listen address of every rank, in rank order.
    pub peers: Vec<SocketAddr>,
    /// This rank's listener.
    pub listener: TcpListener,
    /// The group's ID, which is the same on all of its ranks and differs from other groups. It is used to reject
    /// strangers.
    pub group: u64,
    /// Authenticates with the job's key, if the job has one.
    pub handshake: Option<Handshake>,
}

/// Returns a handshake that authenticates with `key`, the job's key, and then leaves the stream unencrypted. With
/// encryption, the bench would measure ciphers. A stream for another `purpose` is rejected.
pub fn sealed(key: Key, purpose: &'static str) -> Handshake {
    Arc::new(move |stream, role, deadline: &Deadline| {
        let sealed = match role {
            Role::Dialled => paceline_seal::dial(stream, &key, purpose, deadline.at()),
            Role::Accepted => paceline_seal::accept(stream, &key, purpose, deadline.at()),
        };
        sealed.map(Sealed::into_bare).map_err(|error| match error {
            SealError::Io { source, .. } => source,
            SealError::Deadline { .. } => io::Error::new(io::ErrorKind::TimedOut, error),
            other => io::Error::new(io::ErrorKind::PermissionDenied, other),
        })
    })
}

/// Returns places for this many ranks in one process, on loopback.
pub fn loopback(ranks: usize, handshake: Option<Handshake>) -> io::Result<Vec<Place>> {
    let listen = |_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let listeners: Vec<TcpListener> = (0..ranks).map(listen).collect::<io::Result<_>>()?;
    let peers: Vec<SocketAddr> = listeners
        .iter()
        .map(TcpListener::local_addr)
        .collect::<io::Result<_>>()?;
    let place = |(rank, listener)| Place {
        rank,
        peers: peers.clone(),
        listener,
        group: 0,
        handshake: handshake.clone(),
    };
    Ok(listeners.into_iter().enumerate().map(place).collect())
}
