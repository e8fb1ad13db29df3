//! The rules for pods: required fields, termination, and evictions.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::failure::{Answer, Failure};
use crate::leaving;
use crate::request::Ask;
use crate::room;
use crate::select::Selector;
use crate::stamp;
use crate::store::Place;

/// Adds the fields that the server sets on a new pod.
pub fn made(pod: &mut Value) {
    if pod["status"]["phase"].is_null() {
        pod["status"]["phase"] = json!("Pending");
    }
    for (word, value) in [
        ("serviceAccountName", json!("default")),
        ("restartPolicy", json!("Always")),
        ("terminationGracePeriodSeconds", json!(30)),
    ] {
        if pod["spec"][word].is_null() {
            pod["spec"][word] = value;
        }
    }
}

/// Validates a pod, also against its namespace.
///
/// # Errors
/// Returns Invalid, or Forbidden if Pod Security denies the pod.
pub fn check(pod: &Value, namespace: Option<&Value>) -> Answer<()> {
    let name = pod["metadata"]["name"].as_str().unwrap_or("");
    let invalid = |why: String| {
        Err(Failure::new(
            "Invalid",
            format!("Pod \"{name}\" is invalid: {why}"),
        ))
    };
    let all = |list: &str| pod["spec"][list].as_array().cloned().unwrap_or_default();
    let (volumes, mut seen) = (all("volumes"), Vec::new());
    if all("containers").is_empty() {
        return invalid("spec.containers: Required value".into());
    }
    for list in ["initContainers", "containers"] {
        for container in all(list) {
            let own = container["name"].as_str().unwrap_or("").to_owned();
            if own.is_empty() || container["image"].as_str().is_none_or(str::is_empty) {
                return invalid(format!("spec.{list}: Required value: name and image"));
            }
            if seen.contains(&own) {
                return invalid(format!("spec.{list}[].name: Duplicate value: {own:?}"));
            }
            if list == "containers" && !container["restartPolicy"].is_null() {
                return invalid(
                    "spec.containers[].restartPolicy: Forbidden: may not be set for non-init containers"
                        .into(),
                );
            }
            if container["restartPolicy"].is_null()
                && list == "initContainers"
                && !container["startupProbe"].is_null()
            {
                return invalid("spec.initContainers[].startupProbe: Forbidden: may not be set for init containers without restartPolicy=Always".into());
            }
            for mount in container["volumeMounts"].as_array().into_iter().flatten() {
                if !volumes.iter().any(|volume| volume["name"] == mount["name"]) {
                    return invalid(format!(
                        "spec.{list}[].volumeMounts[].name: Not found: {}",
                        mount["name"]
                    ));
                }
            }
            seen.push(own);
        }
    }
    if let Err(why) = room::check(&pod["spec"]) {
        return invalid(why);
    }
    let level = namespace.map(|space| &space["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]);
    if level.is_some_and(|level| level == "restricted") {
        for container in all("initContainers").iter().chain(&all("containers")) {
            if let Some(why) = loose(container, &pod["spec"]["securityContext"]) {
                let message = format!(
                    "pods {name:?} is forbidden: violates PodSecurity \"restricted:latest\": {why} (container {})",
                    container["name"]
                );
                return Err(Failure::new("Forbidden", message));
            }
        }
    }
    Ok(())
}

/// Returns why a container violates the restricted Pod Security standard, if it does
/// (<https://kubernetes.io/docs/concepts/security/pod-security-standards/>).
fn loose(container: &Value, pod: &Value) -> Option<&'static str> {
    let own = &container["securityContext"];
    let either = |word: &str| {
        if own[word].is_null() {
            &pod[word]
        } else {
            &own[word]
        }
    };
    let capabilities = &own["capabilities"];
    let has = |list: &str, word: &str| {
        capabilities[list]
            .as_array()
            .is_some_and(|list| list.iter().any(|one| one == word))
    };
    if own["allowPrivilegeEscalation"] != false {
        return Some("allowPrivilegeEscalation != false");
    }
    if !has("drop", "ALL")
        || capabilities["add"]
            .as_array()
            .is_some_and(|added| added.iter().any(|one| one != "NET_BIND_SERVICE"))
    {
        return Some("unrestricted capabilities");
    }
    if *either("runAsNonRoot") != true || *either("runAsUser") == 0 {
        return Some("runAsNonRoot != true");
    }
    let profile = &either("seccompProfile")["type"];
    if profile != "RuntimeDefault" && profile != "Localhost" {
        return Some("seccompProfile");
    }
    (own["privileged"] == true).then_some("privileged")
}

/// Validates a change of a pod. Almost all fields of a pod's spec are immutable.
///
/// # Errors
/// Returns Invalid if an immutable field changes.
pub fn check_change(before: &Value, after: &Value) -> Answer<()> {
    let fixed = |pod: &Value| {
        let mut spec = pod["spec"].clone();
        for word in [
            "activeDeadlineSeconds",
            "tolerations",
            "terminationGracePeriodSeconds",
            "schedulingGates",
            "nodeName",
        ] {
            spec[word] = Value::Null;
        }
        for list in ["containers", "initContainers"] {
            for container in spec[list].as_array_mut().into_iter().flatten() {
                container["image"] = Value::Null;
            }
        }
        spec
    };
    if fixed(before) == fixed(after) {
        return Ok(());
    }
    let message = format!(
        "Pod {} is invalid: spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`",
        before["metadata"]["name"]
    );
    Err(Failure::new("Invalid", message))
}

fn is_over(pod: &Value) -> bool {
    pod["status"]["phase"] == "Succeeded" || pod["status"]["phase"] == "Failed"
}

/// Returns the grace period in seconds. 0 means that the pod is deleted at once, like one that is not scheduled yet.
pub fn grace(pod: &Value, options: &Value) -> u64 {
    let has_node = pod["spec"]["nodeName"]
        .as_str()
        .is_some_and(|node| !node.is_empty());
    if !has_node || is_over(pod) {
        return 0;
    }
    let given = options["gracePeriodSeconds"].as_u64();
    given
        .or_else(|| pod["spec"]["terminationGracePeriodSeconds"].as_u64())
        .unwrap_or(30)
}

/// Handles a POST of an Eviction.
///
/// # Errors
/// Returns NotFound, Conflict (another uid), TooManyRequests with the budget in its causes, or InternalError when two
/// budgets cover it.
pub fn evict(cluster: &Arc<Cluster>, ask: &Ask, eviction: &Value) -> Answer<Value> {
    let named = eviction["metadata"]["name"].as_str().unwrap_or(&ask.name);
    if named != ask.name {
        return Err(Failure::new(
            "BadRequest",
            "name in URL does not match name in Eviction object",
        ));
    }
    let place = ask.place(&ask.name);
    meanwhile(cluster, &place);
    let pod = cluster.store().find(&place)?;
    let wanted = &eviction["deleteOptions"]["preconditions"]["uid"];
    if wanted.is_string() && *wanted != pod["metadata"]["uid"] {
        let why = format!(
            "Precondition failed: UID in precondition: {wanted}, UID in object meta: {}",
            pod["metadata"]["uid"]
        );
        return Err(Failure::conflict("pods", &ask.name, &why));
    }
    let is_free = is_over(&pod)
        || pod["status"]["phase"] == "Pending"
        || pod["metadata"]["deletionTimestamp"].is_string();
    if !is_free {
        budgets(cluster, ask, &pod)?;
    }
    if !ask.is_dry() {
        if !is_free {
            disrupted(cluster, &place, &pod);
        }
        let itself = Ask {
            sub: String::new(),
            ..ask.clone()
        };
        leaving::delete(cluster, &itself, &ask.name, &eviction["deleteOptions"])?;
    }
    Ok(json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201 }))
}

/// Applies the change that a test requested between a client's read of a pod and its eviction.
fn meanwhile(cluster: &Cluster, place: &Place) {
    let Some(what) = cluster.trouble().meanwhile.remove(&place.name) else {
        return;
    };
    let mut store = cluster.store();
    let Some(gone) = store.remove(place).filter(|_| what == "another") else {
        return;
    };
    let mut another = Value::clone(&gone);
    another["metadata"]["uid"] = json!(stamp::uid());
    store.put(place, another);
}

fn budgets(cluster: &Cluster, ask: &Ask, pod: &Value) -> Answer<()> {
    let store = cluster.store();
    let budgets = ("policy".to_owned(), "poddisruptionbudgets".to_owned());
    let selects = |budget: &Value, pod: &Value| Selector::of_object(&budget["spec"]["selector"]).matches(pod);
    let all: Vec<_> = store
        .all(&budgets, Some(&ask.namespace))
        .filter(|(_, budget)| selects(budget, pod))
        .collect();
    let (place, budget) = match all.as_slice() {
        [] => return Ok(()),
        [one] => one,
        _ => {
            let message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
            return Err(Failure::new("InternalError", message));
        }
    };
    let pods = (String::new(), "pods".to_owned());
    let covered: Vec<_> = store
        .all(&pods, Some(&ask.namespace))
        .filter(|(_, other)| selects(budget, other) && !is_over(other))
        .map(|(_, other)| other)
        .collect();
    let healthy = covered.iter().filter(|pod| is_ready(pod)).count();
    let amount = |word: &str| {
        let text = budget["spec"][word]
            .as_str()
            .and_then(|text| text.strip_suffix('%'));
        let share = text.and_then(|text| text.parse::<usize>().ok());
        share
            .map(|share| (share * covered.len()).div_ceil(100))
            .or_else(|| {
                budget["spec"][word]
                    .as_u64()
                    .and_then(|count| usize::try_from(count).ok())
            })
    };
    let needed = amount("minAvailable")
        .or_else(|| amount("maxUnavailable").map(|most| covered.len().saturating_sub(most)))
        .unwrap_or(0);
    if healthy > needed || (!is_ready(pod) && healthy >= needed && needed > 0) {
        return Ok(());
    }
    let message = "Cannot evict pod as it would violate the pod's disruption budget.";
    let why = format!(
        "The disruption budget {} needs {needed} healthy pods and has {healthy} currently",
        place.name
    );
    let causes = json!([{ "reason": "DisruptionBudget", "message": why }]);
    Err(Failure::new("TooManyRequests", message).with(json!({ "causes": causes })))
}

fn is_ready(pod: &Value) -> bool {
    let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    pod["metadata"]["deletionTimestamp"].is_null()
        && conditions.any(|one| one["type"] == "Ready" && one["status"] == "True")
}

fn disrupted(cluster: &Cluster, place: &Place, pod: &Value) {
    let mut pod = pod.clone();
    let condition = json!({
        "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting", "lastTransitionTime": stamp::now(),
    });
    match pod["status"]["conditions"].as_array_mut() {
        Some(conditions) => conditions.push(condition),
        None => pod["status"]["conditions"] = json!([condition]),
    }
    cluster.store().put(place, pod);
}
