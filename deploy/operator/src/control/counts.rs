//! What the part beside the webhook tells of itself, on the same page.

use prometheus::{IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

use crate::certificate::Renewals;

/// See the module.
#[derive(Debug)]
pub struct Counts {
    leader: IntGauge,
    secrets: IntCounterVec,
    authorities: IntCounterVec,
    events: IntCounterVec,
    missing: IntGaugeVec,
    /// Of certificates.
    pub renewals: Renewals,
}

impl Counts {
    /// All at zero, on this page.
    ///
    /// # Errors
    /// Never, unless two of them had one name.
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

    /// Whether this one is in charge.
    pub fn leads(&self, is_leader: bool) {
        self.leader.set(i64::from(is_leader));
    }

    /// A Secret was made (`made`), was there (`exists`), or could not be (`failed`).
    pub fn secret(&self, result: &str) {
        self.secrets.with_label_values(&[result]).inc();
    }

    /// A namespace was given the remediator's authority (`written`), or could not be (`failed`).
    pub fn authority(&self, result: &str) {
        self.authorities.with_label_values(&[result]).inc();
    }

    /// An Event was written.
    pub fn event(&self, code: &str) {
        self.events.with_label_values(&[code]).inc();
    }

    /// So many pods are without it for these reasons; all others are none.
    pub fn missing<'a>(&self, reasons: impl Iterator<Item = &'a str>) {
        self.missing.reset();
        for reason in reasons {
            self.missing.with_label_values(&[reason]).inc();
        }
    }
}
