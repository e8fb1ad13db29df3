//! Which of several addresses is tried when: one after the other, as the list has them. A relay that does not even shake
//! hands gets company after a moment: the kernel of one that was stopped takes connections for it, and while one is waited
//! for, nobody hears of this node. Who shakes hands is alive, and is left the time that it asks for.

use std::future::Future;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::aggregator::place::Candidate;

/// A relay that has not shaken hands by then does not keep others from being tried. Of thousands that come at once each waits
/// a tenth of a millisecond for each before it.
const PATIENCE: Duration = Duration::from_secs(1);
/// One that has just said nothing for seconds on a link that stood.
const PATIENCE_WITH_SILENT: Duration = Duration::from_millis(250);

/// Given by whoever has been found to be alive.
#[derive(Clone, Debug, Default)]
pub(super) struct Sign(Arc<AtomicBool>);

impl Sign {
    /// It is alive.
    pub(super) fn give(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_given(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Addresses in the order in which they are tried. On the aggregator's own host relays come last: nobody has to carry
/// anything from there. A relay that was just found silent comes behind the others.
pub(super) fn ordered(mut all: Vec<Candidate>, silent: Option<SocketAddr>) -> Vec<Candidate> {
    // Only an address of one's own can be bound.
    let is_home = |own: SocketAddr| UdpSocket::bind((own.ip(), 0)).is_ok();
    all.sort_by_cached_key(|candidate| match candidate.own {
        Some(own) if is_home(own) => 0,
        None if silent != Some(candidate.at) => 1,
        None => 2,
        Some(_) => 3,
    });
    all
}

/// Tries addresses until there is one that is good, and says of which the last was that was not, and why. An attempt gives a
/// sign when somebody is alive there.
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
                // The next one is tried as well, and whoever answers first is good.
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

    /// Documentation's, and nobody's (RFC 5737).
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

    /// What becomes of addresses: `silent` for ever, `late` (alive, and good after longer than anybody waits for the silent),
    /// `bad` at once, `good` at once. The port that was good, or that was last bad, and which were tried.
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
        // Others were bad: who is alive is waited for after all.
        assert_eq!(outcome(&["silent", "late", "bad"]), (Ok(2), vec![1, 2]));
    }
}
