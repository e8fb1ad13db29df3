//! Finds the address of a job's aggregator.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

use paceline_health::codec::hash::fnv;
use paceline_health::id::{JobId, NodeId};

use crate::warn;

/// First port that a job's name may map to. The range is below the kernel's own range for outgoing connections (32768).
const FIRST_PORT: u16 = 20_000;
/// Number of ports that names map to.
const PORTS: u64 = 12_000;
/// Number of adjacent ports to try, in case another program uses the first.
const CANDIDATES: u16 = 4;

/// Why a configured address cannot be used for an aggregator.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PlaceError {
    /// The name does not resolve.
    #[error("aggregator address {0}: {1}")]
    Unknown(String, String),
}

/// Checks the syntax of an aggregator's address: HOST, HOST:PORT, or a comma-separated list with relays before it.
///
/// # Errors
/// The expected syntax.
pub fn check(asked: &str) -> Result<(), String> {
    let mut parts: Vec<&str> = asked.split(',').map(str::trim).collect();
    let is_list = parts.len() > 1;
    let aggregator = parts.pop().unwrap_or_default();
    let mut wrong = parts.into_iter().filter(|relay| !has_port(relay));
    match wrong.next().or((!is_host(aggregator)).then_some(aggregator)) {
        None => Ok(()),
        Some(wrong) if is_list => Err(format!(
            "{wrong:?} is not an address: must be HOST or HOST:PORT with RELAY:PORT before it, such as \
             n1:4712,n2:4712,head:4711"
        )),
        Some(_) => Err("must be HOST or HOST:PORT, such as node-0 or 10.0.0.1:29600".to_owned()),
    }
}

/// Returns true for HOST, HOST:PORT or an IPv6 address.
fn is_host(text: &str) -> bool {
    let is_bare = !text.is_empty() && !text.contains([':', '/', ' ']);
    is_bare || text.parse::<IpAddr>().is_ok() || has_port(text)
}

/// Returns true if the text is HOST:PORT.
pub fn has_port(text: &str) -> bool {
    let port = text.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    port.is_some_and(|(_, port)| port.parse::<u16>().is_ok_and(|port| port > 0))
}

/// An address at which the aggregator may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The address to connect to.
    pub at: SocketAddr,
    /// The address to listen on if the aggregator runs here. `None` for a relay, because no sidecar replaces a missing
    /// relay.
    pub own: Option<SocketAddr>,
}

impl Candidate {
    /// Returns a candidate that only this host can reach.
    pub const fn local(port: u16) -> Candidate {
        let at = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
        Candidate { at, own: Some(at) }
    }

    /// Returns true if other hosts may reach it.
    pub fn is_shared(&self) -> bool {
        !self.own.unwrap_or(self.at).ip().is_loopback()
    }
}

/// Returns the addresses to try, in order. They come from the configured HOST:PORT or HOST, or else are this host's
/// own. Without a port, the ports are derived from the job's name. In a comma-separated list, the last address is the
/// aggregator's. Those before it are relays', which must have a port. Each node starts with a different relay, so that
/// the same list spreads the load. A name in a list that does not resolve now is skipped.
///
/// # Errors
/// [`PlaceError`] if no configured address is left.
pub fn candidates(asked: Option<&str>, job: &JobId, node: &NodeId) -> Result<Vec<Candidate>, PlaceError> {
    let Some(asked) = asked else {
        return Ok(derived(job).map(Candidate::local).to_vec());
    };
    let (relays, asked) = asked.rsplit_once(',').unwrap_or(("", asked));
    let relays = relays.split(',').filter(|relay| !relay.trim().is_empty());
    let mut all = Vec::new();
    for relay in relays {
        match one(relay.trim(), job).as_deref() {
            Ok([relay]) => all.push(Candidate { own: None, ..*relay }),
            Err(error) => warn::once("relay name", format_args!("{error}")),
            Ok(_) => {
                return Err(PlaceError::Unknown(
                    relay.to_owned(),
                    "a relay needs a port".to_owned(),
                ));
            }
        }
    }
    if !all.is_empty() {
        let first = fnv(node.as_str().as_bytes()) % all.len() as u64;
        all.rotate_left(first as usize);
    }
    match one(asked.trim(), job) {
        Ok(found) => all.extend(found),
        Err(error) if all.is_empty() => return Err(error),
        Err(error) => warn::once("aggregator name", format_args!("{error}")),
    }
    Ok(all)
}

fn one(asked: &str, job: &JobId) -> Result<Vec<Candidate>, PlaceError> {
    let with_port = asked.rsplit_once(':').and_then(|(host, port)| {
        let port = port.parse().ok().filter(|port| *port > 0)?;
        (!host.contains(':') || host.starts_with('[')).then_some((host, vec![port]))
    });
    let (host, ports) = with_port.unwrap_or_else(|| (asked, derived(job).to_vec()));
    let (at, own) = addresses(host.trim_start_matches('[').trim_end_matches(']'))
        .map_err(|error| PlaceError::Unknown(asked.to_owned(), error))?;
    let candidate = |port| Candidate {
        at: SocketAddr::new(at, port),
        own: Some(SocketAddr::new(own, port)),
    };
    Ok(ports.into_iter().map(candidate).collect())
}

/// Returns the address of a host, and the address to listen on if that host is this one.
fn addresses(host: &str) -> Result<(IpAddr, IpAddr), String> {
    let found = (host, 0).to_socket_addrs().map_err(|error| error.to_string())?;
    let found: Vec<IpAddr> = found.map(|address| address.ip()).collect();
    let is_loopback = |ip: &&IpAddr| ip.is_loopback();
    let Some(at) = found.iter().find(is_loopback).or(found.first()) else {
        return Err("no such host".to_owned());
    };
    // Many systems resolve a host's own name to loopback (127.0.1.1), while other hosts resolve it to its network
    // address.
    let is_own_name = at.is_loopback() && host.parse::<IpAddr>().is_err() && host != "localhost";
    let own = match at {
        IpAddr::V4(_) if is_own_name => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) if is_own_name => Ipv6Addr::UNSPECIFIED.into(),
        other => *other,
    };
    Ok((*at, own))
}

fn derived(job: &JobId) -> [u16; CANDIDATES as usize] {
    let hash = fnv(job.as_str().as_bytes());
    let base = FIRST_PORT + (hash % PORTS) as u16;
    std::array::from_fn(|i| base + i as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let (job, node) = (JobId::from("train-7"), NodeId::from("n"));
        let derived = candidates(None, &job, &node).unwrap();
        assert_eq!(derived, candidates(None, &job, &node).unwrap());
        assert_eq!(derived.len(), 4);
        for candidate in &derived {
            assert!(!candidate.is_shared() && candidate.own == Some(candidate.at));
            assert!((20_000..32_768).contains(&candidate.at.port()));
        }
        assert_ne!(derived, candidates(None, &"train-8".into(), &node).unwrap());
        let check = |asked: &str| {
            let found = candidates(Some(asked), &job, &node).unwrap();
            (found.len(), found[0].at.to_string(), found[0].is_shared())
        };
        assert_eq!(check("127.0.0.1:4711"), (1, "127.0.0.1:4711".into(), false));
        assert_eq!(check("[::1]:4711"), (1, "[::1]:4711".into(), false));
        assert_eq!(check("10.1.2.3:4711"), (1, "10.1.2.3:4711".into(), true));
        assert!(check("localhost:4711").1.ends_with(":4711"));
        let port = derived[0].at.port();
        assert_eq!(check("10.1.2.3"), (4, format!("10.1.2.3:{port}"), true));
        assert_eq!(check("fd00::1"), (4, format!("[fd00::1]:{port}"), true));
        assert!(matches!(
            candidates(Some("no such host:1"), &job, &node),
            Err(PlaceError::Unknown(..))
        ));
    }

    #[test]
    fn relays_come_first_and_are_never_taken_for_ours() {
        let job = JobId::from("j");
        let asked = "127.0.0.1:1,127.0.0.1:2, 127.0.0.1:3,127.0.0.1:9";
        let mut firsts: Vec<u16> = (0..60)
            .map(|node| {
                let found = candidates(Some(asked), &job, &format!("n{node}").as_str().into()).unwrap();
                let mut ports: Vec<u16> = found.iter().map(|at| at.at.port()).collect();
                assert_eq!(ports[3], 9, "the aggregator is the last resort");
                assert!(found[..3].iter().all(|relay| relay.own.is_none()));
                assert_eq!(found[3].own, Some(found[3].at));
                let first = ports[0];
                ports.sort_unstable();
                assert_eq!(ports, [1, 2, 3, 9]);
                first
            })
            .collect();
        firsts.sort_unstable();
        for relay in 1..=3 {
            let share = firsts.iter().filter(|first| **first == relay).count();
            assert!((8..40).contains(&share), "{firsts:?}");
        }
        let portless = candidates(Some("127.0.0.1,127.0.0.1:9"), &job, &"n".into());
        assert!(portless.unwrap_err().to_string().contains("a relay needs a port"));
    }

    #[test]
    fn what_may_be_asked_for() {
        for good in [
            "node-0",
            "node-0:4711",
            "10.0.0.1",
            "fd00::1",
            "[fd00::1]:4711",
            "n1:4712, n2:4712,head",
        ] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for wrong in ["", ":", "here:", ":1", "here:0", "a b", "/tmp/x"] {
            assert!(check(wrong).unwrap_err().starts_with("must be HOST"), "{wrong}");
        }
        for (wrong, part) in [
            (",", "\"\""),
            ("n1:4712,", "\"\""),
            (",head", "\"\""),
            ("n1,head", "\"n1\""),
            ("n1:4712,head:", "\"head:\""),
        ] {
            let why = check(wrong).unwrap_err();
            assert!(
                why.starts_with(part) && why.contains("RELAY:PORT"),
                "{wrong}: {why}"
            );
        }
    }

    #[test]
    fn a_name_of_several_that_means_nothing_is_left_out() {
        let (job, node) = ("j".into(), "n".into());
        let places = |asked: &str| -> Vec<String> {
            let found = candidates(Some(asked), &job, &node).unwrap();
            found.iter().map(|place| place.at.to_string()).collect()
        };
        assert_eq!(places("no such host:1,127.0.0.1:4711"), ["127.0.0.1:4711"]);
        assert_eq!(places("127.0.0.1:4712,no such host:1"), ["127.0.0.1:4712"]);
        assert!(candidates(Some("no such host:1,no such host:2"), &job, &node).is_err());
    }
}
