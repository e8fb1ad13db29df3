//! Objects that the remediator creates: a node's NodeHealth, Events about it, a preflight Job on it, an eviction. Pure.

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
/// The API path of Events about Nodes: a Node has no namespace.
pub const EVENTS: &str = "/api/v1/namespaces/default/events";

/// The container of a preflight's pod.
const CONTAINER: &str = "preflight";

/// The resourceVersion of an object.
pub fn version(object: &Value) -> String {
    let version = object["metadata"]["resourceVersion"].as_str();
    version.unwrap_or_default().to_owned()
}

/// A NodeHealth without a status. It is deleted with its Node.
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

/// The same with the status, to be written over the version that was read.
pub fn with_status(name: &str, version: &str, health: &Health) -> Value {
    json!({
        "apiVersion": VERSION,
        "kind": "NodeHealth",
        "metadata": { "name": name, "resourceVersion": version },
        "status": health,
    })
}

/// The Event for a decision. Its name is derived from the decision, so that retries do not duplicate it.
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

/// Whether a drain evicts this pod: not if it has ended, belongs to a DaemonSet, or is a mirror pod.
pub fn is_drained(pod: &Value, pods: rules::Pods) -> bool {
    let meta = &pod["metadata"];
    let is_mirror = meta["annotations"]["kubernetes.io/config.mirror"].is_string();
    let mut owners = meta["ownerReferences"].as_array().into_iter().flatten();
    let is_daemon = owners.any(|owner| owner["kind"] == "DaemonSet" && owner["controller"] == true);
    let has_ended = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    !is_mirror && !is_daemon && !has_ended && (pods == rules::Pods::All || holds_devices(pod))
}

/// Whether it uses devices of a device plugin or a resource driver: such resources are prefixed with a vendor's domain.
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

/// Whether it has resource claims (dynamic resource allocation).
pub fn has_claims(pod: &Value) -> bool {
    let claims = pod["spec"]["resourceClaims"].as_array();
    claims.is_some_and(|claims| !claims.is_empty())
}

/// An eviction request for one pod, bound to its uid: a new pod with the same name is not evicted.
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
    /// Its name.
    pub name: &'a str,
    /// The operator's namespace.
    pub namespace: &'a str,
    /// The number of GPUs: it gets all of them, and all must pass.
    pub gpus: Option<u32>,
    /// The image with `paceline`.
    pub image: &'a str,
    /// The site's settings for its pod.
    pub pod: &'a PreflightPod,
    /// Its deadline in seconds.
    pub deadline_s: u64,
}

/// A site's settings for preflight pods: fields of a PodSpec.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PreflightPod {
    /// The Secrets for pulling its image.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<Value>,
    /// Tolerations, in addition to those for the operator's own taints.
    pub tolerations: Vec<Value>,
    /// The RuntimeClass, where GPUs need one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime_class_name: Option<String>,
    /// Its priority.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
}

/// A Job that runs `paceline preflight` on one node; it tolerates the operator's taint and cordon.
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
            // The pod is deleted at this deadline; before that, the result is read once more.
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
    // A struct of strings and values always serializes.
    let mut pod = serde_json::to_value(job.pod).unwrap_or_default();
    let ours = [TAINT, "node.kubernetes.io/unschedulable", "nvidia.com/gpu"];
    let ours = ours.map(|key| json!({ "key": key, "operator": "Exists", "effect": "NoSchedule" }));
    pod["tolerations"] = ours.into_iter().chain(job.pod.tolerations.clone()).collect();
    pod["restartPolicy"] = json!("Never");
    pod["automountServiceAccountToken"] = json!(false);
    // Like a DaemonSet's pod: the scheduler binds it to the node, so that devices are allocated normally.
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
    // No time limit of its own: slow CUDA initialization on eight GPUs gets the time that it needs.
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
            // The image's own setting requests only the management library, which measures nothing.
            { "name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility" },
            { "name": "PACELINE_NODE", "value": node.name },
            // Where a preflight without peers creates its key.
            { "name": "HOME", "value": "/tmp" },
        ],
        "resources": resources,
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": { "drop": ["ALL"] },
        },
        // The results are then in the pod's status.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{ "name": "tmp", "mountPath": "/tmp" }, { "name": "shm", "mountPath": "/dev/shm" }],
        "workingDir": "/tmp",
    }]);
    pod
}

/// The outcome of a Job; `None`: it is running.
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

/// The output of a preflight's container, if it ran and ended.
///
/// # Errors
/// Why it did not run to completion: that gives no information about the node's hardware.
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
    // These exit codes mean that the check had no result, or was called with an unknown argument.
    if let Some(code @ (3 | 64)) = ended["exitCode"].as_i64() {
        let said = text(&ended["message"]);
        return Err(format!("it had no result (exit code {code}): {said}"));
    }
    // A container that the runtime could not start is also terminated.
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
