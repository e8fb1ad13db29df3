//! Handles connections to the first node. It greets nodes, admits or rejects them, and reports missing nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use paceline_health::id::NodeId;
use paceline_health::preflight::Problem;
use paceline_seal::{Key, SealError, Sealed, accept};

use super::remote_fleet::SLACK;
use crate::preflight::Expected;
use crate::preflight::message::{CONTROL, Hello, MOST_BYTES, PROTOCOL, Welcome};
use crate::preflight::participant::{decode, encode};

/// Time limit for a hello.
const GREETING: Duration = Duration::from_secs(5);
/// Time limit for resolving the addresses of missing nodes.
const LOOKUP: Duration = Duration::from_secs(2);
/// Limit of rejections that are reported if the names of missing nodes are unknown.
const TOLD: usize = 8;

/// A connection with its hello, or the reason why there was no hello.
pub(super) enum Arrival {
    Hello(Box<(Hello, Sealed, SocketAddr, IpAddr)>),
    Stranger(Stranger),
}

/// A rejected connection.
pub(super) struct Stranger {
    pub(super) from: IpAddr,
    /// The name in the connection's hello, if there was a hello.
    pub(super) node: Option<NodeId>,
    pub(super) why: String,
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
            Err(error) => Arrival::Stranger(Stranger {
                from: from.ip(),
                node: None,
                why: error.to_string(),
            }),
        };
        // The gathering may be over, so that there is no receiver.
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
    let here = stream.local_addr().map_err(io)?.ip().to_canonical();
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
    // The peer may have disconnected.
    let _ = sealed.send(&encode(&refused), Instant::now() + SLACK);
}

/// Reports the missing nodes.
pub(super) fn missing<T>(
    expected: &Expected,
    guests: &BTreeMap<NodeId, T>,
    strangers: &[Stranger],
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
    let mut absent: BTreeMap<usize, Option<String>> = (0..expected.names.len())
        .filter(|at| !there.contains(at))
        .map(|at| (at, None))
        .collect();
    if absent.is_empty() {
        let what = format!(
            "{} of {} nodes came: {}{}",
            guests.len(),
            expected.count,
            guests.keys().map(NodeId::as_str).collect::<Vec<_>>().join(", "),
            strangers.iter().rev().take(TOLD).map(told).collect::<String>()
        );
        return vec![problem(None, what)];
    }
    blame(expected, &mut absent, strangers);
    absent
        .into_iter()
        .map(|(at, why)| {
            let what = why.unwrap_or_else(|| "did not come in time".to_owned());
            problem(Some(expected.names[at].as_str().into()), what)
        })
        .collect()
}

fn told(stranger: &Stranger) -> String {
    let name = stranger
        .node
        .as_ref()
        .map_or(String::new(), |node| format!("{node}: "));
    format!("; {} was rejected: {name}{}", stranger.from, stranger.why)
}

/// Adds the reasons for rejections to missing nodes. They are matched by name, or by address if there is no name.
fn blame(expected: &Expected, absent: &mut BTreeMap<usize, Option<String>>, strangers: &[Stranger]) {
    let why = |stranger: &Stranger| format!("was rejected ({}): {}", stranger.from, stranger.why);
    for stranger in strangers {
        let at = stranger.node.as_ref().and_then(|node| expected.position(node));
        if let Some(reason) = at.and_then(|at| absent.get_mut(&at)) {
            *reason = Some(why(stranger));
        }
    }
    let nameless: BTreeMap<IpAddr, &Stranger> = strangers
        .iter()
        .filter(|stranger| stranger.node.is_none())
        .map(|stranger| (stranger.from, stranger))
        .collect();
    if nameless.is_empty() {
        return;
    }
    let unknown = absent.iter().filter(|(_, reason)| reason.is_none());
    let names = unknown
        .map(|(at, _)| (*at, expected.names[*at].clone()))
        .collect();
    for (at, address) in addresses(names) {
        if let Some(stranger) = nameless.get(&address) {
            absent.insert(at, Some(why(stranger)));
        }
    }
}

/// Resolves names, with a time limit because the name service may be down.
fn addresses(names: Vec<(usize, String)>) -> Vec<(usize, IpAddr)> {
    let (sender, inbox) = mpsc::channel();
    let look = move || {
        for (at, name) in names {
            let found = (&*name, 0).to_socket_addrs().into_iter().flatten();
            let known: Vec<_> = found.map(|address| (at, address.ip())).collect();
            if sender.send(known).is_err() {
                return;
            }
        }
    };
    let mut known = Vec::new();
    if thread::Builder::new()
        .name("names".to_owned())
        .spawn(look)
        .is_ok()
    {
        let deadline = Instant::now() + LOOKUP;
        while let Ok(more) = inbox.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            known.extend(more);
        }
    }
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(names: &[&str], count: usize, strangers: &[(&str, Option<&str>, &str)], wanted: &[&str]) {
        let expected = Expected {
            count,
            names: names.iter().map(|name| (*name).to_owned()).collect(),
        };
        let guests = BTreeMap::from([(NodeId::from("n1"), ())]);
        let stranger = |(from, node, why): &(&str, Option<&str>, &str)| Stranger {
            from: from.parse().unwrap(),
            node: node.map(NodeId::from),
            why: (*why).to_owned(),
        };
        let strangers: Vec<Stranger> = strangers.iter().map(stranger).collect();
        let problems = missing(&expected, &guests, &strangers);
        let told = |problem: &Problem| {
            let node = problem.node.as_ref().map_or("-", NodeId::as_str);
            format!("{node} {}", problem.what)
        };
        assert_eq!(problems.iter().map(told).collect::<Vec<_>>(), wanted);
    }

    #[test]
    fn the_absent_are_told_with_the_reason_if_there_is_one() {
        let old = ("10.0.0.2", Some("n2.cluster"), "it runs another version");
        let keyless = ("127.0.0.1", None, "it lacks the key");
        check(&["n1"], 1, &[old], &[]);
        check(
            &["n1", "n2", "localhost", "n4.invalid"],
            4,
            &[old, keyless],
            &[
                "n2 was rejected (10.0.0.2): it runs another version",
                "localhost was rejected (127.0.0.1): it lacks the key",
                "n4.invalid did not come in time",
            ],
        );
        // If the connection sent a name, its address is ignored.
        check(
            &["n1", "localhost"],
            2,
            &[("127.0.0.1", Some("n7"), "it is not among the nodes")],
            &["localhost did not come in time"],
        );
        check(
            &[],
            2,
            &[old, keyless],
            &[
                "- 1 of 2 nodes came: n1; 127.0.0.1 was rejected: it lacks the key; 10.0.0.2 was rejected: \
                 n2.cluster: it runs another version",
            ],
        );
    }
}
