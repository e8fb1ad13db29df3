//! The server's state, and the faults that tests request.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::access::{Tokens, User};
use crate::admission::Callers;
use crate::kinds::{self, Kind};
use crate::stamp;
use crate::store::{Place, Store};

/// A line of the audit: user, verb, resource, namespace, name (empty for several objects), and response code.
pub type Audited = (String, String, String, String, String, u16);

/// Requested faults. See `/_test/trouble` in the crate's documentation.
#[derive(Debug)]
pub struct Trouble {
    /// Time until which connections are closed.
    pub away_until: Option<Instant>,
    /// The delay of each response.
    pub slow: Duration,
    /// Number of writes that return a conflict, by plural.
    pub conflicts: BTreeMap<String, u64>,
    /// Number of requests that priority and fairness reject, by resource.
    pub crowded: BTreeMap<String, u64>,
    /// What happens to a pod just before its eviction, by pod: it is `gone`, or there is `another` with its name.
    pub meanwhile: BTreeMap<String, String>,
    /// A counter that is incremented to end all watches.
    pub drops: u64,
    /// The delay after which kubelets finish a deleted pod.
    pub kubelet: Duration,
    /// Nodes without a working kubelet.
    pub dead: Vec<String>,
}

/// The server's state; see the module documentation.
#[derive(Debug)]
pub struct Cluster {
    store: Mutex<Store>,
    kinds: RwLock<Vec<Kind>>,
    trouble: Mutex<Trouble>,
    audit: Mutex<BTreeMap<Audited, u64>>,
    /// The accepted tokens.
    pub tokens: Tokens,
    /// Connections to webhooks, and statistics of calls.
    pub callers: Callers,
    /// The last configuration that each manager applied.
    pub applied: Mutex<HashMap<(Place, String), Value>>,
}

impl Cluster {
    /// Returns a new cluster with the default namespaces and an administrator.
    pub fn new(admin: &str) -> Cluster {
        let cluster = Cluster {
            store: Mutex::default(),
            kinds: RwLock::new(kinds::own()),
            trouble: Mutex::new(Trouble {
                away_until: None,
                slow: Duration::ZERO,
                conflicts: BTreeMap::new(),
                crowded: BTreeMap::new(),
                meanwhile: BTreeMap::new(),
                drops: 0,
                kubelet: Duration::from_millis(50),
                dead: Vec::new(),
            }),
            audit: Mutex::default(),
            tokens: Tokens::default(),
            callers: Callers::default(),
            applied: Mutex::default(),
        };
        cluster.tokens.add(admin, User::new("admin", &["system:masters"]));
        for name in ["default", "kube-system", "kube-public", "kube-node-lease"] {
            let namespace = json!({
                "apiVersion": "v1", "kind": "Namespace", "status": { "phase": "Active" },
                "metadata": {
                    "name": name, "uid": stamp::uid(), "creationTimestamp": stamp::now(),
                    "labels": { "kubernetes.io/metadata.name": name },
                },
            });
            cluster
                .store()
                .put(&Place::new("", "namespaces", "", name), namespace);
        }
        cluster
    }

    /// Restores stored lines into an empty cluster.
    ///
    /// # Errors
    /// Fails if a line is invalid.
    pub fn restore(&mut self, lines: &[Value]) -> anyhow::Result<()> {
        self.store = Mutex::default();
        for line in lines {
            let done = if line["token"].is_string() {
                self.tokens.restore(line)
            } else {
                self.store().restore(line)
            };
            done.with_context(|| format!("what is kept is no line of ours: {line}"))?;
        }
        let definitions = (
            "apiextensions.k8s.io".to_owned(),
            "customresourcedefinitions".to_owned(),
        );
        let store = self.store();
        for (_, definition) in store.all(&definitions, None) {
            self.define(definition, false);
        }
        Ok(())
    }

    /// Locks the objects. The lock must not be held across an await.
    pub fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the requested faults.
    pub fn trouble(&self) -> MutexGuard<'_, Trouble> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns all kinds.
    pub fn kinds(&self) -> Vec<Kind> {
        self.kinds.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the kind with this plural in this version.
    pub fn kind(&self, group: &str, version: &str, plural: &str) -> Option<Kind> {
        let kinds = self.kinds.read().unwrap_or_else(PoisonError::into_inner);
        kinds
            .iter()
            .find(|kind| {
                kind.group == group && kind.plural == plural && kind.versions.iter().any(|one| one == version)
            })
            .cloned()
    }

    /// Returns the kind in an object's reference.
    pub fn referenced(&self, api_version: &str, kind: &str) -> Option<Kind> {
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        let kinds = self.kinds.read().unwrap_or_else(PoisonError::into_inner);
        kinds
            .iter()
            .find(|known| known.group == group && known.kind == kind)
            .cloned()
    }

    /// Adds or removes the kind of a CustomResourceDefinition.
    pub fn define(&self, definition: &Value, is_gone: bool) {
        let Some(kind) = Kind::of_definition(definition) else {
            return;
        };
        let mut kinds = self.kinds.write().unwrap_or_else(PoisonError::into_inner);
        kinds.retain(|known| known.group != kind.group || known.plural != kind.plural);
        if !is_gone {
            kinds.push(kind);
        }
    }

    /// Returns true if the server simulates an outage now.
    pub fn is_away(&self) -> bool {
        self.trouble()
            .away_until
            .is_some_and(|until| Instant::now() < until)
    }

    /// Counts a request in the audit.
    pub fn audited(&self, line: Audited) {
        let mut audit = self.audit.lock().unwrap_or_else(PoisonError::into_inner);
        *audit.entry(line).or_default() += 1;
    }

    /// Returns the audit as JSON, with one object per line and its count.
    pub fn audit(&self) -> Value {
        let audit = self.audit.lock().unwrap_or_else(PoisonError::into_inner);
        let line = |(line, count): (&Audited, &u64)| {
            json!({
                "user": line.0, "verb": line.1, "resource": line.2, "namespace": line.3, "name": line.4,
                "code": line.5, "count": count,
            })
        };
        Value::Array(audit.iter().map(line).collect())
    }

    /// Sets the faults that are in an object (see the crate's documentation). Other faults stay unchanged.
    pub fn make_trouble(&self, wish: &Value) {
        let mut trouble = self.trouble();
        let millis = |word: &str| wish[word].as_u64().map(Duration::from_millis);
        if let Some(time) = millis("away_ms") {
            trouble.away_until = Some(Instant::now() + time);
            trouble.drops += 1;
        }
        if let Some(time) = millis("slow_ms") {
            trouble.slow = time;
        }
        if let Some(time) = millis("kubelet_ms") {
            trouble.kubelet = time;
        }
        for (plural, count) in wish["conflicts"].as_object().into_iter().flatten() {
            trouble
                .conflicts
                .insert(plural.clone(), count.as_u64().unwrap_or(0));
        }
        for (resource, count) in wish["crowded"].as_object().into_iter().flatten() {
            let count = count.as_u64().unwrap_or(0);
            trouble.crowded.insert(resource.clone(), count);
        }
        for (pod, what) in wish["meanwhile"].as_object().into_iter().flatten() {
            let what = what.as_str().unwrap_or("").to_owned();
            trouble.meanwhile.insert(pod.clone(), what);
        }
        if let Some(dead) = wish["dead_nodes"].as_array() {
            trouble.dead = dead
                .iter()
                .filter_map(|name| name.as_str().map(str::to_owned))
                .collect();
        }
        if wish["drop_watches"] == true {
            trouble.drops += 1;
        }
        drop(trouble);
        if wish["compact"] == true {
            self.store().compact();
        }
    }

    /// Returns true if this write must fail with a requested conflict.
    pub fn is_conflict_due(&self, plural: &str) -> bool {
        is_due(&mut self.trouble().conflicts, plural)
    }

    /// Returns true if priority and fairness reject this request.
    pub fn is_crowded(&self, resource: &str) -> bool {
        is_due(&mut self.trouble().crowded, resource)
    }
}

/// Decrements a counter unless it is zero. Returns true if it was not zero.
fn is_due(counts: &mut BTreeMap<String, u64>, name: &str) -> bool {
    let Some(left) = counts.get_mut(name).filter(|left| **left > 0) else {
        return false;
    };
    *left -= 1;
    true
}
