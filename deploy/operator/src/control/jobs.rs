//! Determines what a pod in the cluster needs, which is a Secret for its job or an Event for its owner. This module
//! does no I/O and reads no clock.

use paceline_inject::pod::is_key_secret;
use paceline_inject::presence::{Presence, presence};
use paceline_inject::{Settings, inject, is_wanted, remediator};
use serde_json::{Value, json};

use crate::timestamp;
use crate::webhook::review::{Rules, is_left_alone};

/// JobSet sets its own uid on its pods. The JobSet is used as the owner because the Jobs between it and the pods are
/// recreated at each restart.
const SET: &str = "jobset.sigs.k8s.io/jobset-name";
const SET_UID: &str = "jobset.sigs.k8s.io/jobset-uid";
const GROUPS: &str = "leaderworkerset.sigs.k8s.io/name";
const WORKER: &str = "leaderworkerset.sigs.k8s.io/worker-index";
/// The Secret's volume in a pod.
const VOLUME: &str = "paceline-key";
/// Size limit of an Event's message. Kubernetes accepts 1,024 bytes.
const LONGEST: usize = 900;

/// A Secret for a job.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The Secret's namespace.
    pub namespace: String,
    /// The Secret's name.
    pub name: String,
    /// The Secret's owner, as an ownerReference in JSON. The Secret is deleted with its owner.
    pub owner: String,
}

/// A note for the owner of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// The Event's namespace.
    pub namespace: String,
    /// The reason or the missing part, in lower case with dashes.
    pub code: &'static str,
    /// True if the pod has no Paceline at all.
    pub is_missing: bool,
    /// The message.
    pub says: String,
    /// The object that the note is about, as an Event's reference.
    pub about: Value,
    /// The pod where the problem was seen.
    pub pod: String,
}

/// What a pod needs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Call {
    /// The Secret for its job.
    pub key: Option<Key>,
    /// The namespace in which the pod needs the remediator's CA.
    pub authority: Option<String>,
    /// Notes for the pod's owner.
    pub words: Vec<Word>,
}

impl Call {
    /// Returns why the pod has no Paceline although it requested it. Returns `None` if the pod has Paceline or did not
    /// request it.
    pub fn missing(&self) -> Option<&'static str> {
        self.words
            .iter()
            .find(|word| word.is_missing)
            .map(|word| word.code)
    }
}

/// Determines what a pod needs.
pub fn look(pod: &Value, rules: &Rules) -> Call {
    let namespace = pod["metadata"]["namespace"].as_str().unwrap_or("");
    let phase = pod["status"]["phase"].as_str().unwrap_or("");
    let is_over = pod["metadata"]["deletionTimestamp"].is_string() || matches!(phase, "Succeeded" | "Failed");
    if is_over || is_wanted(pod) != Some(true) || is_left_alone(namespace, rules) {
        return Call::default();
    }
    let word = |code: &'static str, is_missing: bool, says: String| Word {
        namespace: namespace.to_owned(),
        code,
        is_missing,
        says,
        about: about(pod),
        pod: pod["metadata"]["name"].as_str().unwrap_or("").to_owned(),
    };
    match presence(pod) {
        Presence::Whole => Call {
            key: key(pod, namespace),
            authority: remediator::is_told(pod).then(|| namespace.to_owned()),
            words: notes(pod, &rules.settings)
                .into_iter()
                .map(|(code, says)| word(code, false, says))
                .collect(),
        },
        Presence::Broken(code) => {
            let says =
                "Paceline was injected into the pod, and another webhook has removed a part of it".to_owned();
            Call {
                words: vec![word(code, true, says)],
                ..Call::default()
            }
        }
        Presence::Absent => {
            let (code, says) = match inject(pod, &rules.settings, None) {
                Err(refusal) => (refusal.code, refusal.says),
                Ok(_) => (
                    "not-injected",
                    "the pod requested Paceline and was created without it: the webhook was not reached, or does \
                     not select this namespace".to_owned(),
                ),
            };
            Call {
                words: vec![word(code, true, says)],
                ..Call::default()
            }
        }
    }
}

/// Returns the warnings of a successful injection.
fn notes(pod: &Value, settings: &Settings) -> Vec<(&'static str, String)> {
    inject(pod, settings, None).map_or_else(
        |_| Vec::new(),
        |done| {
            done.notes
                .into_iter()
                .map(|note| (note.code, note.says))
                .collect()
        },
    )
}

fn key(pod: &Value, namespace: &str) -> Option<Key> {
    let mut volumes = pod["spec"]["volumes"].as_array()?.iter();
    let volume = volumes.find(|volume| volume["name"] == VOLUME)?;
    let name = volume["secret"]["secretName"].as_str();
    let name = name.filter(|name| is_key_secret(name))?;
    Some(Key {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        owner: owner(pod)?.to_string(),
    })
}

fn controller(pod: &Value) -> Option<&Value> {
    let mut owners = pod["metadata"]["ownerReferences"].as_array()?.iter();
    owners.find(|owner| owner["controller"] == true)
}

/// Returns the object that exists as long as the job. Returns `None` if this pod does not identify that object, because
/// another pod of the job does.
fn owner(pod: &Value) -> Option<Value> {
    let label = |label: &str| pod["metadata"]["labels"][label].as_str();
    if let (Some(name), Some(uid)) = (label(SET), label(SET_UID)) {
        return Some(
            json!({ "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": name, "uid": uid }),
        );
    }
    // A worker belongs to its group, which is recreated on failure, so a worker cannot identify the owner. The leaders'
    // StatefulSet belongs to the whole set.
    if label(GROUPS).is_some() && label(WORKER).is_some_and(|index| index != "0") {
        return None;
    }
    let of = |word: &str, from: &Value| from[word].clone();
    Some(match controller(pod) {
        Some(owner) => json!({
            "apiVersion": of("apiVersion", owner), "kind": of("kind", owner), "name": of("name", owner), "uid": of("uid", owner),
        }),
        None => json!({
            "apiVersion": "v1", "kind": "Pod", "name": of("name", &pod["metadata"]), "uid": of("uid", &pod["metadata"]),
        }),
    })
}

/// Returns the object that users look at, which is the pod's controller or the pod itself.
fn about(pod: &Value) -> Value {
    let namespace = &pod["metadata"]["namespace"];
    match controller(pod) {
        Some(owner) => json!({
            "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["name"], "uid": owner["uid"],
            "namespace": namespace,
        }),
        None => json!({
            "apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"],
            "namespace": namespace,
        }),
    }
}

impl Key {
    /// Returns the Secret object with this key, in the format that `paceline` reads from a file.
    pub fn secret(&self, key: &str) -> Value {
        use base64::Engine as _;
        let owner: Value = serde_json::from_str(&self.owner).unwrap_or_default();
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": {
                "name": self.name, "namespace": self.namespace, "ownerReferences": [owner],
                "labels": { "app.kubernetes.io/managed-by": "paceline-injector" },
            },
            "data": { "key": base64::engine::general_purpose::STANDARD.encode(key) },
        })
    }
}

impl Word {
    /// Returns a name that is the same for the same note about the same object, so that the Event is written only once
    /// even if the leader changes.
    pub fn name(&self) -> String {
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        let uid = self.about["uid"].as_str().unwrap_or("");
        for byte in uid.bytes().chain(self.code.bytes()) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        format!("paceline.{hash:016x}")
    }

    /// Returns the Event object.
    pub fn event(&self, now_ms: u64) -> Value {
        let now = timestamp::write(now_ms);
        // Timestamps of an Event have whole seconds, so the fraction is cut off.
        let second = format!("{}Z", now.split('.').next().unwrap_or(""));
        let says: String = format!("{} ({}; seen in pod {})", self.says, self.code, self.pod)
            .chars()
            .take(LONGEST)
            .collect();
        let (kind, reason) = if self.is_missing {
            ("Warning", "PacelineMissing")
        } else {
            ("Normal", "PacelineNote")
        };
        json!({
            "apiVersion": "v1", "kind": "Event", "type": kind, "reason": reason, "message": says,
            "metadata": { "name": self.name(), "namespace": self.namespace, "annotations": { "paceline.dev/code": self.code } },
            "involvedObject": self.about, "source": { "component": "paceline-injector" },
            "firstTimestamp": second, "lastTimestamp": second, "count": 1,
        })
    }
}

#[cfg(test)]
#[path = "jobs_tests.rs"]
mod tests;
