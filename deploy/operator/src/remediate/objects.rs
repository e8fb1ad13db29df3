//! Objects that the remediator creates: a node's NodeHealth, Events about the node, a preflight Job on it, and an
//! eviction. This module does no I/O.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::policy::health::Entry;
use super::policy::marks::{NodeView, TAINT, camel};
use super::policy::{Health, rules};
use crate::timestamp;

/// API group and version of NodeHealth.
pub const VERSION: &str = "paceline.dev/v1alpha1";
/// The API path of NodeHealths.
pub const HEALTHS: &str = "/apis/paceline.dev/v1alpha1/nodehealths";
/// The API path of Events about Nodes. They are in the default namespace, because a Node has none.
pub const EVENTS: &str = "/api/v1/namespaces/default/events";

/// The container of a preflight's pod.
const CONTAINER: &str = "preflight";

/// Returns the resourceVersion of an object.
pub fn version(object: &Value) -> String {
    let version = object["metadata"]["resourceVersion"].as_str();
    version.unwrap_or_default().to_owned()
}

/// Returns a NodeHealth without a status. It is deleted together with its Node.
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

/// Returns a NodeHealth with its status. Its resourceVersion is the version that was read, so that only this version is
/// overwritten.
pub fn with_status(name: &str, version: &str, health: &Health) -> Value {
    json!({
        "apiVersion": VERSION,
        "kind": "NodeHealth",
        "metadata": { "name": name, "resourceVersion": version },
        "status": health,
    })
}

/// Returns the Event for a decision. The Event's name is derived from the decision, so that retries do not duplicate
/// it.
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
    let at = timestamp::write(entry.at);
    let at = format!("{}Z", at.split('.').next().unwrap_or_default());
    let says: String = entry.says.chars().take(1000).collect();
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": { "name": format!("{}.paceline-{}-{}", node.name, entry.at, entry.number), "namespace": "default" },
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

/// Returns true if a drain evicts this pod. A pod that has ended, belongs to a DaemonSet, or is a mirror pod is not
/// evicted.
pub fn is_drained(pod: &Value, pods: rules::Pods) -> bool {
    let meta = &pod["metadata"];
    let is_mirror = meta["annotations"]["kubernetes.io/config.mirror"].is_string();
    let mut owners = meta["ownerReferences"].as_array().into_iter().flatten();
    let is_daemon = owners.any(|owner| owner["kind"] == "DaemonSet" && owner["controller"] == true);
    let has_ended = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    !is_mirror && !is_daemon && !has_ended && (pods == rules::Pods::All || holds_devices(pod))
}

/// Returns true if the pod uses devices of a device plugin or a resource driver. The names of such resources have a
/// vendor's domain as prefix.
fn holds_devices(pod: &Value) -> bool {
    let containers = ["containers", "initContainers"];
    let containers = containers
        .iter()
        .flat_map(|list| pod["spec"][list].as_array().into_iter().flatten());
    let is_device = |name: &String| name.contains('/') && !name.starts_with("kubernetes.io/");
    let mut wanted =
        containers.flat_map(|container| container["resources"]["limits"].as_object().into_iter().flatten());
    has_claims(pod) || wanted.any(|(name, count)| is_device(name) && count != "0" && *count != 0)
}

/// Returns true if the pod has resource claims (dynamic resource allocation).
pub fn has_claims(pod: &Value) -> bool {
    let claims = pod["spec"]["resourceClaims"].as_array();
    claims.is_some_and(|claims| !claims.is_empty())
}

/// Returns an eviction request for one pod. It is bound to the pod's uid, so that a new pod with the same name is not
/// evicted.
pub fn eviction(namespace: &str, name: &str, uid: &str) -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": { "name": name, "namespace": namespace },
        "deleteOptions": { "preconditions": { "uid": uid } },
    })
}

/// The settings of a preflight Job.
#[derive(Clone, Copy, Debug)]
pub struct Preflight<'a> {
    /// The Job's name.
    pub name: &'a str,
    /// The operator's namespace.
    pub namespace: &'a str,
    /// The number of GPUs. The Job gets all of them, and all must pass.
    pub gpus: Option<u32>,
    /// The image with `paceline`.
    pub image: &'a str,
    /// The site's settings for the Job's pod.
    pub pod: &'a PreflightPod,
    /// The Job's deadline in seconds.
    pub deadline_s: u64,
}

/// A site's settings for preflight pods, as fields of a PodSpec.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PreflightPod {
    /// The Secrets for pulling the image.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<Value>,
    /// Tolerations, in addition to those for the operator's own taints.
    pub tolerations: Vec<Value>,
    /// The RuntimeClass, if GPUs need one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime_class_name: Option<String>,
    /// The pod's priority.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
}

/// Returns a Job that runs `paceline preflight` on one node. The Job tolerates the operator's taint and cordon.
pub fn preflight(job: Preflight<'_>, node: &NodeView) -> Value {
    json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": job.name,
            "namespace": job.namespace,
            "labels": { "app.kubernetes.io/name": "paceline-preflight", "app.kubernetes.io/managed-by": "paceline-remediator" },
            "annotations": { "paceline.dev/node": node.name },
        },
        "spec": {
            "backoffLimit": 0,
            // The pod is deleted at this deadline. It is a minute after the preflight's deadline, so that the result
            // can be read once more.
            "activeDeadlineSeconds": job.deadline_s + 60,
            "ttlSecondsAfterFinished": 86_400,
            "template": {
                "metadata": { "labels": { "app.kubernetes.io/name": "paceline-preflight", "paceline.dev/inject": "false" } },
                "spec": preflight_pod(job, node),
            },
        },
    })
}

fn preflight_pod(job: Preflight<'_>, node: &NodeView) -> Value {
    // Serialization cannot fail, because the struct has only strings and JSON values.
    let mut pod = serde_json::to_value(job.pod).unwrap_or_default();
    let ours = [TAINT, "node.kubernetes.io/unschedulable", "nvidia.com/gpu"];
    let ours = ours.map(|key| json!({ "key": key, "operator": "Exists", "effect": "NoSchedule" }));
    pod["tolerations"] = ours.into_iter().chain(job.pod.tolerations.clone()).collect();
    pod["restartPolicy"] = json!("Never");
    pod["automountServiceAccountToken"] = json!(false);
    // As for a DaemonSet's pod, let the scheduler bind the pod to the node, so that devices are allocated normally.
    pod["affinity"] = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
        { "matchFields": [{ "key": "metadata.name", "operator": "In", "values": [node.name] }] },
    ] } } });
    pod["securityContext"] =
        json!({ "runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": { "type": "RuntimeDefault" } });
    pod["volumes"] = json!([
        { "name": "tmp", "emptyDir": {} },
        { "name": "shm", "emptyDir": { "medium": "Memory", "sizeLimit": "1Gi" } },
    ]);
    let mut resources = json!({ "requests": { "cpu": "1", "memory": "2Gi" }, "limits": { "memory": "8Gi" } });
    // The preflight gets no time limit of its own, because CUDA initialization on eight GPUs can be slow. Only the
    // Job's deadline applies.
    let mut command = ["paceline", "preflight", "full"].map(str::to_owned).to_vec();
    if let Some(gpus) = job.gpus {
        resources["limits"]["nvidia.com/gpu"] = json!(gpus.to_string());
        command.push(format!("--gpus={gpus}"));
    }
    pod["containers"] = json!([{
        "name": CONTAINER,
        "image": job.image,
        "command": command,
        "env": [
            // The image's own setting requests only the management library, with which nothing can be measured.
            { "name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility" },
            { "name": "PACELINE_NODE", "value": node.name },
            // A preflight without peers creates its key in this directory.
            { "name": "HOME", "value": "/tmp" },
        ],
        "resources": resources,
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": { "drop": ["ALL"] },
        },
        // With this policy, the results are in the pod's status.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{ "name": "tmp", "mountPath": "/tmp" }, { "name": "shm", "mountPath": "/dev/shm" }],
        "workingDir": "/tmp",
    }]);
    pod
}

/// Returns the outcome of a Job, or `None` if the Job is still running.
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

/// Returns the output of a preflight's container, if the container ran and ended.
///
/// # Errors
/// Returns the reason if the container did not run to completion. This gives no information about the node's hardware.
pub fn ran(pods: &[Value]) -> Result<String, String> {
    let Some(pod) = pods.last() else {
        return Err("it has no pod".to_owned());
    };
    let status = &pod["status"];
    let text = |value: &Value| value.as_str().unwrap_or_default().trim().to_owned();
    let found = |list: &Value, key: &str, name: &str| {
        let found = list.as_array().into_iter().flatten().find(|one| one[key] == name);
        found.cloned().unwrap_or_default()
    };
    let disrupted = found(&status["conditions"], "type", "DisruptionTarget");
    if disrupted["status"] == "True" {
        return Err(format!("its pod was removed: {}", text(&disrupted["message"])));
    }
    let state = found(&status["containerStatuses"], "name", CONTAINER)["state"].clone();
    let ended = &state["terminated"];
    // These exit codes mean that the check had no result, or that it was called with an unknown argument.
    if let Some(code @ (3 | 64)) = ended["exitCode"].as_i64() {
        let said = text(&ended["message"]);
        return Err(format!("it had no result (exit code {code}): {said}"));
    }
    // A container that the runtime could not start also has the state `terminated`.
    let is_started =
        ended.is_object() && !["StartError", "ContainerCannotRun"].contains(&&*text(&ended["reason"]));
    if is_started || state["running"].is_object() {
        return Ok(text(&ended["message"]));
    }
    let scheduled = found(&status["conditions"], "type", "PodScheduled");
    let whys = [ended, &state["waiting"], &scheduled, status];
    let why = whys.iter().find(|why| why["reason"].is_string());
    Err(why.map_or("its pod did not start".to_owned(), |why| {
        format!("{}: {}", text(&why["reason"]), text(&why["message"]))
    }))
}

#[cfg(test)]
#[path = "objects_tests.rs"]
mod tests;
