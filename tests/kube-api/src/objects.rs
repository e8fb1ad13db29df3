//! Creates, updates and patches objects.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::admission;
use crate::cluster::Cluster;
use crate::failure::{Answer, Failure};
use crate::leaving::collect;
use crate::request::Ask;
use crate::stamp;
use crate::store::Place;
use crate::{patch, pods, schema};

/// The message of a requested conflict.
const ASKED: &str = "a conflict was asked for";

/// The written object, and warnings for the client.
pub type Written = (Arc<Value>, Vec<String>);

/// Creates an object.
///
/// # Errors
/// Returns AlreadyExists, NotFound (of the namespace), BadRequest, Invalid, and errors of webhooks.
pub async fn create(cluster: &Cluster, ask: &Ask, object: Value) -> Answer<Written> {
    let mut object = object;
    prepare(cluster, ask, &mut object)?;
    schema::apply(&ask.kind, &ask.version, &mut object)?;
    if ask.kind.plural == "customresourcedefinitions" {
        schema::is_whole(&object)?;
    }
    let (mut object, warnings) = admission::mutate(cluster, ask, object, &Value::Null).await?;
    let name = object["metadata"]["name"].as_str().unwrap_or("").to_owned();
    if ask.kind.plural == "pods" {
        pods::made(&mut object);
        let space = cluster
            .store()
            .at(&Place::new("", "namespaces", "", &ask.namespace));
        pods::check(&object, space.as_deref())?;
    }
    let place = ask.place(&name);
    let made = {
        let mut store = cluster.store();
        if let Some(there) = store.at(&place) {
            let is_going = there["metadata"]["deletionTimestamp"].is_string();
            let going = if is_going { "object is being deleted: " } else { "" };
            let message = format!("{going}{} \"{name}\" already exists", ask.kind.plural);
            return Err(
                Failure::new("AlreadyExists", message).with(json!({ "name": name, "kind": ask.kind.plural }))
            );
        }
        if ask.is_dry() {
            Arc::new(object)
        } else {
            store.put(&place, object)
        }
    };
    if !ask.is_dry() {
        if ask.kind.plural == "customresourcedefinitions" {
            cluster.define(&made, false);
            cluster.store().doubt_all();
            established(cluster, &place);
        }
        collect(cluster);
    }
    Ok((made, warnings))
}

/// Marks a definition as served, because clients wait for this condition.
fn established(cluster: &Cluster, place: &Place) {
    let mut store = cluster.store();
    if let Some(definition) = store.at(place) {
        let mut definition = Value::clone(&definition);
        let yes = |word: &str| json!({ "type": word, "status": "True", "reason": word, "lastTransitionTime": stamp::now() });
        definition["status"]["conditions"] = json!([yes("NamesAccepted"), yes("Established")]);
        definition["status"]["acceptedNames"] = definition["spec"]["names"].clone();
        store.put(place, definition);
    }
}

fn prepare(cluster: &Cluster, ask: &Ask, object: &mut Value) -> Answer<()> {
    if object["kind"] != ask.kind.kind && !object["kind"].is_null() {
        let message = format!(
            "{} in version {:?} cannot be handled as a {}",
            object["kind"], ask.version, ask.kind.kind
        );
        return Err(Failure::new("BadRequest", message));
    }
    if ask.kind.is_namespaced {
        let given = object["metadata"]["namespace"].as_str().unwrap_or(&ask.namespace);
        if ask.namespace.is_empty() || given != ask.namespace {
            let message =
                "the namespace of the provided object does not match the namespace sent on the request";
            return Err(Failure::new("BadRequest", message));
        }
        cluster
            .store()
            .find(&Place::new("", "namespaces", "", &ask.namespace))?;
    }
    object["apiVersion"] = json!(ask.kind.api_version(&ask.version));
    object["kind"] = json!(ask.kind.kind);
    if ask.kind.has("status")
        && !object["status"].is_null()
        && ask.kind.kind != "Node"
        && ask.kind.kind != "Pod"
    {
        object["status"] = json!({});
    }
    let Some(meta) = object
        .as_object_mut()
        .map(|object| object.entry("metadata").or_insert(json!({})))
    else {
        return Ok(());
    };
    let stem = meta["generateName"].as_str().unwrap_or("").to_owned();
    let name = match meta["name"].as_str() {
        Some(name) if !name.is_empty() => name.to_owned(),
        _ if !stem.is_empty() => format!("{stem}{}", stamp::suffix()),
        _ => {
            return Err(invalid(
                ask,
                "",
                "metadata.name: Required value: name or generateName is required",
            ));
        }
    };
    let is_plain = name
        .chars()
        .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c));
    if !is_plain && ask.kind.group != "rbac.authorization.k8s.io" {
        return Err(invalid(
            ask,
            &name,
            "metadata.name: Invalid value: a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.'",
        ));
    }
    if meta["resourceVersion"]
        .as_str()
        .is_some_and(|version| !version.is_empty())
    {
        return Err(Failure::new(
            "BadRequest",
            "resourceVersion should not be set on objects to be created",
        ));
    }
    meta["name"] = json!(name);
    meta["uid"] = json!(stamp::uid());
    meta["creationTimestamp"] = json!(stamp::now());
    meta["generation"] = json!(1);
    if ask.kind.is_namespaced {
        meta["namespace"] = json!(ask.namespace);
    }
    match ask.kind.kind.as_str() {
        "Namespace" => {
            meta["labels"]["kubernetes.io/metadata.name"] = json!(name);
            object["status"] = json!({ "phase": "Active" });
        }
        "Secret" => {
            secret(object);
        }
        _ => {}
    }
    Ok(())
}

fn secret(object: &mut Value) {
    use base64::Engine as _;
    if let Some(texts) = object
        .as_object_mut()
        .and_then(|object| object.remove("stringData"))
    {
        for (key, text) in texts.as_object().into_iter().flatten() {
            let text = base64::engine::general_purpose::STANDARD.encode(text.as_str().unwrap_or(""));
            object["data"][key] = json!(text);
        }
    }
    if object["type"].is_null() {
        object["type"] = json!("Opaque");
    }
}

fn invalid(ask: &Ask, name: &str, why: &str) -> Failure {
    Failure::new(
        "Invalid",
        format!("{} \"{name}\" is invalid: {why}", ask.kind.kind),
    )
}

/// Handles a PUT.
///
/// # Errors
/// Returns NotFound, Conflict, Invalid, and errors of webhooks.
pub async fn update(cluster: &Cluster, ask: &Ask, object: Value) -> Answer<Written> {
    if object["metadata"]["name"] != ask.name {
        let message = "the name of the object does not match the name on the URL";
        return Err(Failure::new("BadRequest", message));
    }
    let live = cluster.store().find(&ask.place(&ask.name))?;
    let given = object["metadata"]["resourceVersion"].as_str().unwrap_or("");
    if given.is_empty() && !ask.kind.is_own {
        return Err(invalid(
            ask,
            &ask.name,
            "metadata.resourceVersion: Invalid value: 0: must be specified for an update",
        ));
    }
    write(cluster, ask, &live, object).await
}

/// Handles a PATCH.
///
/// # Errors
/// The same as for [`update`], and errors of [`patch::change`].
pub async fn patch(cluster: &Cluster, ask: &Ask) -> Answer<Written> {
    if ask.content_type == "application/apply-patch+yaml" {
        return apply(cluster, ask).await;
    }
    // A patch without a resourceVersion is retried after a concurrent write, as the real server does.
    let mut tried = 0;
    loop {
        let live = cluster.store().find(&ask.place(&ask.name))?;
        let changed = patch::change(&live, &ask.content_type, &ask.body, ask.kind.is_own)?;
        let is_theirs = changed["metadata"]["resourceVersion"] != live["metadata"]["resourceVersion"];
        match write(cluster, ask, &live, changed).await {
            Err(failure)
                if failure.reason == "Conflict"
                    && !is_theirs
                    && tried < 5
                    && !failure.message.ends_with(ASKED) =>
            {
                tried += 1;
            }
            done => return done,
        }
    }
}

async fn apply(cluster: &Cluster, ask: &Ask) -> Answer<Written> {
    let manager = ask.query("fieldManager").to_owned();
    if manager.is_empty() {
        return Err(Failure::new(
            "BadRequest",
            "fieldManager is required for apply patch",
        ));
    }
    let now = ask.object()?;
    let key = (ask.place(&ask.name), manager);
    let applied = || {
        cluster
            .applied
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    };
    let before = applied().get(&key).cloned().unwrap_or_else(|| json!({}));
    let live = cluster.store().at(&ask.place(&ask.name));
    let done = match live {
        Some(live) => write(cluster, ask, &live, patch::apply(&live, &before, &now)).await?,
        None => {
            let making = Ask {
                verb: "create".into(),
                ..ask.clone()
            };
            create(cluster, &making, now.clone()).await?
        }
    };
    if !ask.is_dry() {
        applied().insert(key, now);
    }
    Ok(done)
}

async fn write(cluster: &Cluster, ask: &Ask, live: &Arc<Value>, object: Value) -> Answer<Written> {
    let plural = &ask.kind.plural;
    let mut object = object;
    let own = |word: &str| live["metadata"][word].clone();
    let uid = &object["metadata"]["uid"];
    if uid.is_string() && *uid != own("uid") {
        let why = format!(
            "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
            own("uid")
        );
        return Err(Failure::conflict(plural, &ask.name, &why));
    }
    for word in [
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "namespace",
        "name",
    ] {
        if own(word).is_null() {
            if let Some(meta) = object["metadata"].as_object_mut() {
                meta.remove(word);
            }
        } else {
            object["metadata"][word] = own(word);
        }
    }
    object["apiVersion"] = json!(ask.kind.api_version(&ask.version));
    object["kind"] = json!(ask.kind.kind);
    if ask.kind.kind == "Secret" {
        secret(&mut object);
    }
    schema::apply(&ask.kind, &ask.version, &mut object)?;
    let version = object["metadata"]["resourceVersion"].clone();
    let mut warnings = Vec::new();
    if ask.sub == "status" {
        let status = object["status"].take();
        object = Value::clone(live);
        object["status"] = status;
    } else {
        if ask.kind.has("status") {
            object["status"] = live["status"].clone();
            if object["status"].is_null()
                && let Some(object) = object.as_object_mut()
            {
                object.remove("status");
            }
        }
        (object, warnings) = admission::mutate(cluster, ask, object, live).await?;
        if plural == "pods" {
            pods::check_change(live, &object)?;
        }
        if object["spec"] != live["spec"] {
            object["metadata"]["generation"] = json!(own("generation").as_u64().unwrap_or(0) + 1);
        }
    }
    Ok((put(cluster, ask, live, object, &version)?, warnings))
}

fn put(
    cluster: &Cluster,
    ask: &Ask,
    live: &Arc<Value>,
    object: Value,
    version: &Value,
) -> Answer<Arc<Value>> {
    let plural = &ask.kind.plural;
    if cluster.is_conflict_due(plural) {
        return Err(Failure::conflict(plural, &ask.name, ASKED));
    }
    let faster = || {
        let why =
            "the object has been modified; please apply your changes to the latest version and try again";
        Err(Failure::conflict(plural, &ask.name, why))
    };
    let place = ask.place(&ask.name);
    let mut store = cluster.store();
    let there = store.find(&place)?;
    if version.as_str().is_some_and(|version| !version.is_empty())
        && *version != there["metadata"]["resourceVersion"]
    {
        return faster();
    }
    if there["metadata"]["resourceVersion"] != live["metadata"]["resourceVersion"] {
        return faster();
    }
    let mut same = object.clone();
    same["metadata"]["resourceVersion"] = there["metadata"]["resourceVersion"].clone();
    if ask.is_dry() || same == *there {
        return Ok(Arc::new(same));
    }
    let is_leaving = object["metadata"]["deletionTimestamp"].is_string();
    let has_finalizers = object["metadata"]["finalizers"]
        .as_array()
        .is_some_and(|list| !list.is_empty());
    let done = store.put(&place, object);
    if is_leaving && !has_finalizers && plural != "pods" {
        store.remove(&place);
    }
    drop(store);
    if plural == "customresourcedefinitions" && ask.sub.is_empty() {
        cluster.define(&done, false);
    }
    collect(cluster);
    Ok(done)
}
