//! What the remediator tells of itself, for Prometheus.

use std::collections::BTreeMap;

use prometheus::{
    Encoder as _, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};

use super::policy::{Census, State};
use crate::keeper::Renewals;

/// See the module.
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
    /// Times that the breaker opened.
    pub trips: IntCounter,
    /// Questions to the API server that came to nothing.
    pub failures: IntCounter,
    /// Connections that are open.
    pub connections: IntGauge,
    /// Handshakes that came to nothing.
    pub handshakes_failed: IntCounter,
    /// Of certificates.
    pub renewals: Renewals,
}

impl Counts {
    /// All at zero.
    ///
    /// # Errors
    /// Never, unless two of them had one name.
    pub fn new() -> prometheus::Result<Counts> {
        let gauge = |name: &str, help: &str| IntGauge::new(name, help);
        let counter = |name: &str, help: &str| IntCounter::new(name, help);
        let counters =
            |name: &str, help: &str, label: &str| IntCounterVec::new(Opts::new(name, help), &[label]);
        let nodes = Opts::new(
            "paceline_remediator_nodes",
            "Nodes of which something is known, by where they stand.",
        );
        let registry = Registry::new();
        let counts = Counts {
            renewals: Renewals::new(&registry, "paceline_remediator")?,
            registry,
            nodes: IntGaugeVec::new(nodes, &["state"])?,
            out: gauge(
                "paceline_remediator_nodes_out",
                "Nodes that are out of service by our doing.",
            )?,
            breaker: gauge(
                "paceline_remediator_breaker_open",
                "1: so many nodes alarmed at once that nothing is done.",
            )?,
            in_charge: gauge("paceline_remediator_leader", "1: this replica is in charge.")?,
            reports: counters(
                "paceline_remediator_reports_total",
                "Verdicts that came in, by what came of them.",
                "outcome",
            )?,
            decisions: counters("paceline_remediator_decisions_total", "What was decided.", "what")?,
            evictions: counters(
                "paceline_remediator_evictions_total",
                "Pods that were asked to leave, by the answer.",
                "answer",
            )?,
            patches: counter("paceline_remediator_node_patches_total", "Changes of nodes.")?,
            trips: counter(
                "paceline_remediator_breaker_trips_total",
                "Times that the breaker opened.",
            )?,
            failures: counter(
                "paceline_remediator_failures_total",
                "Questions to the API server that came to nothing.",
            )?,
            connections: gauge("paceline_remediator_connections", "Connections that are open.")?,
            handshakes_failed: counter(
                "paceline_remediator_handshakes_failed_total",
                "TLS handshakes that came to nothing.",
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

    /// Where nodes stand.
    pub fn stand(&self, tally: &BTreeMap<State, i64>, census: &Census) {
        self.nodes.reset();
        for (state, count) in tally {
            self.nodes.with_label_values(&[format!("{state:?}")]).set(*count);
        }
        self.out.set(i64::from(census.out()));
        self.breaker.set(i64::from(census.breaker.is_some()));
    }

    /// Whether we are in charge.
    pub fn lead(&self, is_leader: bool) {
        self.in_charge.set(i64::from(is_leader));
    }

    /// A verdict came in.
    pub fn reported(&self, outcome: &str) {
        self.reports.with_label_values(&[outcome]).inc();
    }

    /// Something was decided.
    pub fn decided(&self, what: &str) {
        self.decisions.with_label_values(&[what]).inc();
    }

    /// A pod was asked to leave.
    pub fn evicted(&self, answer: &str) {
        self.evictions.with_label_values(&[answer]).inc();
    }

    /// A node was changed.
    pub fn patched(&self) {
        self.patches.inc();
    }

    /// The page.
    pub fn page(&self) -> String {
        let mut page = Vec::new();
        // To write to memory cannot fail.
        let _ = TextEncoder::new().encode(&self.registry.gather(), &mut page);
        String::from_utf8_lossy(&page).into_owned()
    }
}
