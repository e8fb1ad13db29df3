//! Where the threads that read meet the agent, which never reads: readings replace each other until they are told.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use paceline_health::Provenance;
use paceline_health::event::{Event, HostReading, PortReading};
use paceline_health::id::Rank;

use super::Readings;
use crate::source::Send;
use crate::warn;

/// A round that has not come back for so long is told.
const SILENT_NS: u64 = 5_000_000_000;

/// See the module.
#[derive(Debug, Default)]
pub struct Board(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    hosts: BTreeMap<Option<Rank>, Readings>,
    ports: BTreeMap<Arc<str>, PortReading>,
    /// What the ports come to, for the node's next reading.
    network: Readings,
    /// Rounds under way, by the thread's name, and when they began.
    rounds: BTreeMap<&'static str, u64>,
}

/// A round of reading, until it is dropped.
#[derive(Debug)]
pub struct Round<'a>(&'a Board, &'static str);

impl Board {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A round begins.
    pub fn begin(&self, thread: &'static str, now_ns: u64) -> Round<'_> {
        self.state().rounds.insert(thread, now_ns);
        Round(self, thread)
    }

    /// A rank was read, or the node: then with what its ports came to.
    pub fn host(&self, rank: Option<Rank>, readings: Readings) {
        let mut state = self.state();
        let network = if rank.is_none() {
            std::mem::take(&mut state.network)
        } else {
            Readings::new()
        };
        let kept = state.hosts.entry(rank).or_default();
        kept.extend(network);
        kept.extend(readings);
    }

    /// What a port said.
    pub fn port(&self, reading: PortReading) {
        let mut state = self.state();
        match state.ports.get_mut(&reading.port) {
            Some(kept) => kept.readings.extend(reading.readings),
            None => _ = state.ports.insert(Arc::clone(&reading.port), reading),
        }
    }

    /// What all ports together come to.
    pub fn network(&self, readings: Readings) {
        self.state().network.extend(readings);
    }

    /// Sends what is new.
    pub fn poll(&self, now_ns: u64, send: &mut Send<'_>) {
        let (hosts, ports, stuck) = {
            let mut state = self.state();
            let stuck = state
                .rounds
                .iter()
                .find(|(_, began)| now_ns.saturating_sub(**began) >= SILENT_NS)
                .map(|(thread, _)| *thread);
            let State { hosts, ports, .. } = &mut *state;
            (std::mem::take(hosts), std::mem::take(ports), stuck)
        };
        if let Some(thread) = stuck {
            warn::once(
                thread,
                format_args!(
                    "{thread}: the kernel does not answer; their counters are unknown until it does"
                ),
            );
        }
        for (rank, readings) in hosts {
            send(Provenance::Live, Event::Host(HostReading { rank, readings }));
        }
        for reading in ports.into_values() {
            send(Provenance::Live, Event::Port(reading));
        }
    }
}

impl Drop for Round<'_> {
    fn drop(&mut self) {
        self.0.state().rounds.remove(self.1);
    }
}
