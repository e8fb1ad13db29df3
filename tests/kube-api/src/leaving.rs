//! Deletes objects. An object goes at once, or when its finalizers are gone, when the kubelet has ended it, or with its
//! owners.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::failure::{Answer, Failure};
use crate::pods;
use crate::request::Ask;
use crate::stamp;
use crate::store::{Place, Store};

/// Handles a DELETE of one object. Returns its last state.
///
/// # Errors
/// Returns NotFound, or Conflict if a precondition does not hold.
pub fn delete(cluster: &Arc<Cluster>, ask: &Ask, name: &str, options: &Value) -> Answer<Arc<Value>> {
    let plural = &ask.kind.plural;
    let place = ask.place(name);
    let live = cluster.store().find(&place)?;
    for (wanted, word, says) in [
        ("uid", "uid", "UID"),
        ("resourceVersion", "resourceVersion", "ResourceVersion"),
    ] {
        let (wanted, is) = (&options["preconditions"][wanted], &live["metadata"][word]);
        if wanted.is_string() && wanted != is {
            let why =
                format!("Precondition failed: {says} in precondition: {wanted}, {says} in object meta: {is}");
            return Err(Failure::conflict(plural, name, &why));
        }
    }
    if ask.is_dry() {
        return Ok(live);
    }
    let has_finalizers = has_finalizers(&live);
    let grace = if plural == "pods" {
        pods::grace(&live, options)
    } else {
        0
    };
    if grace > 0 || has_finalizers {
        let mut leaving = Value::clone(&live);
        if leaving["metadata"]["deletionTimestamp"].is_null() {
            leaving["metadata"]["deletionTimestamp"] = json!(stamp::now());
            leaving["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
            let leaving = cluster.store().put(&place, leaving);
            if plural == "pods" && !has_finalizers {
                tokio::spawn(finish(Arc::clone(cluster), place.clone(), leaving));
            }
        }
        return Ok(cluster.store().at(&place).unwrap_or(live));
    }
    let gone = cluster.store().remove(&place).unwrap_or(live);
    match plural.as_str() {
        "customresourcedefinitions" => cluster.define(&gone, true),
        "namespaces" => empty(&mut cluster.store(), name),
        _ => {}
    }
    collect(cluster);
    Ok(gone)
}

fn has_finalizers(object: &Value) -> bool {
    let list = object["metadata"]["finalizers"].as_array();
    list.is_some_and(|list| !list.is_empty())
}

fn empty(store: &mut Store, namespace: &str) {
    let inside: Vec<Place> = store
        .everything()
        .filter(|(place, _)| place.namespace == namespace)
        .map(|(place, _)| place.clone())
        .collect();
    for place in inside {
        store.remove(&place);
    }
}

/// Lets kubelets continue, after a restart, with pods that were being ended.
pub fn resume(cluster: &Arc<Cluster>) {
    let pods = (String::new(), "pods".to_owned());
    for (place, pod) in cluster.store().all(&pods, None) {
        if pod["metadata"]["deletionTimestamp"].is_string() && !has_finalizers(pod) {
            tokio::spawn(finish(Arc::clone(cluster), place.clone(), Arc::clone(pod)));
        }
    }
}

/// Ends a deleted pod like the kubelet, if its node works.
async fn finish(cluster: Arc<Cluster>, place: Place, pod: Arc<Value>) {
    let wait = cluster.trouble().kubelet;
    tokio::time::sleep(wait).await;
    loop {
        let node = pod["spec"]["nodeName"].as_str().unwrap_or("");
        if !cluster.trouble().dead.iter().any(|dead| dead == node) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let mut store = cluster.store();
    if store
        .at(&place)
        .is_some_and(|there| there["metadata"]["uid"] == pod["metadata"]["uid"])
    {
        store.remove(&place);
    }
    drop(store);
    collect(&cluster);
}

/// Deletes objects that have lost all owners, as the garbage collector does. Owners of unknown kinds are assumed to
/// exist.
pub fn collect(cluster: &Cluster) {
    let mut store = cluster.store();
    while let Some(place) = store.next_doubted() {
        let object = store.at(&place);
        let Some(object) = object.filter(|object| is_orphan(cluster, &store, &place.namespace, object))
        else {
            continue;
        };
        if !has_finalizers(&object) {
            store.remove(&place);
        } else if object["metadata"]["deletionTimestamp"].is_null() {
            let mut leaving = Value::clone(&object);
            leaving["metadata"]["deletionTimestamp"] = json!(stamp::now());
            store.put(&place, leaving);
        }
    }
}

fn is_orphan(cluster: &Cluster, store: &Store, namespace: &str, object: &Value) -> bool {
    let is_there = |owner: &Value| {
        let text = |word: &str| owner[word].as_str().unwrap_or("");
        let Some(kind) = cluster.referenced(text("apiVersion"), text("kind")) else {
            return true;
        };
        let namespace = if kind.is_namespaced { namespace } else { "" };
        let there = store.at(&Place::new(&kind.group, &kind.plural, namespace, text("name")));
        there.is_some_and(|there| there["metadata"]["uid"] == owner["uid"])
    };
    let owners = object["metadata"]["ownerReferences"].as_array();
    owners.is_some_and(|owners| !owners.is_empty() && !owners.iter().any(is_there))
}
