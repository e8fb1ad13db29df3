//! Determines the rendezvous of a preflight, which takes place before training's own. It comes from a list, Slurm,
//! torchrun's endpoint, or a headless service. The first node leads.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, ToSocketAddrs};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use super::expected::Expected;
use super::hosts::{HostListError, expand};
use paceline_health::codec::hash::fnv;

/// Default ports of preflights. They are below Linux's ephemeral ports (32768). The port is derived from the job's
/// name, so that two jobs do not collide.
const PORTS: std::ops::Range<u64> = 23_000..29_000;

/// Options that define the participants.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// The value of `--nodes`.
    pub nodes: Option<String>,
    /// The value of `--nodes-file`.
    pub nodes_file: Option<PathBuf>,
    /// The value of `--rendezvous`, which is HOST or HOST:PORT of the first node.
    pub rendezvous: Option<String>,
    /// The value of `--service`, which is a name that resolves to all nodes.
    pub service: Option<String>,
    /// The value of `--nnodes`.
    pub count: Option<usize>,
    /// The value of `--port`.
    pub port: Option<u16>,
    /// The list of the scheduler's nodes, if there is a scheduler.
    pub scheduled: Option<String>,
    /// The host of training's rendezvous, and the minimum number of nodes.
    pub training: Option<(String, usize)>,
    /// The name of this node.
    pub node: String,
    /// The name of the job.
    pub job: String,
}

/// Why the rendezvous is unknown.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum RendezvousError {
    #[error(transparent)]
    List(#[from] HostListError),
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{from} names no nodes")]
    Empty { from: &'static str },
    #[error("how many nodes? {from} gives one address: add --nnodes N")]
    Count { from: &'static str },
    #[error("--nnodes 0: a preflight takes one node or more")]
    NoNodes,
    #[error("--nnodes {count} without a rendezvous: add --nodes, --rendezvous or --service")]
    Nowhere { count: usize },
    #[error("--nnodes {count}: {from} names {named}")]
    Miscounted {
        count: usize,
        from: &'static str,
        named: usize,
    },
    #[error("this node, {node}, is not among {from}: {hint}")]
    Stranger {
        node: String,
        from: &'static str,
        hint: String,
    },
    #[error("{what} is not HOST or HOST:PORT")]
    Endpoint { what: String },
    #[error("the service {service} has {found} of {count} addresses after {within} s")]
    Service {
        service: String,
        found: usize,
        count: usize,
        within: u64,
    },
    #[error("cannot listen on port {port}: {source} (another port: --port)")]
    Port { port: u16, source: io::Error },
}

/// The rendezvous, and whether this node leads.
#[derive(Debug)]
pub struct Place {
    /// HOST:PORT of the first node.
    pub first: String,
    /// The listener for the other nodes, if this node is the first.
    pub listener: Option<TcpListener>,
    /// The expected nodes.
    pub expected: Expected,
}

enum Whom {
    /// The names, and the option that they came from if a user entered them.
    List(Vec<String>, Option<&'static str>),
    Endpoint(String, usize),
    /// Only the host of training's rendezvous is used. Its port is used by training itself.
    Host(String, usize),
}

/// Determines the rendezvous.
pub fn place(asked: &Asked, wait: Duration) -> Result<Place, RendezvousError> {
    let derived = derived_port(&asked.job);
    let whom = whom(asked, wait)?;
    let (host, port, expected) = match whom {
        Whom::List(names, typed) => {
            let count = names.len();
            if let Some(from) = typed {
                check(asked, from, &names)?;
            }
            (names[0].clone(), None, Expected { count, names })
        }
        Whom::Endpoint(endpoint, count) => {
            let (host, port) = split(&endpoint)?;
            let names = Vec::new();
            (host, port, Expected { count, names })
        }
        Whom::Host(host, count) => {
            let names = Vec::new();
            (host, None, Expected { count, names })
        }
    };
    // For nodes in the list, their position decides. By address alone, all nodes on one host would count as the first.
    let leads = match expected.position(&asked.node.as_str().into()) {
        Some(at) => at == 0,
        None => is_here(&host),
    };
    // If no other node connects, use any free port, because another preflight may run on this node.
    let derived = if leads && expected.count == 1 { 0 } else { derived };
    let port = asked.port.or(port).unwrap_or(derived);
    let listener = leads.then(|| listen(port)).transpose()?;
    let opened = listener.as_ref().and_then(|listener| listener.local_addr().ok());
    let port = opened.map_or(port, |at| at.port());
    let host = if host.contains(':') {
        format!("[{host}]")
    } else {
        host
    };
    Ok(Place {
        first: format!("{host}:{port}"),
        listener,
        expected,
    })
}

fn whom(asked: &Asked, wait: Duration) -> Result<Whom, RendezvousError> {
    let list = |text: &str, from| match expand(text)? {
        names if names.is_empty() => Err(RendezvousError::Empty { from }),
        names => Ok(names),
    };
    if asked.count == Some(0) {
        return Err(RendezvousError::NoNodes);
    }
    if let Some(nodes) = &asked.nodes {
        let from = "--nodes";
        return Ok(Whom::List(list(nodes, from)?, Some(from)));
    }
    if let Some(path) = &asked.nodes_file {
        let text = std::fs::read_to_string(path).map_err(|source| RendezvousError::File {
            path: path.clone(),
            source,
        })?;
        let lines: Vec<&str> = text
            .lines()
            .map(|line| line.split('#').next().unwrap_or("").trim())
            .filter(|line| !line.is_empty())
            .collect();
        let from = "--nodes-file";
        return Ok(Whom::List(list(&lines.join(","), from)?, Some(from)));
    }
    if let Some(service) = &asked.service {
        let count = asked.count.ok_or(RendezvousError::Count { from: "--service" })?;
        return Ok(Whom::Endpoint(of_service(service, count, wait)?, count));
    }
    if let Some(endpoint) = &asked.rendezvous {
        let count = asked
            .count
            .ok_or(RendezvousError::Count { from: "--rendezvous" })?;
        return Ok(Whom::Endpoint(endpoint.clone(), count));
    }
    if let Some(nodes) = &asked.scheduled {
        // The scheduler's names may differ from host names, so they are not checked.
        return Ok(Whom::List(list(nodes, "the scheduler")?, None));
    }
    if let Some((host, least)) = &asked.training {
        return Ok(Whom::Host(host.clone(), asked.count.unwrap_or(*least)));
    }
    match asked.count {
        Some(count) if count > 1 => Err(RendezvousError::Nowhere { count }),
        _ => Ok(Whom::List(vec![asked.node.clone()], None)),
    }
}

/// Checks that the common list has the expected number of names, and this node among them. A node that is missing there
/// would lead, or be mistaken for a missing node.
fn check(asked: &Asked, from: &'static str, names: &[String]) -> Result<(), RendezvousError> {
    let named = names.len();
    if let Some(count) = asked.count.filter(|count| *count != named) {
        return Err(RendezvousError::Miscounted { count, from, named });
    }
    let names = names.to_vec();
    let expected = Expected { count: named, names };
    if expected.position(&asked.node.as_str().into()).is_some() {
        return Ok(());
    }
    let here: Vec<&String> = expected.names.iter().filter(|name| is_here(name)).collect();
    let hint = match here.as_slice() {
        [name] => format!("add --node {name}"),
        _ => "set its name with --node NAME".to_owned(),
    };
    Err(RendezvousError::Stranger {
        node: asked.node.clone(),
        from,
        hint,
    })
}

/// Returns the lowest address of the service, once the service has as many addresses as there are nodes.
fn of_service(service: &str, count: usize, wait: Duration) -> Result<String, RendezvousError> {
    let deadline = Instant::now() + wait;
    loop {
        let mut addresses: Vec<IpAddr> = (service, 0)
            .to_socket_addrs()
            .map(|found| found.map(|address| address.ip()).collect())
            .unwrap_or_default();
        addresses.sort_unstable();
        addresses.dedup();
        if let Some(first) = addresses.first().filter(|_| addresses.len() >= count) {
            return Ok(match first {
                IpAddr::V4(ip) => ip.to_string(),
                IpAddr::V6(ip) => format!("[{ip}]"),
            });
        }
        if Instant::now() >= deadline {
            return Err(RendezvousError::Service {
                service: service.to_owned(),
                found: addresses.len(),
                count,
                within: wait.as_secs(),
            });
        }
        thread::sleep(Duration::from_millis(500));
    }
}

/// Splits an endpoint, which is `host`, `host:port`, `[v6]:port` or `v6`.
fn split(endpoint: &str) -> Result<(String, Option<u16>), RendezvousError> {
    let wrong = || RendezvousError::Endpoint {
        what: endpoint.to_owned(),
    };
    let parsed = |port: &str| port.parse::<u16>().map(Some).map_err(|_| wrong());
    if endpoint.is_empty() {
        return Err(wrong());
    }
    if let Some(rest) = endpoint.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or_else(wrong)?;
        let port = rest.strip_prefix(':').map_or(Ok(None), parsed)?;
        return Ok((host.to_owned(), port));
    }
    match endpoint.split_once(':') {
        Some((_, rest)) if rest.contains(':') => Ok((endpoint.to_owned(), None)),
        Some((host, port)) => Ok((host.to_owned(), parsed(port)?)),
        None => Ok((endpoint.to_owned(), None)),
    }
}

/// Returns true if the host has a local address, which is the case if binding to it succeeds.
fn is_here(host: &str) -> bool {
    (host, 0)
        .to_socket_addrs()
        .is_ok_and(|mut found| found.any(|address| TcpListener::bind(address).is_ok()))
}

fn listen(port: u16) -> Result<TcpListener, RendezvousError> {
    // On a host without IPv6, only the second bind succeeds.
    TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
        .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))
        .map_err(|source| RendezvousError::Port { port, source })
}

fn derived_port(job: &str) -> u16 {
    (PORTS.start + fnv(job.as_bytes()) % (PORTS.end - PORTS.start)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(asked: &Asked) -> Result<Place, RendezvousError> {
        place(asked, Duration::from_millis(10))
    }

    fn asked(node: &str) -> Asked {
        Asked {
            node: node.into(),
            job: "j".into(),
            ..Asked::default()
        }
    }

    #[test]
    fn whoever_says_it_first() {
        let alone = [(); 2].map(|()| found(&asked("x")).unwrap());
        assert_ne!(alone[0].first, alone[1].first, "two that are alone do not meet");

        let scheduled = Some("s[1-3]".to_owned());
        let slurm = Asked {
            scheduled: scheduled.clone(),
            ..asked("s2")
        };
        let place = found(&slurm).unwrap();
        assert_eq!(place.first, format!("s1:{}", derived_port("j")));
        assert!(place.listener.is_none());
        assert_eq!(place.expected.names, ["s1", "s2", "s3"]);

        let given = Asked {
            nodes: Some("a,b".into()),
            port: Some(4711),
            scheduled,
            ..asked("b")
        };
        let place = found(&given).unwrap();
        assert_eq!((&*place.first, place.expected.count), ("a:4711", 2));

        let torchrun = |host: &str, count| Asked {
            training: Some((host.to_owned(), 2)),
            count,
            ..asked("x")
        };
        let place = found(&torchrun("nowhere.invalid", None)).unwrap();
        assert_eq!(place.first, format!("nowhere.invalid:{}", derived_port("j")));
        let (count, names) = (2, Vec::new());
        assert_eq!(place.expected, Expected { count, names });
        assert!(place.listener.is_none());

        let place = found(&torchrun("127.0.0.1", Some(3))).unwrap();
        assert!(place.listener.is_some());
        assert_eq!(place.expected.count, 3);
    }

    #[test]
    fn alone_it_is_the_first() {
        let mut alone = asked("only");
        alone.port = Some(0);
        let place = found(&alone).unwrap();
        assert!(place.listener.is_some());
        assert_eq!(place.expected.names, ["only"]);
    }

    #[test]
    fn what_is_missing_is_told() {
        let check = |asked: &Asked, wanted: &str| assert_eq!(found(asked).unwrap_err().to_string(), wanted);
        let mut one = asked("x");
        one.rendezvous = Some("h".into());
        check(
            &one,
            "how many nodes? --rendezvous gives one address: add --nnodes N",
        );
        one.count = Some(2);
        one.rendezvous = Some("h:x".into());
        check(&one, "h:x is not HOST or HOST:PORT");
        let mut one = asked("x");
        one.count = Some(2);
        check(
            &one,
            "--nnodes 2 without a rendezvous: add --nodes, --rendezvous or --service",
        );
        one.nodes = Some("x,y,z".into());
        check(&one, "--nnodes 2: --nodes names 3");
        let mut one = asked("x");
        one.nodes = Some("127.0.0.1,nowhere.invalid".into());
        check(&one, "this node, x, is not among --nodes: add --node 127.0.0.1");
        one.nodes = Some("127.0.0.1,127.0.0.2".into());
        check(
            &one,
            "this node, x, is not among --nodes: set its name with --node NAME",
        );
        let mut one = asked("x");
        one.nodes = Some("a[1".into());
        check(&one, "host list \"a[1\", column 2: a bracket that is not closed");
        one.nodes = Some(" ".into());
        check(&one, "--nodes names no nodes");
        let mut one = asked("x");
        (one.service, one.count) = (Some("nothing.invalid".into()), Some(2));
        check(&one, "the service nothing.invalid has 0 of 2 addresses after 0 s");
    }

    #[test]
    fn endpoints() {
        let check = |text: &str, host: &str, port| {
            assert_eq!(split(text).unwrap(), (host.to_owned(), port), "{text}")
        };
        check("h", "h", None);
        check("h:1", "h", Some(1));
        check("[::1]:1", "::1", Some(1));
        check("fe80::1", "fe80::1", None);
    }
}
