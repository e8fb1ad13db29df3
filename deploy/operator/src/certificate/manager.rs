//! Manages self-signed certificates, which are stored in a Secret, served by each replica and renewed by the leader.
//! Each replica adds the authority to the trust of callers ([`super::trust`]), and creates the first certificate if
//! there is none. It does not wait for the leader to create it, because the leader may run an earlier release with
//! provided certificates ([`super::ProvidedCertificate`]) and stays the leader until this replica is ready.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use prometheus::{Gauge, IntCounterVec, Opts, Registry};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::authority::{self, State, Terms};
use super::serving::Certificate;
use super::trust::{Authority, Place, Trust, authorities};
use crate::api::{Api, Failed};
use crate::lease::{Lead, leads};
use crate::options::CertificateOptions;
use crate::{say, timestamp};

/// Upper limit of the wait after a change of the caBundle. The API server uses a new caBundle soon after the change.
const CALLED_SETTLE: Duration = Duration::from_secs(60);
/// Upper limit of the wait after a change of the ConfigMap. One kubelet delivers the ConfigMap to the injector, which
/// copies it to another ConfigMap, and another kubelet delivers that copy to a pod.
const READ_SETTLE: Duration = Duration::from_secs(600);

/// How long an unknown authority stays trusted, unless a certificate's validity is shorter. This is longer than any
/// rollout takes.
pub(super) const GRACE: Duration = Duration::from_secs(24 * 3600);

/// Metrics of certificates.
#[derive(Clone, Debug)]
pub struct Renewals {
    ends: Gauge,
    renewed: IntCounterVec,
}

impl Renewals {
    /// Registers the metrics, with zeros, under names with this prefix.
    ///
    /// # Errors
    /// Returns an error only if two metrics have the same name.
    pub fn new(registry: &Registry, prefix: &str) -> prometheus::Result<Renewals> {
        let renewals = Renewals {
            ends: Gauge::new(
                format!("{prefix}_certificate_ends_timestamp_seconds"),
                "Expiry of the certificate of --self-signed.",
            )?,
            renewed: IntCounterVec::new(
                Opts::new(
                    format!("{prefix}_certificates_renewed_total"),
                    "Renewals, by type: certificate or authority.",
                ),
                &["what"],
            )?,
        };
        registry.register(Box::new(renewals.ends.clone()))?;
        registry.register(Box::new(renewals.renewed.clone()))?;
        Ok(renewals)
    }

    /// Sets the expiry of the serving certificate, in seconds since 1970.
    fn ends(&self, at: u64) {
        #[allow(clippy::cast_precision_loss)] // Seconds since 1970 are far below 2^53.
        self.ends.set(at as f64);
    }

    /// Counts a new certificate or authority.
    fn renewed(&self, what: &str) {
        self.renewed.with_label_values(&[what]).inc();
    }
}

/// A recurring problem, which is logged only when it changes.
pub(super) struct Problem {
    subject: &'static str,
    logged: String,
}

impl Problem {
    pub(super) fn of(subject: &'static str) -> Problem {
        Problem {
            subject,
            logged: String::new(),
        }
    }

    pub(super) fn log(&mut self, looked: anyhow::Result<()>) {
        let now = looked.err().map(|error| format!("{error:#}")).unwrap_or_default();
        if !now.is_empty() && now != self.logged {
            say(format_args!("{}: {now}", self.subject));
        }
        self.logged = now;
    }
}

/// The manager; see the module documentation.
pub struct CertificateManager {
    api: Api,
    namespace: String,
    secret: String,
    trust: Trust,
    terms: Terms,
    certificate: Arc<Certificate>,
    renewals: Renewals,
    shown: String,
    /// The retired authorities of this program. When they have expired, no replica serves a certificate that they
    /// signed.
    retired: BTreeSet<Authority>,
}

impl CertificateManager {
    /// Creates the manager. Returns `None` if the certificates come from files.
    pub fn of(
        api: &Api,
        options: &CertificateOptions,
        namespace: &str,
        place: Place,
        certificate: &Arc<Certificate>,
        renewals: &Renewals,
    ) -> Option<CertificateManager> {
        let service = options.service.as_deref()?;
        Some(CertificateManager {
            api: api.clone(),
            secret: options.self_signed.clone()?,
            terms: Terms {
                host: format!("{service}.{namespace}.svc"),
                life: options.certificate_life,
                settle_most: match &place {
                    Place::Webhook(_) => CALLED_SETTLE,
                    Place::Map(_) => READ_SETTLE,
                },
            },
            trust: Trust::of(
                api,
                namespace,
                place,
                GRACE.min(Duration::from_secs(options.certificate_life)),
            ),
            namespace: namespace.to_owned(),
            certificate: Arc::clone(certificate),
            renewals: renewals.clone(),
            shown: String::new(),
            retired: BTreeSet::new(),
        })
    }

    /// Manages the certificates forever. `lead` shows whether this replica is the leader, which alone renews.
    pub async fn run(mut self, lead: Lead) {
        // This interval allows three checks before a new authority signs anything. By then each replica has seen the
        // changed trust bundle.
        let pause = (self.terms.settle() / 3).min(Duration::from_secs(10));
        let mut problem = Problem::of("certificates");
        loop {
            problem.log(self.look(leads(&lead)).await);
            // Check more often while there is no certificate, because no requests can be served without one.
            sleep(if self.shown.is_empty() {
                pause.min(Duration::from_millis(500))
            } else {
                pause
            })
            .await;
        }
    }

    async fn look(&mut self, is_leader: bool) -> anyhow::Result<()> {
        let path = format!("/api/v1/namespaces/{}/secrets/{}", self.namespace, self.secret);
        let secret = match self.api.get(&path).await {
            Ok(secret) => Some(secret),
            Err(failed) if failed.is_missing() => None,
            Err(failed) => return Err(failed).context("the Secret"),
        };
        let mut state = self.read(secret.as_ref());
        let now = timestamp::now_ms() / 1000;
        // A replica without a certificate is not ready, and a rollout would wait for it forever. Such a replica
        // therefore creates a certificate itself instead of waiting for the leader.
        let is_bare = self.shown.is_empty() && state.as_ref().is_none_or(|state| state.ends <= now);
        if is_leader || is_bare {
            let is_trusted = match &state {
                Some(state) => self.trust.has(&authorities(&state.bundle())).await?,
                None => false,
            };
            if let Some(change) = authority::step(state.as_ref(), &self.terms, now, is_trusted)? {
                match self.keep(&path, secret, &change.state).await {
                    Ok(()) => {}
                    // Another replica has written the Secret first. Its certificate is used at the next check.
                    Err(failed) if failed.is_conflict() => return Ok(()),
                    Err(failed) => return Err(failed).context("the Secret"),
                }
                self.renewals.renewed(change.what);
                say(format_args!("the {} is new", change.what));
                state = Some(change.state);
            }
        }
        let Some(state) = state else { return Ok(()) };
        let ours = authorities(&state.bundle());
        self.retired.extend(authorities(&state.retired()));
        let ended = self.retired.difference(&ours).cloned().collect();
        if !self.trust.add(&ours, &ended, is_leader).await? {
            return Ok(());
        }
        if state.cert != self.shown {
            self.certificate
                .take(state.cert.as_bytes(), state.key.as_bytes())?;
            self.renewals.ends(state.ends);
            self.shown = state.cert;
            say("loaded a certificate");
        }
        Ok(())
    }

    fn read(&self, secret: Option<&Value>) -> Option<State> {
        let data = &secret?["data"];
        if data.as_object().is_none_or(serde_json::Map::is_empty) {
            return None;
        }
        State::read(data)
            .inspect_err(|error| {
                say(format_args!(
                    "the Secret {} was not written by paceline, and is replaced: {error:#}",
                    self.secret
                ));
            })
            .ok()
    }

    /// Writes the Secret as a whole, with the version that was read. If two replicas write at the same time, only the
    /// first one succeeds.
    async fn keep(&self, path: &str, secret: Option<Value>, state: &State) -> Result<(), Failed> {
        let written = match secret {
            Some(mut secret) => {
                secret["data"] = state.data();
                self.api.put(path, &secret).await
            }
            None => {
                let secret = json!({
                    "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
                    "metadata": { "name": self.secret, "namespace": self.namespace },
                    "data": state.data(),
                });
                let all = format!("/api/v1/namespaces/{}/secrets", self.namespace);
                self.api.post(&all, &secret).await
            }
        };
        written.map(drop)
    }
}
