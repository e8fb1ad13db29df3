//! Connects a communicator's ranks. The hub is a thread in the process that created the communicator's unique ID, and
//! uses loopback. Each rank sends its input, the thread computes, and each rank receives its output.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use crate::math;
use crate::scenario::library;

/// A rank's request for a collective.
#[derive(Clone, Debug, PartialEq)]
pub struct Wish {
    pub kind: Kind,
    pub dtype: i32,
    pub root: u32,
    /// The input. For [`Kind::Exchange`], all parts in sequence.
    pub gives: Vec<u8>,
    /// The receiving ranks and the number of bytes for each, used only for [`Kind::Exchange`].
    pub to: Vec<(u32, u64)>,
}

/// The kinds of collectives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    AllReduce,
    ReduceScatter,
    AllGather,
    Broadcast,
    Exchange,
}

const KINDS: [Kind; 5] = [
    Kind::AllReduce,
    Kind::ReduceScatter,
    Kind::AllGather,
    Kind::Broadcast,
    Kind::Exchange,
];

/// Opens a hub and returns its port.
pub fn open() -> io::Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let port = listener.local_addr()?.port();
    std::thread::spawn(move || {
        // The hub ends when a rank leaves, and the rank's peers then see closed connections.
        let _ = run(&listener);
    });
    Ok(port)
}

fn run(listener: &TcpListener) -> io::Result<()> {
    let mut ranks: Vec<Option<TcpStream>> = vec![None];
    let mut nodes = BTreeSet::new();
    while ranks.iter().any(Option::is_none) {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        let (size, rank) = (number(&mut stream)? as usize, number(&mut stream)? as usize);
        nodes.insert(bytes(&mut stream)?);
        ranks.resize_with(size, || None);
        if let Some(place) = ranks.get_mut(rank) {
            *place = Some(stream);
        }
    }
    let mut ranks: Vec<TcpStream> = ranks.into_iter().flatten().collect();
    for rank in &mut ranks {
        rank.write_all(&[u8::from(nodes.len() > 1)])?;
    }
    loop {
        let wishes = ranks.iter_mut().map(receive).collect::<io::Result<Vec<Wish>>>()?;
        let answers = answer(&wishes).ok_or(io::ErrorKind::InvalidData)?;
        for (rank, answer) in ranks.iter_mut().zip(answers) {
            put(rank, answer.len() as u64)?;
            rank.write_all(&answer)?;
        }
    }
}

/// Returns the output for each rank, or `None` if the requests differ, as when ranks call different collectives.
fn answer(wishes: &[Wish]) -> Option<Vec<Vec<u8>>> {
    let first = wishes.first()?;
    let alike = |wish: &Wish| (wish.kind, wish.dtype, wish.root) == (first.kind, first.dtype, first.root);
    if !wishes.iter().all(alike) {
        return None;
    }
    let everyone = |bytes: Vec<u8>| vec![bytes; wishes.len()];
    Some(match first.kind {
        Kind::AllReduce => everyone(sum(wishes)?),
        Kind::ReduceScatter => {
            let sum = sum(wishes)?;
            sum.chunks(sum.len() / wishes.len()).map(<[u8]>::to_vec).collect()
        }
        Kind::AllGather => everyone(
            wishes
                .iter()
                .flat_map(|wish| wish.gives.iter().copied())
                .collect(),
        ),
        Kind::Broadcast => everyone(wishes.get(first.root as usize)?.gives.clone()),
        Kind::Exchange => {
            let mut answers = vec![Vec::new(); wishes.len()];
            for wish in wishes {
                let mut rest = wish.gives.as_slice();
                for (peer, length) in &wish.to {
                    let part = rest.split_off(..*length as usize)?;
                    answers.get_mut(*peer as usize)?.extend_from_slice(part);
                }
            }
            answers
        }
    })
}

fn sum(wishes: &[Wish]) -> Option<Vec<u8>> {
    let (first, others) = wishes.split_first()?;
    let mut sum = first.gives.clone();
    for other in others {
        if other.gives.len() != sum.len() || !math::add(first.dtype, &mut sum, &other.gives) {
            return None;
        }
    }
    Some(sum)
}

fn number(from: &mut TcpStream) -> io::Result<u64> {
    let mut bytes = [0; 8];
    from.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

fn put(to: &mut TcpStream, number: u64) -> io::Result<()> {
    to.write_all(&number.to_le_bytes())
}

fn bytes(from: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; number(from)? as usize];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn receive(from: &mut TcpStream) -> io::Result<Wish> {
    let kind = *KINDS
        .get(number(from)? as usize)
        .ok_or(io::ErrorKind::InvalidData)?;
    let (dtype, root) = (number(from)? as i32, number(from)? as u32);
    let parts = number(from)?;
    let to = (0..parts)
        .map(|_| Ok((number(from)? as u32, number(from)?)))
        .collect::<io::Result<_>>()?;
    Ok(Wish {
        kind,
        dtype,
        root,
        gives: bytes(from)?,
        to,
    })
}

/// A rank's connection to the hub.
#[derive(Debug)]
pub struct Line {
    stream: TcpStream,
    /// True if there are ranks on another node.
    pub spans_nodes: bool,
}

impl Line {
    /// Connects, and waits until all ranks have joined, or until `is_aborted` returns true.
    pub fn join(port: u16, ranks: u32, rank: u32, is_aborted: impl Fn() -> bool) -> io::Result<Line> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        put(&mut stream, ranks.into())?;
        put(&mut stream, rank.into())?;
        let node = library().into_os_string().into_encoded_bytes();
        put(&mut stream, node.len() as u64)?;
        stream.write_all(&node)?;
        let mut spans_nodes = [0];
        stream.set_read_timeout(Some(LOOK))?;
        while let Err(error) = stream.read_exact(&mut spans_nodes) {
            if !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) || is_aborted() {
                return Err(error);
            }
        }
        stream.set_read_timeout(None)?;
        let spans_nodes = spans_nodes != [0];
        Ok(Line { stream, spans_nodes })
    }

    /// Sends a request and waits for the output.
    pub fn ask(&self, wish: &Wish) -> io::Result<Vec<u8>> {
        let mut stream = &self.stream;
        let mut head = vec![
            wish.kind as u64,
            wish.dtype as u64,
            u64::from(wish.root),
            wish.to.len() as u64,
        ];
        head.extend(
            wish.to
                .iter()
                .flat_map(|(peer, length)| [u64::from(*peer), *length]),
        );
        head.push(wish.gives.len() as u64);
        let head: Vec<u8> = head.into_iter().flat_map(u64::to_le_bytes).collect();
        stream.write_all(&head)?;
        stream.write_all(&wish.gives)?;
        bytes(&mut self.stream.try_clone()?)
    }

    /// Closes the connection, so that a thread that waits in [`Line::ask`] returns.
    pub fn cut(&self) {
        // Closing it twice does no harm.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

/// The polling interval while waiting for an abort.
pub const LOOK: Duration = Duration::from_millis(2);
