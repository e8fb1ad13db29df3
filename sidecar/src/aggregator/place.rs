//! Where a job's aggregator is.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};

use paceline_health::id::JobId;

/// First port that a job's name may lead to; below the kernel's own range for outgoing connections (32768).
const FIRST_PORT: u16 = 20_000;
/// Ports that a name is spread over.
const PORTS: u64 = 12_000;
/// Neighbouring ports that are tried when the first is another program's.
const CANDIDATES: u16 = 4;

/// Why an address that was asked for cannot be an aggregator's.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PlaceError {
    /// The name leads nowhere.
    #[error("aggregator address {0}: {1}")]
    Unknown(String, String),
    /// Not on loopback.
    #[error(
        "aggregator address {0} is not loopback: peers are not authenticated yet, so each node is watched alone"
    )]
    NotLoopback(SocketAddr),
}

/// The addresses to try, in order: the one that was asked for, or those that follow from the job's name.
///
/// # Errors
/// [`PlaceError`] for an address that was asked for.
pub fn candidates(asked: Option<&str>, job: &JobId) -> Result<Vec<SocketAddr>, PlaceError> {
    let Some(asked) = asked else {
        return Ok(derived(job));
    };
    let unknown = |error: String| PlaceError::Unknown(asked.to_owned(), error);
    let found = asked
        .to_socket_addrs()
        .map_err(|error| unknown(error.to_string()))?;
    let found: Vec<SocketAddr> = found.collect();
    match (
        found.iter().find(|address| address.ip().is_loopback()),
        found.first(),
    ) {
        (Some(address), _) => Ok(vec![*address]),
        (None, Some(address)) => Err(PlaceError::NotLoopback(*address)),
        (None, None) => Err(unknown("no such host".to_owned())),
    }
}

fn derived(job: &JobId) -> Vec<SocketAddr> {
    // FNV-1a (http://www.isthe.com/chongo/tech/comp/fnv/): the same on every node and in every version.
    let hash = job
        .as_str()
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    let base = FIRST_PORT + (hash % PORTS) as u16;
    (0..CANDIDATES)
        .map(|i| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), base + i))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let job = JobId::from("train-7");
        let derived = candidates(None, &job).unwrap();
        assert_eq!(derived, candidates(None, &job).unwrap());
        assert_eq!(derived.len(), 4);
        assert!(
            derived
                .iter()
                .all(|a| a.ip().is_loopback() && (20_000..32_768).contains(&a.port()))
        );
        assert_ne!(derived, candidates(None, &"train-8".into()).unwrap());
        let check = |asked: &str| candidates(Some(asked), &job).map(|found| found[0].to_string());
        assert_eq!(check("127.0.0.1:4711"), Ok("127.0.0.1:4711".to_owned()));
        assert_eq!(check("[::1]:4711"), Ok("[::1]:4711".to_owned()));
        assert!(check("localhost:4711").unwrap().ends_with(":4711"));
        assert!(
            check("10.1.2.3:4711")
                .unwrap_err()
                .to_string()
                .contains("not authenticated yet")
        );
        assert!(matches!(check("127.0.0.1"), Err(PlaceError::Unknown(..))));
    }
}
