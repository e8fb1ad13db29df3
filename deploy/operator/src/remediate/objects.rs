//! Objects that we make: a node's NodeHealth, Events about it, a preflight Job on it, an eviction. Pure.

use serde_json::{Value, json};

use super::policy::health::Entry;
use super::policy::marks::{NodeView, TAINT, camel};
use super::policy::{Health, rules};
use crate::stamp;

/// Group and version of NodeHealth.
pub const VERSION: &str = "paceline.dev/v1alpha1";
/// Where they are.
pub const HEALTHS: &str = "/apis/paceline.dev/v1alpha1/nodehealths";
/// Where Events about Nodes are: a Node has no namespace.
pub const EVENTS: &str = "/api/v1/namespaces/default/events";

/// Which of its states an object of the API is in.
pub fn version(object: &Value) -> String {
    let version = object["metadata"]["resourceVersion"].as_str();
    version.unwrap_or_default().to_owned()
}

/// A NodeHealth without a status. It goes when its Node goes.
pub fn node_health(node: &NodeView) -> Value {
    json!({
        "apiVersion": VERSION,
        "kind": "NodeHealth",
        "metadata": {
            "name": node.name,
            "ownerReferences": [{ "apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid }],
        },
    })
}

/// The same with all that is known, to be written over the version that was read.
pub fn with_status(name: &str, version: &str, health: &Health) -> Value {
    json!({
        "apiVersion": VERSION,
        "kind": "NodeHealth",
        "metadata": { "name": name, "resourceVersion": version },
        "status": health,
    })
}

/// What is told of a decision. Its name is the decision's, so that it is told once however often it is tried.
pub fn event(node: &NodeView, entry: &Entry) -> Value {
    let bad = [
        "raised",
        "resolved",
        "recovered",
        "repaired",
        "rebooted",
        "preflight",
        "drained",
        "expired",
        "would",
    ];
    let at = stamp::write(entry.at);
    let at = format!("{}Z", at.split('.').next().unwrap_or_default());
    let says: String = entry.says.chars().take(1000).collect();
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": { "name": format!("{}.paceline-{}-{}", node.name, entry.at, entry.n), "namespace": "default" },
        "involvedObject": { "apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid },
        "type": if bad.contains(&entry.what.as_str()) { "Normal" } else { "Warning" },
        "reason": format!("Paceline{}", camel(&entry.what)),
        "message": if says.is_empty() { entry.what.clone() } else { says },
        "source": { "component": "paceline-remediator", "host": node.name },
        "reportingComponent": "paceline-remediator",
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    })
}

/// Whether a pod is asked to leave, and is still there: not one that has ended, belongs to a DaemonSet or to the node itself.
pub fn is_drained(pod: &Value, pods: rules::Pods) -> bool {
    let meta = &pod["metadata"];
    let is_mirror = meta["annotations"]["kubernetes.io/config.mirror"].is_string();
    let mut owners = meta["ownerReferences"].as_array().into_iter().flatten();
    let is_daemon = owners.any(|owner| owner["kind"] == "DaemonSet" && owner["controller"] == true);
    let has_ended = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    !is_mirror && !is_daemon && !has_ended && (pods == rules::Pods::All || holds_devices(pod))
}

/// Whether it holds what a device plugin or a resource driver gives out: such resources have a vendor's domain before their name.
fn holds_devices(pod: &Value) -> bool {
    let claims = pod["spec"]["resourceClaims"]
        .as_array()
        .is_some_and(|claims| !claims.is_empty());
    let containers = ["containers", "initContainers"];
    let containers = containers
        .iter()
        .flat_map(|list| pod["spec"][list].as_array().into_iter().flatten());
    let is_device = |name: &String| name.contains('/') && !name.starts_with("kubernetes.io/");
    let mut wanted =
        containers.flat_map(|container| container["resources"]["limits"].as_object().into_iter().flatten());
    claims || wanted.any(|(name, _)| is_device(name))
}

/// A request that one pod leave: this one, and not another that has got its name.
pub fn eviction(namespace: &str, name: &str, uid: &str) -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": { "name": name, "namespace": namespace },
        "deleteOptions": { "preconditions": { "uid": uid } },
    })
}

/// `paceline preflight` on one node, whose taints of ours and cordon it bears. `gpus`: it gets all of them, and passes with all of them.
pub fn preflight(name: &str, namespace: &str, node: &NodeView, gpus: Option<u32>, image: &str, deadline_s: u64) -> Value {
    let mut resources = json!({ "requests": { "cpu": "1", "memory": "2Gi" }, "limits": { "memory": "8Gi" } });
    let mut command = vec!["paceline".to_owned(), "preflight".to_owned()];
    if let Some(gpus) = gpus {
        resources["limits"]["nvidia.com/gpu"] = json!(gpus.to_string());
        command.push(format!("--gpus={gpus}"));
    }
    json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": { "app.kubernetes.io/name": "paceline-preflight", "app.kubernetes.io/managed-by": "paceline-remediator" },
            "annotations": { "paceline.dev/node": node.name },
        },
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": deadline_s.max(1),
            "ttlSecondsAfterFinished": 86_400,
            "template": {
                "metadata": { "labels": { "app.kubernetes.io/name": "paceline-preflight", "paceline.dev/inject": "false" } },
                "spec": {
                    "restartPolicy": "Never",
                    "automountServiceAccountToken": false,
                    // As DaemonSets name their node: by the scheduler, so that the devices are given out in order.
                    "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
                        { "matchFields": [{ "key": "metadata.name", "operator": "In", "values": [node.name] }] },
                    ] } } },
                    "tolerations": [
                        { "key": TAINT, "operator": "Exists", "effect": "NoSchedule" },
                        { "key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule" },
                        { "key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule" },
                    ],
                    "securityContext": { "runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": { "type": "RuntimeDefault" } },
                    "containers": [{
                        "name": "preflight",
                        "image": image,
                        "command": command,
                        "env": [
                            // The image's own asks for the management library alone, which measures nothing.
                            { "name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility" },
                            { "name": "PACELINE_NODE", "value": node.name },
                            // Where the key of a preflight without others is made.
                            { "name": "HOME", "value": "/tmp" },
                        ],
                        "resources": resources,
                        "securityContext": {
                            "allowPrivilegeEscalation": false,
                            "readOnlyRootFilesystem": true,
                            "capabilities": { "drop": ["ALL"] },
                        },
                        "volumeMounts": [{ "name": "tmp", "mountPath": "/tmp" }, { "name": "shm", "mountPath": "/dev/shm" }],
                        "workingDir": "/tmp",
                    }],
                    "volumes": [
                        { "name": "tmp", "emptyDir": {} },
                        { "name": "shm", "emptyDir": { "medium": "Memory", "sizeLimit": "1Gi" } },
                    ],
                },
            },
        },
    })
}

/// What became of a Job; `None`: it runs.
pub fn outcome(job: &Value) -> Option<(bool, String)> {
    let conditions = job["status"]["conditions"].as_array();
    let mut ended = conditions
        .into_iter()
        .flatten()
        .filter(|condition| condition["status"] == "True");
    ended.find_map(|condition| {
        let says = condition["message"].as_str().unwrap_or_default().to_owned();
        match condition["type"].as_str() {
            Some("Complete") => Some((true, says)),
            Some("Failed") => Some((false, says)),
            _ => None,
        }
    })
}

#[cfg(test)]
#[path = "objects_tests.rs"]
mod tests;
