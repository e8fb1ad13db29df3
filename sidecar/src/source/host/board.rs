//! Passes readings from the reading threads to the agent. A new reading replaces an older one that was not sent yet.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use paceline_health::Provenance;
use paceline_health::event::{Event, HostReading, PortReading};
use paceline_health::id::Rank;

use super::Readings;
use crate::source::Send;
use crate::warn;

/// A round that takes longer than this is reported.
const SILENT_NS: u64 = 5_000_000_000;

/// The board; see the module.
#[derive(Debug, Default)]
pub struct Board(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    hosts: BTreeMap<Option<Rank>, Readings>,
    ports: BTreeMap<Arc<str>, PortReading>,
    /// Sums over all ports, to be sent with the node's next reading.
    network: Readings,
    /// Start times of the current rounds, by thread name.
    rounds: BTreeMap<&'static str, u64>,
}

/// A round of reading. It ends when this value is dropped.
#[derive(Debug)]
pub struct Round<'a>(&'a Board, &'static str);

impl Board {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a round.
    pub fn begin(&self, thread: &'static str, now_ns: u64) -> Round<'_> {
        self.state().rounds.insert(thread, now_ns);
        Round(self, thread)
    }

    /// Adds readings of a rank or of the node. For the node, adds the sums over its ports as well.
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

    /// Adds readings of a port.
    pub fn port(&self, reading: PortReading) {
        let mut state = self.state();
        match state.ports.get_mut(&reading.port) {
            Some(kept) => kept.readings.extend(reading.readings),
            None => _ = state.ports.insert(Arc::clone(&reading.port), reading),
        }
    }

    /// Adds the sums over all ports.
    pub fn network(&self, readings: Readings) {
        self.state().network.extend(readings);
    }

    /// Sends new readings.
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
