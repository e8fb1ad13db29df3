//! Self-signed certificates: stored in a Secret, served by each replica, renewed by the leader. Each replica adds the
//! authority to the trust of callers ([`super::trust`]), and creates the first certificate if there is none: it does
//! not wait for the leader, which may be of an earlier release with provided certificates
//! ([`super::ProvidedCertificate`]) and stays until this replica is ready.

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

/// The API server uses a new caBundle at once.
const CALLED_SETTLE: Duration = Duration::from_secs(60);
/// One kubelet delivers the ConfigMap to the injector, which copies it to another ConfigMap; another kubelet delivers
/// that to a pod.
const READ_SETTLE: Duration = Duration::from_secs(600);

/// An unknown authority stays trusted for this time, or for a certificate's validity if that is shorter: longer than
/// any rollout takes.
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
    /// Only if two metrics had the same name.
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

    /// Sets the expiry of the serving certificate: seconds since 1970.
    fn ends(&self, at: u64) {
        #[allow(clippy::cast_precision_loss)] // Seconds are far from 2^53.
        self.ends.set(at as f64);
    }

    /// Counts a new certificate or authority.
    fn renewed(&self, what: &str) {
        self.renewed.with_label_values(&[what]).inc();
    }
}

/// A recurring problem, logged once while it stays the same.
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

/// See the module.
pub struct CertificateManager {
    api: Api,
    namespace: String,
    secret: String,
    trust: Trust,
    terms: Terms,
    certificate: Arc<Certificate>,
    renewals: Renewals,
    shown: String,
    /// The retired authorities of this program: after they expire, no replica serves a certificate of theirs.
    retired: BTreeSet<Authority>,
}

impl CertificateManager {
    /// `None` when certificates come from files.
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

    /// Runs forever. `lead`: the leader renews.
    pub async fn run(mut self, lead: Lead) {
        // Three checks before a new authority signs anything: by then each replica has seen the changed trust bundle.
        let pause = (self.terms.settle() / 3).min(Duration::from_secs(10));
        let mut problem = Problem::of("certificates");
        loop {
            problem.log(self.look(leads(&lead)).await);
            // Without a certificate, no requests can be served.
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
        // A replica without a certificate is not ready, and a rollout would wait for it forever: it does not wait for
        // the leader.
        let is_bare = self.shown.is_empty() && state.as_ref().is_none_or(|state| state.ends <= now);
        if is_leader || is_bare {
            let is_trusted = match &state {
                Some(state) => self.trust.has(&authorities(&state.bundle())).await?,
                None => false,
            };
            if let Some(change) = authority::step(state.as_ref(), &self.terms, now, is_trusted)? {
                match self.keep(&path, secret, &change.state).await {
                    Ok(()) => {}
                    // Another replica was faster: its certificate is as good.
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

    /// Written as a whole, with the version that was read: the first writer wins.
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
