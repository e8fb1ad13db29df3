//! Rendezvous of ranks that know only one address. Each rank sends its listen address to rank 0, and receives those of
//! all others.

use std::net::{SocketAddr, TcpListener};

use super::hello::Hello;
use super::reception::dial;
use super::{Handshake, Place, Purpose, Seat, Wire};
use crate::transport::{Deadline, TransportError};

/// Size limit of an address as text, which can be IPv6 with a scope and a port.
const LONGEST: usize = 80;

/// What a rank knows before the rendezvous.
pub struct Meeting {
    /// This rank.
    pub rank: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// Rank 0's listen address, as reachable from this rank.
    pub master: SocketAddr,
    /// Rank 0's listener, if it is open already. Otherwise rank 0 binds one to `master`.
    pub listener: Option<TcpListener>,
    /// The group's ID; see [`Place::group`].
    pub group: u64,
    /// The handshake; see [`Place::handshake`].
    pub handshake: Option<Handshake>,
}

/// Joins a group through rank 0's address.
pub fn meet(meeting: Meeting, deadline: &Deadline) -> Result<Seat, TransportError> {
    let deadline = deadline.part("rendezvous");
    if meeting.rank == 0 {
        host(meeting, &deadline)
    } else {
        visit(meeting, &deadline)
    }
}

fn host(meeting: Meeting, deadline: &Deadline) -> Result<Seat, TransportError> {
    let bind = || TcpListener::bind(meeting.master);
    let listener = meeting.listener.map_or_else(bind, Ok);
    let listener =
        listener.map_err(|error| deadline.local(&format!("listening on {}", meeting.master), error))?;
    let mut seat = Seat::take(Place {
        rank: 0,
        peers: vec![meeting.master; meeting.ranks],
        listener,
        group: meeting.group,
        handshake: meeting.handshake,
    })
    .map_err(|error| deadline.local("the listener", error))?;
    let mut guests = Vec::new();
    let mut table = vec![meeting.master];
    for peer in 1..meeting.ranks {
        let guest = seat.connect(peer, Purpose::Meeting, deadline)?;
        table.push(read_addresses(&guest, 1, deadline)?[0]);
        guests.push(guest);
    }
    for guest in &guests {
        write_addresses(guest, &table, deadline)?;
    }
    seat.set_peers(table);
    Ok(seat)
}

fn visit(meeting: Meeting, deadline: &Deadline) -> Result<Seat, TransportError> {
    let Meeting {
        rank,
        ranks,
        master,
        group,
        handshake,
        ..
    } = meeting;
    let hello = Hello {
        purpose: Purpose::Meeting,
        group,
        rank,
        ranks,
    };
    let stream = dial(master, 0, &hello, handshake.as_ref(), deadline)?;
    let local = |error| deadline.local("the listener", error);
    // Listen on the local address of the connection to rank 0, because it is reachable from rank 0's network.
    let here = stream.local_addr().map_err(local)?.ip();
    let listener = TcpListener::bind((here, 0)).map_err(local)?;
    let ours = listener.local_addr().map_err(local)?;
    let host = Wire::new(stream, 0).map_err(local)?;
    write_addresses(&host, &[ours], deadline)?;
    let mut peers = read_addresses(&host, ranks, deadline)?;
    peers[0] = master;
    Seat::take(Place {
        rank,
        peers,
        listener,
        group,
        handshake,
    })
    .map_err(local)
}

fn write_addresses(wire: &Wire, addresses: &[SocketAddr], deadline: &Deadline) -> Result<(), TransportError> {
    let mut bytes = Vec::new();
    for address in addresses {
        let text = address.to_string();
        bytes.push(text.len() as u8);
        bytes.extend_from_slice(text.as_bytes());
    }
    wire.write(&bytes, deadline)
}

fn read_addresses(wire: &Wire, count: usize, deadline: &Deadline) -> Result<Vec<SocketAddr>, TransportError> {
    let one = || {
        let mut length = [0];
        wire.read(&mut length, deadline)?;
        let mut text = vec![0; usize::from(length[0]).min(LONGEST)];
        wire.read(&mut text, deadline)?;
        let text = String::from_utf8_lossy(&text);
        text.parse().map_err(|_| TransportError::Garbage {
            phase: deadline.phase().to_owned(),
            peer: wire.peer,
            what: "an invalid address".to_owned(),
        })
    };
    (0..count).map(|_| one()).collect()
}
