//! Recent readings of hosts, for each node and for each rank's process.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::facts::{Fact, Facts};
use super::series::{Series, Stamp};
use crate::detect::members::roster::MAX_RANKS;
use crate::event::{HostReading, HostSignal};
use crate::id::{NodeId, Rank};
use crate::time::Time;

/// Maximum number of nodes kept. No job has more.
const MAX_NODES: usize = 1 << 17;

/// Stored signals, in this order: one gauge, then counters.
const SIGNALS: [HostSignal; 7] = [
    HostSignal::NetRateBps,
    HostSignal::CpuThrottledNs,
    HostSignal::RunQueueNs,
    HostSignal::DiskWaitNs,
    HostSignal::MajorFaults,
    HostSignal::NetRetransmits,
    HostSignal::NetErrors,
];

type Readings = Series<1, { SIGNALS.len() }>;

/// The latest readings of every host.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Hosts {
    nodes: BTreeMap<NodeId, Readings>,
    ranks: BTreeMap<Rank, Readings>,
}

impl Hosts {
    /// Takes a reading of `node`.
    pub fn observe(&mut self, stamp: Stamp, node: &NodeId, reading: &HostReading) {
        let read = SIGNALS.map(|signal| {
            let value = reading.readings.get(&signal)?.value();
            // Store the rate in Gbit/s, for which the precision of `f32` is sufficient.
            let scale = if signal == HostSignal::NetRateBps {
                1e-9
            } else {
                1.0
            };
            value.filter(|value| value.is_finite()).map(|value| value * scale)
        });
        let readings = match reading.rank {
            Some(rank) if rank.0 < MAX_RANKS => self.ranks.entry(rank).or_default(),
            Some(_) => return,
            None => {
                if !self.nodes.contains_key(node) && self.nodes.len() >= MAX_NODES {
                    return;
                }
                self.nodes.entry(node.clone()).or_default()
            }
        };
        readings.push(stamp, &read);
    }

    /// Drops process readings, because a new group of ranks started.
    pub fn clear_ranks(&mut self) {
        self.ranks.clear();
    }

    /// Adds the facts about a rank's process and node since `since`.
    pub fn fill_facts(&self, rank: Rank, node: &NodeId, since: Time, facts: &mut Facts) {
        let places = [self.ranks.get(&rank), self.nodes.get(node)];
        for readings in places.into_iter().flatten() {
            if let Some((entries, provenance)) = readings.origin(since) {
                facts.rest_on(entries, provenance);
                let nearest = facts.host_readings.get_or_insert(0);
                *nearest = (*nearest).max(readings.readings(since));
            }
        }
        // Prefer the process's own readings to its node's, because they describe the process better.
        let nearest = |pick: &dyn Fn(&Readings) -> Option<f64>| places.into_iter().flatten().find_map(pick);
        facts.set(Fact::Contention, nearest(&|readings| contention(readings, since)));
        let share = |signal| nearest(&|readings| Some((rate(readings, signal, since)? / 1e9).min(1.0)));
        facts.set(Fact::DiskWait, share(HostSignal::DiskWaitNs));
        facts.set(
            Fact::MajorFaultRate,
            nearest(&|readings| rate(readings, HostSignal::MajorFaults, since)),
        );
        if let Some(readings) = places[1] {
            facts.set(Fact::NetErrorRate, network_errors(readings, since));
            facts.set(Fact::NetRate, readings.gauge(0, since));
        }
    }

    /// Returns how many seconds a rank's process (or its node, where processes are not read) waited for a CPU since the
    /// reading at `since`, and the time of the last reading. Returns `None` if there is no reading after `since`.
    pub fn waited_for_cpu(&self, rank: Rank, node: &NodeId, since: Time) -> Option<(f64, Time)> {
        let readings = self.ranks.get(&rank).or_else(|| self.nodes.get(node))?;
        let grown = CPU_WAITS.iter().filter_map(|signal| {
            let (grew_ns, at) = readings.growth_after(place(*signal)?, since)?;
            Some((grew_ns / 1e9, at))
        });
        grown.max_by(|one, other| one.0.total_cmp(&other.0))
    }
}

/// Time without a CPU because the quota was exhausted, and because no CPU was free. Only the larger of the two is used,
/// since one may include the other.
const CPU_WAITS: [HostSignal; 2] = [HostSignal::CpuThrottledNs, HostSignal::RunQueueNs];

/// Returns the typical share of time with the quota exhausted or with no CPU free, whichever is larger.
fn contention(readings: &Readings, since: Time) -> Option<f64> {
    let shares = CPU_WAITS
        .iter()
        .filter_map(|signal| readings.typical_rate(place(*signal)?, since));
    shares.reduce(f64::max).map(|ns| ns / 1e9)
}

/// Returns retransmissions, errors and discards per second.
fn network_errors(readings: &Readings, since: Time) -> Option<f64> {
    [HostSignal::NetRetransmits, HostSignal::NetErrors]
        .into_iter()
        .filter_map(|signal| rate(readings, signal, since))
        .reduce(|sum, part| sum + part)
}

fn rate(readings: &Readings, signal: HostSignal, since: Time) -> Option<f64> {
    readings.rate(place(signal)?, since)
}

/// Returns the column in which a signal is kept.
fn place(signal: HostSignal) -> Option<usize> {
    SIGNALS.iter().position(|kept| *kept == signal)
}
