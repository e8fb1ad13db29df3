//! Metrics of the control tasks, on the same page as the webhook's metrics.

use prometheus::{IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

use crate::certificate::Renewals;

/// The metrics; see the module documentation.
#[derive(Debug)]
pub struct Counts {
    leader: IntGauge,
    secrets: IntCounterVec,
    authorities: IntCounterVec,
    events: IntCounterVec,
    missing: IntGaugeVec,
    /// Metrics of certificates.
    pub renewals: Renewals,
}

impl Counts {
    /// Registers the metrics, all zero.
    ///
    /// # Errors
    /// Returns an error only if two metrics have the same name.
    pub fn new(registry: &Registry) -> prometheus::Result<Counts> {
        let counts = Counts {
            leader: IntGauge::new(
                "paceline_injector_leader",
                "1 in the replica that creates Secrets and certificates and reports pods.",
            )?,
            secrets: IntCounterVec::new(
                Opts::new(
                    "paceline_injector_secrets_total",
                    "Secrets of jobs: created, already there, or failed.",
                ),
                &["result"],
            )?,
            authorities: IntCounterVec::new(
                Opts::new(
                    "paceline_injector_authorities_total",
                    "ConfigMaps with the remediator's CA: written, or failed.",
                ),
                &["result"],
            )?,
            events: IntCounterVec::new(
                Opts::new(
                    "paceline_injector_events_total",
                    "Kubernetes events written about jobs, by code.",
                ),
                &["code"],
            )?,
            missing: IntGaugeVec::new(
                Opts::new(
                    "paceline_injector_pods_without_paceline",
                    "Running pods that requested Paceline and do not have it, by reason.",
                ),
                &["reason"],
            )?,
            renewals: Renewals::new(registry, "paceline_injector")?,
        };
        for one in [
            Box::new(counts.leader.clone()) as Box<dyn prometheus::core::Collector>,
            Box::new(counts.secrets.clone()),
            Box::new(counts.authorities.clone()),
            Box::new(counts.events.clone()),
            Box::new(counts.missing.clone()),
        ] {
            registry.register(one)?;
        }
        Ok(counts)
    }

    /// Sets whether this replica is the leader.
    pub fn leads(&self, is_leader: bool) {
        self.leader.set(i64::from(is_leader));
    }

    /// Counts a Secret that was created (`made`), was already present (`exists`) or could not be created (`failed`).
    pub fn secret(&self, result: &str) {
        self.secrets.with_label_values(&[result]).inc();
    }

    /// Counts a namespace's copy of the remediator's CA that was `written` or `failed`.
    pub fn authority(&self, result: &str) {
        self.authorities.with_label_values(&[result]).inc();
    }

    /// Counts an Event.
    pub fn event(&self, code: &str) {
        self.events.with_label_values(&[code]).inc();
    }

    /// Sets the number of pods without Paceline for each reason. The numbers for all other reasons become zero.
    pub fn missing<'a>(&self, reasons: impl Iterator<Item = &'a str>) {
        self.missing.reset();
        for reason in reasons {
            self.missing.with_label_values(&[reason]).inc();
        }
    }
}
