//! Maintains the authorities that callers trust, which are those in a webhook's caBundle or in a ConfigMap. Each
//! replica adds its own authorities and removes none of another replica's. This matters while a rollout changes the
//! source of certificates, because old and new replicas then serve at the same time. Only the leader removes
//! authorities, after they have not been in use for a while.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};

use crate::api::{Api, Failed, Patch};

/// Length of a line of PEM.
const LINE: usize = 64;

/// Where the authorities that callers trust are configured.
#[derive(Clone, Debug)]
pub enum Place {
    /// The caBundle of all webhooks of this MutatingWebhookConfiguration.
    Webhook(String),
    /// The `ca.crt` of this ConfigMap in the operator's namespace.
    Map(String),
}

/// An authority's certificate (DER).
pub type Authority = Vec<u8>;

/// Returns the certificates in a text (PEM), without duplicates. Entries that are not certificates are skipped.
pub fn authorities(pem: &str) -> BTreeSet<Authority> {
    let all = CertificateDer::pem_slice_iter(pem.as_bytes());
    all.flatten().map(|one| one.to_vec()).collect()
}

fn pem(all: &BTreeSet<Authority>) -> String {
    let mut text = String::new();
    for one in all {
        let coded = STANDARD.encode(one);
        text += "-----BEGIN CERTIFICATE-----\n";
        // Base64 is ASCII, so this conversion loses nothing.
        for line in coded.as_bytes().chunks(LINE) {
            text += &String::from_utf8_lossy(line);
            text.push('\n');
        }
        text += "-----END CERTIFICATE-----\n";
    }
    text
}

/// The current contents of a place.
#[derive(Debug, Default)]
struct Standing {
    trusted: BTreeSet<Authority>,
    /// True if all webhooks have the same authorities.
    is_one: bool,
    /// The resourceVersion of the object, or `None` if the object does not exist.
    version: Option<Value>,
    /// Names of the webhooks.
    names: Vec<Value>,
}

/// The authorities at one place; see the module documentation.
pub struct Trust {
    api: Api,
    namespace: String,
    place: Place,
    /// How long an unknown authority stays trusted.
    grace: Duration,
    /// Unknown authorities, each with the time when it was first seen.
    others: HashMap<Authority, Instant>,
}

impl Trust {
    /// Creates the task that maintains this place.
    pub fn of(api: &Api, namespace: &str, place: Place, grace: Duration) -> Trust {
        Trust {
            api: api.clone(),
            namespace: namespace.to_owned(),
            place,
            grace,
            others: HashMap::new(),
        }
    }

    /// Returns true if all of these authorities are trusted.
    ///
    /// # Errors
    /// Returns an error if the place cannot be read, for example because the webhook is missing.
    pub async fn has(&self, ours: &BTreeSet<Authority>) -> anyhow::Result<bool> {
        let standing = self.read().await?;
        Ok(standing.is_one && standing.trusted.is_superset(ours))
    }

    /// Adds all of these authorities, and keeps unknown ones except for those in `ended`. Returns true if the place has
    /// all of them now. That can also be the work of another replica that was faster.
    ///
    /// # Errors
    /// Returns an error if the place cannot be read or written.
    pub async fn add(
        &mut self,
        ours: &BTreeSet<Authority>,
        ended: &BTreeSet<Authority>,
        is_leader: bool,
    ) -> anyhow::Result<bool> {
        let standing = self.read().await?;
        let others: BTreeSet<&Authority> = standing.trusted.difference(ours).collect();
        self.others.retain(|one, _| others.contains(one));
        let mut wanted = ours.clone();
        for one in others {
            let since = *self.others.entry(one.clone()).or_insert_with(Instant::now);
            if !is_leader || (since.elapsed() < self.grace && !ended.contains(one)) {
                wanted.insert(one.clone());
            }
        }
        if standing.is_one && standing.trusted == wanted {
            return Ok(true);
        }
        match self.write(&standing, &pem(&wanted)).await {
            Ok(()) => Ok(true),
            Err(failed) if failed.is_conflict() => Ok(false),
            Err(failed) => Err(failed).with_context(|| self.what()),
        }
    }

    fn what(&self) -> &'static str {
        match self.place {
            Place::Webhook(_) => "the caBundle",
            Place::Map(_) => "the ConfigMap",
        }
    }

    async fn read(&self) -> anyhow::Result<Standing> {
        let object = match self.api.get(&self.path()).await {
            Ok(object) => object,
            Err(failed) if failed.is_missing() && matches!(self.place, Place::Map(_)) => {
                return Ok(Standing::default());
            }
            Err(failed) => return Err(failed).with_context(|| self.what()),
        };
        let version = Some(object["metadata"]["resourceVersion"].clone());
        if let Place::Map(_) = self.place {
            let text = object["data"]["ca.crt"].as_str().unwrap_or_default();
            return Ok(Standing {
                trusted: authorities(text),
                is_one: true,
                version,
                names: Vec::new(),
            });
        }
        let webhooks = object["webhooks"].as_array().cloned().unwrap_or_default();
        let bundles: Vec<BTreeSet<Authority>> = webhooks.iter().map(bundle).collect();
        Ok(Standing {
            is_one: bundles.windows(2).all(|pair| pair[0] == pair[1]),
            trusted: bundles.into_iter().flatten().collect(),
            version,
            names: webhooks.iter().map(|webhook| webhook["name"].clone()).collect(),
        })
    }

    /// Writes the authorities only if the object still has the version that was read, so that an authority added in the
    /// meantime is not lost.
    async fn write(&self, standing: &Standing, pem: &str) -> Result<(), Failed> {
        let metadata = json!({ "resourceVersion": standing.version });
        let (patch, body) = match &self.place {
            Place::Webhook(_) => {
                let bundle = STANDARD.encode(pem);
                let one = |name: &Value| json!({ "name": name, "clientConfig": { "caBundle": bundle } });
                let webhooks: Vec<Value> = standing.names.iter().map(one).collect();
                (
                    Patch::Strategic,
                    json!({ "metadata": metadata, "webhooks": webhooks }),
                )
            }
            Place::Map(name) => {
                let data = json!({ "ca.crt": pem });
                if standing.version.is_none() {
                    let map = json!({
                        "apiVersion": "v1", "kind": "ConfigMap",
                        "metadata": { "name": name, "namespace": self.namespace }, "data": data,
                    });
                    let all = format!("/api/v1/namespaces/{}/configmaps", self.namespace);
                    return self.api.post(&all, &map).await.map(drop);
                }
                (Patch::Merge, json!({ "metadata": metadata, "data": data }))
            }
        };
        self.api.patch(&self.path(), patch, &body).await.map(drop)
    }

    fn path(&self) -> String {
        match &self.place {
            Place::Webhook(name) => {
                format!("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{name}")
            }
            Place::Map(name) => format!("/api/v1/namespaces/{}/configmaps/{name}", self.namespace),
        }
    }
}

fn bundle(webhook: &Value) -> BTreeSet<Authority> {
    let coded = webhook["clientConfig"]["caBundle"].as_str().unwrap_or_default();
    let text = STANDARD.decode(coded).unwrap_or_default();
    authorities(&String::from_utf8_lossy(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_there_and_back() {
        let signed = |name: &str| {
            let params = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
            params
                .self_signed(&rcgen::KeyPair::generate().unwrap())
                .unwrap()
                .pem()
        };
        let (one, other) = (signed("a.example"), signed("b.example"));
        let all = authorities(&format!("{one}# what people write\n{other}{one}"));
        assert_eq!(all.len(), 2);
        assert_eq!(authorities(&pem(&all)), all);
        assert!(all.is_superset(&authorities(&other)));
        assert!(authorities("none\n-----BEGIN CERTIFICATE-----\n!!\n").is_empty());
    }
}
