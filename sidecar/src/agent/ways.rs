//! Order and timing of attempts at several addresses. They are tried one after the other, in list order. If a relay's
//! handshake takes too long, the next address is tried in parallel, because the kernel accepts connections even for a
//! stopped process, and this node is not monitored while it waits. A relay that completes the handshake is alive, so
//! the attempt then gets as much time as it needs.

use std::future::Future;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::aggregator::place::Candidate;

/// After this time without a handshake, the next address is tried too. When thousands of nodes connect at once, each
/// waits a tenth of a millisecond for every node ahead of it.
const PATIENCE: Duration = Duration::from_secs(1);
/// The same timeout for a relay that just did not respond for seconds on an established link.
const PATIENCE_WITH_SILENT: Duration = Duration::from_millis(250);

/// Set when a peer has shown that it is alive.
#[derive(Clone, Debug, Default)]
pub(super) struct Sign(Arc<AtomicBool>);

impl Sign {
    /// Marks the peer as alive.
    pub(super) fn give(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_given(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Returns the addresses in the order in which to try them. On the aggregator's own host, the aggregator comes first,
/// because no relay is needed there; elsewhere, it comes last. A relay that just did not respond comes after the other
/// relays.
pub(super) fn ordered(mut all: Vec<Candidate>, silent: Option<SocketAddr>) -> Vec<Candidate> {
    // Binding succeeds only for an address of this host.
    let is_home = |own: SocketAddr| UdpSocket::bind((own.ip(), 0)).is_ok();
    all.sort_by_cached_key(|candidate| match candidate.own {
        Some(own) if is_home(own) => 0,
        None if silent != Some(candidate.at) => 1,
        None => 2,
        Some(_) => 3,
    });
    all
}

/// Tries addresses until one succeeds. Otherwise returns the address that failed last, with its error. An attempt sets
/// its `Sign` when its peer is alive.
pub(super) async fn first_good<T, E, F>(
    all: &[Candidate],
    silent: Option<SocketAddr>,
    attempt: impl Fn(Candidate, Sign) -> F,
) -> Result<T, Option<(Candidate, E)>>
where
    T: Send + 'static,
    E: Send + 'static,
    F: Future<Output = Result<T, E>> + Send + 'static,
{
    let mut tries = JoinSet::new();
    let mut last_miss = None;
    for (place, candidate) in all.iter().copied().enumerate() {
        let sign = Sign::default();
        let attempt = attempt(candidate, sign.clone());
        tries.spawn(async move { (candidate, attempt.await) });
        let is_relay = candidate.own.is_none() && place + 1 < all.len();
        let mut patience = is_relay.then_some(if silent == Some(candidate.at) {
            PATIENCE_WITH_SILENT
        } else {
            PATIENCE
        });
        loop {
            let ended = match patience {
                Some(patience) => timeout(patience, tries.join_next()).await,
                None => Ok(tries.join_next().await),
            };
            match ended {
                Err(_) if sign.is_given() => patience = None,
                // Try the next one as well; the first success wins.
                Err(_) | Ok(None) => break,
                Ok(Some(Ok((_, Ok(good))))) => return Ok(good),
                Ok(Some(Ok((missed, Err(miss))))) => {
                    last_miss = Some((missed, miss));
                    if missed == candidate {
                        break;
                    }
                }
                Ok(Some(Err(_))) => {}
            }
        }
    }
    while let Some(ended) = tries.join_next().await {
        match ended {
            Ok((_, Ok(good))) => return Ok(good),
            Ok((missed, Err(miss))) => last_miss = Some((missed, miss)),
            Err(_) => {}
        }
    }
    Err(last_miss)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::time::sleep;

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    fn relay(port: u16) -> Candidate {
        Candidate {
            own: None,
            ..Candidate::local(port)
        }
    }

    /// An address reserved for documentation (RFC 5737).
    fn elsewhere(port: u16) -> Candidate {
        let at = SocketAddr::new([192, 0, 2, 1].into(), port);
        Candidate { at, own: Some(at) }
    }

    #[test]
    fn the_order() {
        let ports = |all: Vec<Candidate>, silent: Option<u16>| -> Vec<u16> {
            let silent = silent.map(|port| relay(port).at);
            let ordered = ordered(all, silent).into_iter();
            ordered.map(|candidate| candidate.at.port()).collect()
        };
        let all = vec![relay(3), relay(1), relay(2), elsewhere(9)];
        assert_eq!(ports(all.clone(), None), [3, 1, 2, 9]);
        assert_eq!(ports(all, Some(3)), [1, 2, 3, 9]);
        let at_home = vec![relay(3), relay(1), Candidate::local(9)];
        assert_eq!(ports(at_home, None), [9, 3, 1]);
    }

    /// Runs attempts with these outcomes: `silent` never ends, `late` is alive and succeeds after the timeout for
    /// silent peers, `bad` fails at once, `good` succeeds at once. Returns the port that succeeded or failed last, and
    /// the ports tried.
    fn outcome(fates: &[&'static str]) -> (Result<u16, u16>, Vec<u16>) {
        let all: Vec<Candidate> = (1..).zip(fates).map(|(port, _)| relay(port)).collect();
        let tried = Arc::new(Mutex::new(Vec::new()));
        let attempt = |candidate: Candidate, sign: Sign| {
            let (fate, tried) = (fates[usize::from(candidate.at.port()) - 1], Arc::clone(&tried));
            async move {
                let port = candidate.at.port();
                tried.lock().unwrap().push(port);
                match fate {
                    "silent" => sleep(LONG).await,
                    "late" => {
                        sign.give();
                        sleep(PATIENCE * 2).await;
                    }
                    _ => {}
                }
                if fate == "bad" { Err(()) } else { Ok(port) }
            }
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let found = runtime.block_on(first_good(&all, None, attempt));
        let found = found.map_err(|last| last.unwrap().0.at.port());
        let tried = tried.lock().unwrap().clone();
        (found, tried)
    }

    #[test]
    fn who_is_silent_is_not_waited_for_and_who_is_alive_is() {
        assert_eq!(outcome(&["good", "good"]), (Ok(1), vec![1]));
        assert_eq!(outcome(&["bad", "good"]), (Ok(2), vec![1, 2]));
        assert_eq!(outcome(&["bad", "bad"]), (Err(2), vec![1, 2]));
        assert_eq!(outcome(&["silent", "good"]), (Ok(2), vec![1, 2]));
        assert_eq!(outcome(&["bad", "silent", "good"]), (Ok(3), vec![1, 2, 3]));
        assert_eq!(outcome(&["late", "good"]), (Ok(1), vec![1]));
        // The other attempts failed, so the attempt that is alive is still awaited.
        assert_eq!(outcome(&["silent", "late", "bad"]), (Ok(2), vec![1, 2]));
    }
}
