//! Who comes to the first node: greeted, admitted or turned away, and what is told of those that did not come.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use paceline_health::id::NodeId;
use paceline_health::preflight::Problem;
use paceline_seal::{Key, SealError, Sealed, accept};

use super::member::{decode, encode};
use super::message::{CONTROL, Hello, MOST_BYTES, PROTOCOL, Welcome};
use super::star::{Expected, SLACK};

/// How long one may take to say who it is.
const GREETING: Duration = Duration::from_secs(5);

/// A connection that said who it is, or why it did not.
pub(super) enum Arrival {
    Hello(Box<(Hello, Sealed, SocketAddr, IpAddr)>),
    Stranger(IpAddr, String),
}

pub(super) fn greet(
    stream: TcpStream,
    from: SocketAddr,
    key: Key,
    arrivals: mpsc::Sender<Arrival>,
    busy: Arc<AtomicUsize>,
) {
    busy.fetch_add(1, Ordering::AcqRel);
    let done = Arc::clone(&busy);
    let work = move || {
        let greeted = hello(stream, &key);
        let arrival = match greeted {
            Ok((hello, sealed, here)) => Arrival::Hello(Box::new((hello, sealed, from, here))),
            Err(error) => Arrival::Stranger(from.ip(), error.to_string()),
        };
        // The gathering may be over.
        let _ = arrivals.send(arrival);
        busy.fetch_sub(1, Ordering::AcqRel);
    };
    if thread::Builder::new()
        .name("greet".to_owned())
        .spawn(work)
        .is_err()
    {
        done.fetch_sub(1, Ordering::AcqRel);
    }
}

fn hello(stream: TcpStream, key: &Key) -> Result<(Hello, Sealed, IpAddr), SealError> {
    let io = |source| SealError::Io {
        what: "stream",
        source,
    };
    stream.set_nonblocking(false).map_err(io)?;
    let here = stream.local_addr().map_err(io)?.ip();
    let deadline = Instant::now() + GREETING;
    let mut sealed = accept(stream, key, CONTROL, deadline)?;
    let bytes = sealed.receive(MOST_BYTES, deadline)?;
    Ok((decode(&bytes)?, sealed, here))
}

pub(super) fn admit<T>(
    hello: &Hello,
    job: &str,
    guests: &BTreeMap<NodeId, T>,
    expected: &Expected,
) -> Result<(), String> {
    if hello.protocol != PROTOCOL {
        return Err(format!(
            "it runs paceline {}, whose preflight speaks version {}, here it is version {PROTOCOL}",
            hello.paceline, hello.protocol
        ));
    }
    if &*hello.job != job {
        return Err(format!("it belongs to job {}", hello.job));
    }
    if guests.contains_key(&hello.node) {
        return Err(format!("there is a node called {} already", hello.node));
    }
    if !expected.names.is_empty() && expected.position(&hello.node).is_none() {
        return Err(format!("{} is not among the nodes of this preflight", hello.node));
    }
    Ok(())
}

pub(super) fn refuse(mut sealed: Sealed, why: &str) {
    let refused = Welcome::Refused { why: why.to_owned() };
    // Whether it hears that is its affair.
    let _ = sealed.send(&encode(&refused), Instant::now() + SLACK);
}

/// What is told of those that did not come.
pub(super) fn missing<T>(
    expected: &Expected,
    guests: &BTreeMap<NodeId, T>,
    strangers: &[(IpAddr, String)],
) -> Vec<Problem> {
    let problem = |node: Option<NodeId>, what: String| Problem {
        lost: true,
        node,
        phase: "rendezvous".into(),
        what: what.into(),
    };
    if guests.len() >= expected.count {
        return Vec::new();
    }
    let there: BTreeSet<usize> = guests.keys().filter_map(|node| expected.position(node)).collect();
    let absent = expected
        .names
        .iter()
        .enumerate()
        .filter(|(at, _)| !there.contains(at));
    let mut told: Vec<Problem> = absent
        .map(|(_, name)| {
            let what = reason(name, strangers).unwrap_or_else(|| "did not come in time".to_owned());
            problem(Some(NodeId::from(&**name)), what)
        })
        .collect();
    if told.is_empty() {
        let known: Vec<String> = guests.keys().map(ToString::to_string).collect();
        let turned: Vec<String> = strangers
            .iter()
            .map(|(from, why)| format!("; {from} was turned away: {why}"))
            .collect();
        let what = format!(
            "{} of {} nodes came: {}{}",
            known.len(),
            expected.count,
            known.join(", "),
            turned.concat()
        );
        told.push(problem(None, what));
    }
    told
}

/// Why a node was turned away, if it was: found by its address.
fn reason(name: &str, strangers: &[(IpAddr, String)]) -> Option<String> {
    if strangers.is_empty() {
        return None;
    }
    let own: Vec<IpAddr> = std::net::ToSocketAddrs::to_socket_addrs(&(name, 0))
        .map(|addresses| addresses.map(|address| address.ip()).collect())
        .unwrap_or_default();
    let prefix = format!("{name}: ");
    strangers
        .iter()
        .rev()
        .find(|(from, why)| own.contains(from) || why.starts_with(&prefix))
        .map(|(from, why)| {
            format!(
                "was turned away ({from}): {}",
                why.strip_prefix(&prefix).unwrap_or(why)
            )
        })
}
