//! How ranks find each other and talk: a seat for each, one listener per rank, and a star around rank 0.
//!
//! What is measured does not travel here, except that links between peers are opened here. Nothing is read from a
//! connection before the [`Handshake`], if there is one, has proved who is at its other end.

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

/// Which end of a new connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It was opened here.
    Dialled,
    /// It came in.
    Accepted,
}

/// Proves the job's key on a new connection before anything else is read; hands the stream back ready for use, or says
/// no. The stream blocks, with timeouts; the deadline says how long it may take in all.
pub type Handshake = Arc<dyn Fn(TcpStream, Role, &Deadline) -> io::Result<TcpStream> + Send + Sync>;

/// Who takes part, and how this rank is reached.
pub struct Place {
    /// This rank.
    pub rank: usize,
    /// Where every rank listens, in the order of ranks.
    pub peers: Vec<SocketAddr>,
    /// Where this rank does.
    pub listener: TcpListener,
    /// The same on all ranks of a group, different from that of any other group: strangers are turned away by it.
    pub group: u64,
    /// Proves the job's key, if it has one.
    pub handshake: Option<Handshake>,
}

/// A handshake that proves `key`, a job's, and then leaves the stream bare: a bench that enciphers measures ciphers. A
/// stream that was sealed for another `purpose` is not taken.
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

/// Places for so many ranks of one process, on loopback.
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
