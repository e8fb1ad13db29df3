//! A node's session with the first node. It finds the first node, performs tasks, and receives the report.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use paceline_health::id::NodeId;
use paceline_health::preflight::Report;
use paceline_seal::{Key, SealError, Sealed, dial};

use super::tools::Tools;
use crate::preflight::PreflightError;
use crate::preflight::measurement::Rank;
use crate::preflight::measurement::group::{self, Hand};
use crate::preflight::message::{
    Answer, Ask, CONTROL, Failed, Found, Hello, MOST_REPORT, Order, PROTOCOL, Welcome,
};
use crate::preflight::mode::{Limits, Mode};
use crate::preflight::transport_choice::TransportChoice;
use crate::transport::Deadline;

/// Interval of attempts to reach a first node that is not listening yet.
const RETRY: Duration = Duration::from_millis(100);
/// Time limit for a handshake with the first node.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Additional time after the total, for the first node's work after the last phase.
const GRACE: Duration = Duration::from_secs(10);

/// Identity of this node.
#[derive(Clone, Debug)]
pub struct Me {
    /// The node's name.
    pub node: NodeId,
    /// The job.
    pub job: Arc<str>,
    /// The job's key.
    pub key: Key,
    /// Version of the program.
    pub paceline: Arc<str>,
}

/// Takes part in a preflight until the first node sends the report or disconnects.
pub fn attend(
    first: &str,
    me: &Me,
    tools: &dyn Tools,
    wait: Duration,
    phase: &mut dyn FnMut(&str),
) -> Result<Report, PreflightError> {
    let deadline = Instant::now() + wait;
    phase("rendezvous");
    let (mut stream, own) = find(first, me, deadline)?;
    let (listener, port) = listen(own).map_err(PreflightError::Listen)?;
    let mut door = Door {
        listener,
        port,
        first: None,
    };
    let hello = Hello {
        protocol: PROTOCOL,
        paceline: Arc::clone(&me.paceline),
        node: me.node.clone(),
        job: Arc::clone(&me.job),
        port: door.port,
    };
    let mut now: Arc<str> = "rendezvous".into();
    let lost = |phase: &Arc<str>, source| PreflightError::FirstLost {
        first: first.to_owned(),
        phase: Arc::clone(phase),
        source,
    };
    send(&mut stream, &hello, deadline).map_err(|error| lost(&now, error))?;
    // The first node may wait for other nodes longer than this node needed to connect.
    let patience = deadline + wait + GRACE;
    let mode = match receive(&mut stream, patience).map_err(|error| lost(&now, error))? {
        Welcome::Come { mode } => mode,
        Welcome::Refused { why } => return Err(PreflightError::Refused { why }),
    };
    let limits = mode.limits();
    let end = Instant::now() + wait + limits.total + GRACE;
    loop {
        let ask: Ask = receive(&mut stream, end).map_err(|error| lost(&now, error))?;
        now = Arc::clone(&ask.phase);
        phase(&ask.phase);
        if let Order::Done(report) = ask.order {
            return Ok(*report);
        }
        let result = perform(&ask, me, tools, &limits, &mut door);
        let answer = Answer {
            id: ask.id,
            result,
            port: door.port,
        };
        send(&mut stream, &answer, end).map_err(|error| lost(&now, error))?;
    }
}

/// What is prepared for the next group.
struct Door {
    listener: TcpListener,
    port: u16,
    /// The first NCCL rank, if this node leads a group.
    first: Option<Rank>,
}

fn perform(ask: &Ask, me: &Me, tools: &dyn Tools, limits: &Limits, door: &mut Door) -> Result<Found, Failed> {
    let deadline = Deadline::new(&*ask.phase, Duration::from_millis(ask.limit_ms));
    let own = door
        .listener
        .local_addr()
        .map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |own| own.ip());
    let first = door.first.take();
    match &ask.order {
        Order::Snapshot => tools.snapshot(&me.node, &deadline),
        Order::Work { round } => tools.work(&me.node, *round, limits, &deadline),
        Order::Local { round, over } => tools.local(&me.node, *round, over, limits, &deadline),
        Order::Open {
            over: TransportChoice::Tcp,
        } => Ok(Found::default()),
        Order::Open {
            over: TransportChoice::Nccl(team),
        } => {
            let (rank, opened) = group::open(&tools.launch(), team, own, &deadline)?;
            door.first = Some(rank);
            Ok(Found {
                opened: Some(opened),
                ..Found::default()
            })
        }
        Order::Group(group) => {
            // Each group has a separate listener, so that late connections for the previous group cannot reach the next
            // one.
            let failed = |error: io::Error| Failed {
                what: format!("{}: cannot listen: {error}", ask.phase),
                ..Failed::default()
            };
            let (next, port) = listen(own).map_err(failed)?;
            let listener = std::mem::replace(&mut door.listener, next);
            door.port = port;
            let hand = Hand {
                key: &me.key,
                listener,
                launch: &tools.launch(),
                first,
            };
            group::run(group, hand, limits, &deadline)
        }
        Order::Done(_) => Ok(Found::default()),
    }
}

/// Returns a listener for other nodes, of the address family of the connection to the first node, and the listener's
/// port.
fn listen(family: IpAddr) -> io::Result<(TcpListener, u16)> {
    let any: IpAddr = match family {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let listener = TcpListener::bind((any, 0))?;
    let port = listener.local_addr()?.port();
    Ok((listener, port))
}

/// Connects to the first node as soon as it listens. Also returns our address on that connection.
fn find(first: &str, me: &Me, deadline: Instant) -> Result<(Sealed, IpAddr), PreflightError> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name is unknown");
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(PreflightError::FirstAbsent {
                first: first.to_owned(),
                source: last,
            });
        }
        match connect(first, left) {
            Ok(stream) => {
                let own = stream.local_addr().map_err(PreflightError::Listen)?.ip();
                match dial(stream, &me.key, CONTROL, deadline.min(Instant::now() + HANDSHAKE)) {
                    Ok(sealed) => return Ok((sealed, own)),
                    // The first node has disconnected or is overloaded, so try again.
                    Err(SealError::Io { source, .. }) => last = source,
                    Err(SealError::Deadline { .. }) => {
                        last = io::Error::new(
                            io::ErrorKind::TimedOut,
                            "it accepts the connection, but sends nothing",
                        );
                    }
                    Err(error) => {
                        return Err(PreflightError::Stranger {
                            first: first.to_owned(),
                            source: error,
                        });
                    }
                }
            }
            Err(error) => last = error,
        }
        thread::sleep(RETRY);
    }
}

fn connect(first: &str, left: Duration) -> io::Result<TcpStream> {
    let addresses: Vec<SocketAddr> = first.to_socket_addrs()?.collect();
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in addresses {
        match TcpStream::connect_timeout(&address, left.min(HANDSHAKE)) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn send<T: serde::Serialize>(stream: &mut Sealed, message: &T, deadline: Instant) -> Result<(), SealError> {
    stream.send(&encode(message), deadline)
}

/// Encodes a message as JSON. This cannot fail, because every key is a string.
pub(in crate::preflight) fn encode<T: serde::Serialize>(message: &T) -> Vec<u8> {
    serde_json::to_vec(message).unwrap_or_default()
}

fn receive<T: serde::de::DeserializeOwned>(stream: &mut Sealed, deadline: Instant) -> Result<T, SealError> {
    let bytes = stream.receive(MOST_REPORT, deadline)?;
    decode(&bytes)
}

/// Decodes a message from a node that has the key, but may have another version.
pub(in crate::preflight) fn decode<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, SealError> {
    serde_json::from_slice(bytes).map_err(|error| SealError::Io {
        what: "message",
        source: io::Error::new(io::ErrorKind::InvalidData, error),
    })
}

impl Mode {
    /// Returns the time limit for a node to reach the first one.
    pub fn wait(self) -> Duration {
        self.limits().rendezvous
    }
}
