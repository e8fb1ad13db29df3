//! Objects that we make: a node's NodeHealth, Events about it, a preflight Job on it, an eviction. Pure.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::policy::health::Entry;
use super::policy::marks::{NodeView, TAINT, camel};
use super::policy::{Health, rules};
use crate::timestamp;

/// Group and version of NodeHealth.
pub const VERSION: &str = "paceline.dev/v1alpha1";
/// Where they are.
pub const HEALTHS: &str = "/apis/paceline.dev/v1alpha1/nodehealths";
/// Where Events about Nodes are: a Node has no namespace.
pub const EVENTS: &str = "/api/v1/namespaces/default/events";

/// Of a preflight's pod.
const CONTAINER: &str = "preflight";

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
    let containers = ["containers", "initContainers"];
    let containers = containers
        .iter()
        .flat_map(|list| pod["spec"][list].as_array().into_iter().flatten());
    let is_device = |name: &String| name.contains('/') && !name.starts_with("kubernetes.io/");
    let mut wanted =
        containers.flat_map(|container| container["resources"]["limits"].as_object().into_iter().flatten());
    has_claims(pod) || wanted.any(|(name, count)| is_device(name) && count != "0" && *count != 0)
}

/// Whether a resource driver gives it something (dynamic resource allocation).
pub fn has_claims(pod: &Value) -> bool {
    let claims = pod["spec"]["resourceClaims"].as_array();
    claims.is_some_and(|claims| !claims.is_empty())
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

/// What a preflight Job has of its own.
#[derive(Clone, Copy, Debug)]
pub struct Preflight<'a> {
    /// Its name.
    pub name: &'a str,
    /// Our namespace.
    pub namespace: &'a str,
    /// It gets all of them, and passes with all of them.
    pub gpus: Option<u32>,
    /// With `paceline` in it.
    pub image: &'a str,
    /// What the site has its pod bear.
    pub pod: &'a PreflightPod,
    /// It ends by then.
    pub deadline_s: u64,
}

/// What a site wants of a preflight's pod: fields of a PodSpec.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PreflightPod {
    /// By which its image is pulled.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<Value>,
    /// Besides those for what we put on nodes.
    pub tolerations: Vec<Value>,
    /// Where GPUs take one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime_class_name: Option<String>,
    /// Its priority.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
}

/// `paceline preflight` on one node, whose taints of ours and cordon it bears.
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
            // Its pod goes with that, and we look at it once more before.
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
    // A struct of strings and values cannot fail to be written.
    let mut pod = serde_json::to_value(job.pod).unwrap_or_default();
    let ours = [TAINT, "node.kubernetes.io/unschedulable", "nvidia.com/gpu"];
    let ours = ours.map(|key| json!({ "key": key, "operator": "Exists", "effect": "NoSchedule" }));
    pod["tolerations"] = ours.into_iter().chain(job.pod.tolerations.clone()).collect();
    pod["restartPolicy"] = json!("Never");
    pod["automountServiceAccountToken"] = json!(false);
    // As DaemonSets name their node: by the scheduler, so that the devices are given out in order.
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
    // Nobody waits for it: CUDA that begins slowly on eight GPUs has its time.
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
        // What it found is in the pod's status then.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{ "name": "tmp", "mountPath": "/tmp" }, { "name": "shm", "mountPath": "/dev/shm" }],
        "workingDir": "/tmp",
    }]);
    pod
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

/// What a preflight's container said, when it ran and ended.
///
/// # Errors
/// Why it did not run to an end of its own: that says nothing about the node's hardware.
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
    // Of a check: it could not tell, or was asked for what it does not know.
    if let Some(code @ (3 | 64)) = ended["exitCode"].as_i64() {
        let said = text(&ended["message"]);
        return Err(format!("it had no result (exit code {code}): {said}"));
    }
    // What the runtime could not start ends too.
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
