//! Certificates of our own making: kept in a Secret, shown by each replica, renewed by the one in charge, which also tells whoever
//! calls us what authority to trust.

pub mod authority;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prometheus::{Gauge, IntCounterVec, Opts, Registry};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::api::{Api, Patch};
use crate::certificate::Certificate;
use crate::lease::{Lead, leads};
use crate::options::CertificateOptions;
use crate::{say, stamp};
use authority::{State, Terms};

/// An API server has a new caBundle at once.
const CALLED_SETTLE: Duration = Duration::from_secs(60);
/// A ConfigMap goes by a kubelet to the injector, by it to another ConfigMap, and by another kubelet to a pod.
const READ_SETTLE: Duration = Duration::from_secs(600);

/// Where whoever calls us finds which authority to trust.
#[derive(Clone, Debug)]
pub enum Place {
    /// The caBundle of all webhooks of this MutatingWebhookConfiguration.
    Webhook(String),
    /// `ca.crt` of this ConfigMap of our namespace.
    Map(String),
}

/// What is told of certificates.
#[derive(Clone, Debug)]
pub struct Renewals {
    ends: Gauge,
    renewed: IntCounterVec,
}

impl Renewals {
    /// At zero, on this page, under names that begin so.
    ///
    /// # Errors
    /// Never, unless two of them had one name.
    pub fn new(registry: &Registry, prefix: &str) -> prometheus::Result<Renewals> {
        let renewals = Renewals {
            ends: Gauge::new(
                format!("{prefix}_certificate_ends_timestamp_seconds"),
                "When the certificate ends that --self-signed keeps.",
            )?,
            renewed: IntCounterVec::new(
                Opts::new(
                    format!("{prefix}_certificates_renewed_total"),
                    "What was made anew: certificate or authority.",
                ),
                &["what"],
            )?,
        };
        registry.register(Box::new(renewals.ends.clone()))?;
        registry.register(Box::new(renewals.renewed.clone()))?;
        Ok(renewals)
    }

    /// When the certificate that is shown ends: seconds since 1970.
    fn ends(&self, at: u64) {
        #[allow(clippy::cast_precision_loss)] // Seconds are far from 2^53.
        self.ends.set(at as f64);
    }

    /// A certificate or an authority is new.
    fn renewed(&self, what: &str) {
        self.renewed.with_label_values(&[what]).inc();
    }
}

/// See the module.
pub struct Keeper {
    api: Api,
    namespace: String,
    secret: String,
    place: Place,
    terms: Terms,
    certificate: Arc<Certificate>,
    renewals: Renewals,
    shown: String,
}

impl Keeper {
    /// Nothing when certificates come in files.
    pub fn of(
        api: &Api,
        options: &CertificateOptions,
        namespace: &str,
        place: Place,
        certificate: &Arc<Certificate>,
        renewals: &Renewals,
    ) -> Option<Keeper> {
        let service = options.service.as_deref()?;
        Some(Keeper {
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
            place,
            namespace: namespace.to_owned(),
            certificate: Arc::clone(certificate),
            renewals: renewals.clone(),
            shown: String::new(),
        })
    }

    /// For ever. `lead`: as long as we are in charge we renew.
    pub async fn run(mut self, lead: Lead) {
        // Three looks before anybody signs by a new authority: by then each replica has seen the change of who is trusted.
        let pause = (self.terms.settle() / 3).min(Duration::from_secs(10));
        let mut problem = String::new();
        loop {
            match self.look(leads(&lead)).await {
                Ok(()) => problem.clear(),
                Err(error) => {
                    let now = format!("{error:#}");
                    if now != problem {
                        say(format_args!("certificates: {now}"));
                        problem = now;
                    }
                }
            }
            // Until there is one nobody can ask us anything.
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
        let data = secret.as_ref().map_or(&Value::Null, |secret| &secret["data"]);
        let mut state = if data.as_object().is_none_or(serde_json::Map::is_empty) {
            None
        } else {
            match State::read(data) {
                Ok(state) => Some(state),
                Err(error) => {
                    say(format_args!(
                        "the Secret {} is not ours, and is written anew: {error:#}",
                        self.secret
                    ));
                    None
                }
            }
        };
        if is_leader {
            let (trusted, names) = self.trusted().await?;
            let is_trusted = state
                .as_ref()
                .is_some_and(|state| trusted.as_deref() == Some(state.bundle().as_str()));
            let now = stamp::now_ms() / 1000;
            if let Some(change) = authority::step(state.as_ref(), &self.terms, now, is_trusted)? {
                self.keep(&path, secret, &change.state).await?;
                self.renewals.renewed(change.what);
                say(format_args!("the {} is new", change.what));
                state = Some(change.state);
            }
            if let Some(state) = &state
                && trusted.as_deref() != Some(state.bundle().as_str())
            {
                self.trust(&names, &state.bundle()).await?;
            }
        }
        if let Some(state) = state
            && state.cert != self.shown
        {
            self.certificate
                .take(state.cert.as_bytes(), state.key.as_bytes())?;
            self.renewals.ends(state.ends);
            self.shown = state.cert;
            say("a certificate was taken up");
        }
        Ok(())
    }

    /// What is said to be trusted, if it is one thing; and the names of the webhooks that say it.
    async fn trusted(&self) -> anyhow::Result<(Option<String>, Vec<Value>)> {
        let place = match &self.place {
            Place::Webhook(name) => configuration(name),
            Place::Map(name) => {
                return match self.api.get(&self.map(name)).await {
                    Ok(map) => Ok((map["data"]["ca.crt"].as_str().map(str::to_owned), Vec::new())),
                    Err(failed) if failed.is_missing() => Ok((None, Vec::new())),
                    Err(failed) => Err(failed).context("the ConfigMap"),
                };
            }
        };
        let configuration = self
            .api
            .get(&place)
            .await
            .context("the webhook's configuration")?;
        let webhooks = configuration["webhooks"].as_array().cloned().unwrap_or_default();
        let mut bundles = webhooks
            .iter()
            .map(|webhook| webhook["clientConfig"]["caBundle"].as_str());
        let first = bundles.next().flatten();
        let is_one = bundles.all(|bundle| bundle == first);
        let bundle = first
            .filter(|_| is_one)
            .and_then(|bundle| STANDARD.decode(bundle).ok());
        let names = webhooks.iter().map(|webhook| webhook["name"].clone()).collect();
        Ok((bundle.and_then(|bundle| String::from_utf8(bundle).ok()), names))
    }

    async fn trust(&self, names: &[Value], bundle: &str) -> anyhow::Result<()> {
        let place = match &self.place {
            Place::Webhook(name) => configuration(name),
            Place::Map(name) => return self.write(name, bundle).await,
        };
        let bundle = STANDARD.encode(bundle);
        let one = |name: &Value| json!({ "name": name, "clientConfig": { "caBundle": bundle } });
        let patch = json!({ "webhooks": names.iter().map(one).collect::<Vec<_>>() });
        self.api
            .patch(&place, Patch::Strategic, &patch)
            .await
            .context("the caBundle")?;
        Ok(())
    }

    async fn write(&self, name: &str, bundle: &str) -> anyhow::Result<()> {
        let data = json!({ "ca.crt": bundle });
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": name, "namespace": self.namespace }, "data": data,
        });
        let all = format!("/api/v1/namespaces/{}/configmaps", self.namespace);
        let written = self
            .api
            .merge_or_make(&all, name, &json!({ "data": data }), &map)
            .await;
        written.context("the ConfigMap")
    }

    fn map(&self, name: &str) -> String {
        format!("/api/v1/namespaces/{}/configmaps/{name}", self.namespace)
    }

    /// Written whole, with the version that was read: who was faster wins.
    async fn keep(&self, path: &str, secret: Option<Value>, state: &State) -> anyhow::Result<()> {
        match secret {
            Some(mut secret) => {
                secret["data"] = state.data();
                self.api.put(path, &secret).await.context("the Secret")?;
            }
            None => {
                let secret = json!({
                    "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
                    "metadata": { "name": self.secret, "namespace": self.namespace },
                    "data": state.data(),
                });
                let all = format!("/api/v1/namespaces/{}/secrets", self.namespace);
                self.api.post(&all, &secret).await.context("the Secret")?;
            }
        }
        Ok(())
    }
}

fn configuration(webhook: &str) -> String {
    format!("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{webhook}")
}
