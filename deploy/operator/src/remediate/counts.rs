//! The remediator's Prometheus metrics.

use std::collections::BTreeMap;

use prometheus::{
    Encoder as _, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};

use super::policy::{Census, State};
use crate::certificate::Renewals;

/// The metrics; see the module documentation.
#[derive(Debug)]
pub struct Counts {
    registry: Registry,
    nodes: IntGaugeVec,
    out: IntGauge,
    breaker: IntGauge,
    in_charge: IntGauge,
    reports: IntCounterVec,
    decisions: IntCounterVec,
    evictions: IntCounterVec,
    patches: IntCounter,
    /// How often the breaker opened.
    pub trips: IntCounter,
    /// Failed requests to the API server.
    pub failures: IntCounter,
    /// Open connections.
    pub connections: IntGauge,
    /// Failed handshakes.
    pub handshakes_failed: IntCounter,
    /// Metrics of certificates.
    pub renewals: Renewals,
}

impl Counts {
    /// Registers the metrics, all zero.
    ///
    /// # Errors
    /// Returns an error only if two metrics have the same name.
    pub fn new() -> prometheus::Result<Counts> {
        let gauge = |name: &str, help: &str| IntGauge::new(name, help);
        let counter = |name: &str, help: &str| IntCounter::new(name, help);
        let counters =
            |name: &str, help: &str, label: &str| IntCounterVec::new(Opts::new(name, help), &[label]);
        let nodes = Opts::new(
            "paceline_remediator_nodes",
            "Nodes with findings or a history, by state.",
        );
        let registry = Registry::new();
        let counts = Counts {
            renewals: Renewals::new(&registry, "paceline_remediator")?,
            registry,
            nodes: IntGaugeVec::new(nodes, &["state"])?,
            out: gauge(
                "paceline_remediator_nodes_out",
                "Nodes that the remediator has taken out of service.",
            )?,
            breaker: gauge(
                "paceline_remediator_breaker_open",
                "1: the breaker is open, too many nodes had findings at once, and no action is taken.",
            )?,
            in_charge: gauge("paceline_remediator_leader", "1: this replica is the leader.")?,
            reports: counters(
                "paceline_remediator_reports_total",
                "Received verdicts, by outcome.",
                "outcome",
            )?,
            decisions: counters(
                "paceline_remediator_decisions_total",
                "Decisions, by kind.",
                "what",
            )?,
            evictions: counters(
                "paceline_remediator_evictions_total",
                "Evictions of pods, by answer.",
                "answer",
            )?,
            patches: counter("paceline_remediator_node_patches_total", "Changes to nodes.")?,
            trips: counter(
                "paceline_remediator_breaker_trips_total",
                "Times that the breaker opened.",
            )?,
            failures: counter(
                "paceline_remediator_failures_total",
                "Failed requests to the API server.",
            )?,
            connections: gauge("paceline_remediator_connections", "Open connections.")?,
            handshakes_failed: counter(
                "paceline_remediator_handshakes_failed_total",
                "Failed TLS handshakes.",
            )?,
        };
        for one in [
            Box::new(counts.nodes.clone()) as Box<dyn prometheus::core::Collector>,
            Box::new(counts.out.clone()),
            Box::new(counts.breaker.clone()),
            Box::new(counts.in_charge.clone()),
            Box::new(counts.reports.clone()),
            Box::new(counts.decisions.clone()),
            Box::new(counts.evictions.clone()),
            Box::new(counts.patches.clone()),
            Box::new(counts.trips.clone()),
            Box::new(counts.failures.clone()),
            Box::new(counts.connections.clone()),
            Box::new(counts.handshakes_failed.clone()),
        ] {
            counts.registry.register(one)?;
        }
        Ok(counts)
    }

    /// Sets the number of nodes by state.
    pub fn stand(&self, tally: &BTreeMap<State, i64>, census: &Census) {
        self.nodes.reset();
        for (state, count) in tally {
            self.nodes.with_label_values(&[format!("{state:?}")]).set(*count);
        }
        self.out.set(i64::from(census.out()));
        self.breaker.set(i64::from(census.breaker.is_some()));
    }

    /// Sets whether this replica is the leader.
    pub fn lead(&self, is_leader: bool) {
        self.in_charge.set(i64::from(is_leader));
    }

    /// Counts a verdict.
    pub fn reported(&self, outcome: &str) {
        self.reports.with_label_values(&[outcome]).inc();
    }

    /// Counts a decision.
    pub fn decided(&self, what: &str) {
        self.decisions.with_label_values(&[what]).inc();
    }

    /// Counts an eviction request.
    pub fn evicted(&self, answer: &str) {
        self.evictions.with_label_values(&[answer]).inc();
    }

    /// Counts a change of a node.
    pub fn patched(&self) {
        self.patches.inc();
    }

    /// Returns the metrics page.
    pub fn page(&self) -> String {
        let mut page = Vec::new();
        // A write to memory cannot fail.
        let _ = TextEncoder::new().encode(&self.registry.gather(), &mut page);
        String::from_utf8_lossy(&page).into_owned()
    }
}
