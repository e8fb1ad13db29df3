//! The webhook's Prometheus metrics.

use std::time::Duration;

use prometheus::{
    Encoder as _, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry, TextEncoder,
};

use crate::webhook::review::Answer;

/// Upper bounds of the histogram's buckets, in seconds. The target for a response is 10 ms.
const BUCKETS: [f64; 9] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0];

/// The metrics; see the module documentation.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    reviews: IntCounterVec,
    malformed: IntCounter,
    seconds: Histogram,
    /// Open connections.
    pub connections: IntGauge,
    /// Failed handshakes.
    pub handshakes_failed: IntCounter,
    reloads: IntCounterVec,
}

impl Metrics {
    /// Registers the metrics, all zero.
    ///
    /// # Errors
    /// Returns an error only if two metrics have the same name.
    pub fn new() -> prometheus::Result<Metrics> {
        let metrics = Metrics {
            registry: Registry::new(),
            reviews: IntCounterVec::new(
                Opts::new(
                    "paceline_webhook_reviews_total",
                    "Admission requests for pods, by outcome.",
                ),
                &["outcome", "reason", "dry_run"],
            )?,
            malformed: IntCounter::new(
                "paceline_webhook_malformed_total",
                "Requests that were not an AdmissionReview v1.",
            )?,
            seconds: Histogram::with_opts(
                HistogramOpts::new(
                    "paceline_webhook_seconds",
                    "Time from a request to its answer, without the network.",
                )
                .buckets(BUCKETS.to_vec()),
            )?,
            connections: IntGauge::new("paceline_webhook_connections", "Open connections.")?,
            handshakes_failed: IntCounter::new(
                "paceline_webhook_handshakes_failed_total",
                "Failed TLS handshakes: the caBundle does not match the certificate, or there is none yet.",
            )?,
            reloads: IntCounterVec::new(
                Opts::new(
                    "paceline_webhook_certificate_reloads_total",
                    "Loaded certificates, and files that could not be loaded.",
                ),
                &["result"],
            )?,
        };
        for one in [
            Box::new(metrics.reviews.clone()) as Box<dyn prometheus::core::Collector>,
            Box::new(metrics.malformed.clone()),
            Box::new(metrics.seconds.clone()),
            Box::new(metrics.connections.clone()),
            Box::new(metrics.handshakes_failed.clone()),
            Box::new(metrics.reloads.clone()),
        ] {
            metrics.registry.register(one)?;
        }
        Ok(metrics)
    }

    /// Returns the registry, for further metrics on the same page.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Counts an answered request.
    pub fn answered(&self, answer: &Answer, after: Duration) {
        let dry_run = if answer.dry_run { "true" } else { "false" };
        self.reviews
            .with_label_values(&[answer.outcome, answer.reason, dry_run])
            .inc();
        self.seconds.observe(after.as_secs_f64());
    }

    /// Counts an invalid request.
    pub fn malformed(&self) {
        self.malformed.inc();
    }

    /// Counts a read of the certificate's files.
    pub fn reloaded(&self, is_good: bool) {
        self.reloads
            .with_label_values(&[if is_good { "ok" } else { "error" }])
            .inc();
    }

    /// Returns the metrics page.
    pub fn page(&self) -> String {
        let mut page = Vec::new();
        // A write to memory cannot fail.
        let _ = TextEncoder::new().encode(&self.registry.gather(), &mut page);
        String::from_utf8_lossy(&page).into_owned()
    }
}
