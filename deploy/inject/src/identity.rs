//! Derives from operator-specific labels which job a pod belongs to and the address of the job's first pod.
//!
//! The labels are those in the operators' sources: Kubeflow's `training.kubeflow.org/*`, JobSet's, LeaderWorkerSet's,
//! Volcano's `volcano.sh/*`, KubeRay's `ray.io/*`. A pod template in a manifest does not have these labels yet. A value
//! that exists only at run time therefore becomes an environment variable that the downward API sets.

use serde_json::{Value, json};

use crate::pod::trainer::{entry, literal, meeting};
use crate::request::is_name;

/// The operator or controller that creates the pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Kubeflow's training operator, version 1.
    PyTorchJob,
    /// Kubeflow's trainer, version 2: a JobSet created from a runtime.
    TrainJob,
    /// JobSet.
    JobSet,
    /// LeaderWorkerSet.
    LeaderWorkerSet,
    /// Volcano.
    Volcano,
    /// KubeRay.
    RayJob,
    /// The Job controller of Kubernetes.
    Job,
    /// A bare pod without a controller.
    Pod,
}

impl Kind {
    /// Returns the kind's display name.
    pub fn word(self) -> &'static str {
        match self {
            Kind::PyTorchJob => "PyTorchJob",
            Kind::TrainJob => "TrainJob",
            Kind::JobSet => "JobSet",
            Kind::LeaderWorkerSet => "LeaderWorkerSet",
            Kind::Volcano => "Volcano Job",
            Kind::RayJob => "RayJob",
            Kind::Job => "Job",
            Kind::Pod => "Pod",
        }
    }
}

/// The part of a job's identity that injection needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The operator that creates the pods.
    pub kind: Kind,
    /// The job's name in its namespace. It can contain `$(VARIABLE)` references to [`Identity::env`].
    pub name: String,
    /// The object after which the job's Secret is named. It is the job's name without variables.
    pub owner: String,
    /// The host of the first pod, or `None` if this pod is the only one, or the host is unknown.
    pub first: Option<String>,
    /// True if this is the job's only pod.
    pub is_alone: bool,
    /// Variables referenced in the names.
    pub env: Vec<Value>,
}

const KUBEFLOW_JOB: &str = "training.kubeflow.org/job-name";
const KUBEFLOW_TYPE: &str = "training.kubeflow.org/replica-type";
/// Label of a TrainJob's replicated jobs. It is set on their Jobs. Their pods have it only if the runtime's pod
/// template sets it.
const TRAINER_STEP: &str = "trainer.kubeflow.org/trainjob-ancestor-step";
/// Name of the replicated job that trains, and of its container, in the trainer's runtimes
/// (pkg/constants/constants.go).
pub(crate) const NODE: &str = "node";
const SET: &str = "jobset.sigs.k8s.io/jobset-name";
const SET_JOB: &str = "jobset.sigs.k8s.io/replicatedjob-name";
const COORDINATOR: &str = "jobset.sigs.k8s.io/coordinator";
const GROUPS: &str = "leaderworkerset.sigs.k8s.io/name";
const GROUP: &str = "leaderworkerset.sigs.k8s.io/group-index";
const VOLCANO_JOB: &str = "volcano.sh/job-name";
const VOLCANO_TASK: &str = "volcano.sh/task-spec";
const RAY_CLUSTER: &str = "ray.io/cluster";
const JOB: &str = "batch.kubernetes.io/job-name";
const OLD_JOB: &str = "job-name";

/// Returns which operator created a pod, from the pod's labels.
pub fn kind_of(pod: &Value) -> Kind {
    let has = |label: &str| label_of(pod, label).is_some();
    // Check the outermost controller first, because the pods of a TrainJob also have the labels of its JobSet and Jobs.
    if has(KUBEFLOW_JOB) {
        Kind::PyTorchJob
    } else if has(TRAINER_STEP) || (has(SET) && is_of_train_job(pod)) {
        Kind::TrainJob
    } else if has(SET) {
        Kind::JobSet
    } else if has(GROUPS) {
        Kind::LeaderWorkerSet
    } else if has(VOLCANO_JOB) {
        Kind::Volcano
    } else if has(RAY_CLUSTER) {
        Kind::RayJob
    } else if has(JOB) || has(OLD_JOB) {
        Kind::Job
    } else {
        Kind::Pod
    }
}

/// Returns true if the pod belongs to a TrainJob. A TrainJob appears in its pods only as the JobSet of its runtime, so
/// this checks the only other signs: names, and the variables of the torchrun plugin.
fn is_of_train_job(pod: &Value) -> bool {
    let containers = pod["spec"]["containers"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let mut nodes = containers.iter().filter(|container| container["name"] == NODE);
    nodes.any(|node| label_of(pod, SET_JOB) == Some(NODE) || entry(node, "PET_NNODES").is_some())
}

fn label_of<'a>(pod: &'a Value, label: &str) -> Option<&'a str> {
    pod["metadata"]["labels"][label]
        .as_str()
        .filter(|text| !text.is_empty())
}

impl Identity {
    /// Returns the identity of a pod before its creation. `trainer` is the pod's training container.
    pub fn of_pod(pod: &Value, trainer: &Value) -> Identity {
        let kind = kind_of(pod);
        let label = |label: &str| label_of(pod, label).unwrap_or("").to_owned();
        let (owner, name) = match kind {
            Kind::PyTorchJob => same(label(KUBEFLOW_JOB)),
            Kind::TrainJob | Kind::JobSet => same(label(SET)),
            // Each group is a separate training job.
            Kind::LeaderWorkerSet => {
                let (set, group) = (label(GROUPS), label(GROUP));
                let name = if group.is_empty() {
                    set.clone()
                } else {
                    format!("{set}-{group}")
                };
                (set, name)
            }
            Kind::Volcano => same(label(VOLCANO_JOB)),
            Kind::RayJob => same(label(RAY_CLUSTER)),
            Kind::Job => same(label_of(pod, JOB).unwrap_or(&label(OLD_JOB)).to_owned()),
            Kind::Pod => same(pod_name(pod)),
        };
        let first = said(trainer).or_else(|| first_of(pod, trainer, kind, &owner, &name));
        let is_alone = first.is_none() && matches!(kind, Kind::Pod);
        Identity {
            kind,
            name,
            owner,
            first,
            is_alone,
            env: Vec::new(),
        }
    }
}

fn same(name: String) -> (String, String) {
    (name.clone(), name)
}

/// Returns the pod's name, or its `generateName` if the API server has not assigned a name yet.
fn pod_name(pod: &Value) -> String {
    let meta = &pod["metadata"];
    let name = meta["name"].as_str().or(meta["generateName"].as_str());
    let name = name.unwrap_or("pod").trim_end_matches('-');
    if name.is_empty() {
        "pod".to_owned()
    } else {
        name.to_owned()
    }
}

/// Returns the rendezvous host from the training container's environment or command.
pub(crate) fn said(trainer: &Value) -> Option<String> {
    let host = |text: &str| {
        let host = text.rsplit_once(':').map_or(text, |(host, _)| host);
        let local = host.is_empty() || host == "localhost" || host.starts_with("127.") || host == "0.0.0.0";
        (!local && !host.contains(':')).then(|| host.to_owned())
    };
    [
        "MASTER_ADDR",
        "PET_MASTER_ADDR",
        "PET_RDZV_ENDPOINT",
        "LWS_LEADER_ADDRESS",
    ]
    .into_iter()
    .find_map(|name| {
        if let Some(text) = literal(trainer, name) {
            return host(text);
        }
        // If the value references other variables or is set at run time, use a reference to the variable itself. This
        // does not work for a rendezvous endpoint, because that also contains a port.
        let entry = entry(trainer, name)?;
        let is_told =
            entry["value"].as_str().is_some_and(|text| !text.is_empty()) || entry["valueFrom"].is_object();
        (is_told && name != "PET_RDZV_ENDPOINT").then(|| format!("$({name})"))
    })
    // Any other text in a script is not a host name, so it is filtered out.
    .or_else(|| host(meeting(trainer)?).filter(|host| is_name(&host.to_lowercase())))
}

/// Returns the first pod's host, by the naming scheme of the pod's operator. [`crate::manifest`] gives the same result
/// where the host can be known (a PyTorchJob's pod cannot see that the job has no master). A JobSet's replicated jobs
/// do not necessarily train together. The first one may only download data for the next, and the pods of the first do
/// not know the name of the next.
fn first_of(pod: &Value, trainer: &Value, kind: Kind, owner: &str, name: &str) -> Option<String> {
    let subdomain = pod["spec"]["subdomain"].as_str().filter(|name| !name.is_empty());
    match kind {
        Kind::PyTorchJob => {
            // A job without a master is elastic and sets its rendezvous endpoint.
            let replica = label_of(pod, KUBEFLOW_TYPE)?.to_lowercase();
            let is_known = matches!(replica.as_str(), "master" | "worker");
            is_known.then(|| format!("{owner}-master-0"))
        }
        Kind::TrainJob | Kind::JobSet => {
            let coordinator = pod["metadata"]["annotations"][COORDINATOR]
                .as_str()
                .or(label_of(pod, COORDINATOR));
            coordinator.map(str::to_owned).or_else(|| {
                let job = label_of(pod, SET_JOB)?;
                Some(format!("{owner}-{job}-0-0.{}", subdomain.unwrap_or(owner)))
            })
        }
        // The leader's pod is named after the group.
        Kind::LeaderWorkerSet => Some(format!("{name}.{}", subdomain.unwrap_or(owner))),
        Kind::Volcano => {
            let tasks = volcano_tasks(trainer);
            let master = tasks.iter().find(|task| *task == MASTER).or(tasks.first());
            let task = master
                .map(String::as_str)
                .or_else(|| label_of(pod, VOLCANO_TASK))?;
            Some(format!("{owner}-{task}-0.{}", subdomain?))
        }
        Kind::RayJob => Some(format!("{owner}-head-svc")),
        // Pods of a Job have DNS names only in indexed mode with a user-provided headless service.
        Kind::Job => {
            pod["spec"]["hostname"].as_str()?;
            Some(format!("{owner}-0.{}", subdomain?))
        }
        Kind::Pod => None,
    }
}

/// The default master task of Volcano's PyTorch plugin.
pub(crate) const MASTER: &str = "master";

/// Returns the names of all tasks of a Volcano job, in order. The svc plugin sets VC_TASK_HOSTS in each pod for each
/// task (pkg/controllers/job/plugins/distributed-framework, svc). Task names are DNS labels, so the variable names can
/// be converted back to task names.
fn volcano_tasks(trainer: &Value) -> Vec<String> {
    let env = trainer["env"].as_array().into_iter().flatten();
    let task = |entry: &Value| {
        let name = entry["name"]
            .as_str()?
            .strip_prefix("VC_")?
            .strip_suffix("_HOSTS")?;
        Some(name.to_lowercase().replace('_', "-"))
    };
    env.filter_map(task).collect()
}

/// Returns a variable that is set from one of the pod's labels.
pub(crate) fn label_variable(name: &str, label: &str) -> Value {
    json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": format!("metadata.labels['{label}']") } } })
}

/// Placeholder in a template for the name of an object that does not exist yet.
pub(crate) const OBJECT: &str = "$(PACELINE_OBJECT)";

/// Returns the label that holds the name of a pod's owning object. Returns `None` if there is no such label, or if the
/// template uses that label anyway.
pub(crate) fn object_label(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::PyTorchJob => Some(KUBEFLOW_JOB),
        Kind::JobSet => Some(SET),
        Kind::LeaderWorkerSet => Some(GROUPS),
        Kind::Volcano => Some(VOLCANO_JOB),
        Kind::Job => Some(JOB),
        Kind::TrainJob | Kind::RayJob | Kind::Pod => None,
    }
}

/// Identity for a LeaderWorkerSet's template.
pub(crate) fn of_groups(name: &str, subdomain_per_group: bool) -> Identity {
    let group = "$(PACELINE_GROUP)";
    let host = format!("{name}-{group}");
    let domain = if subdomain_per_group {
        host.clone()
    } else {
        name.to_owned()
    };
    Identity {
        kind: Kind::LeaderWorkerSet,
        name: host.clone(),
        owner: name.to_owned(),
        first: Some(format!("{host}.{domain}")),
        is_alone: false,
        env: vec![label_variable("PACELINE_GROUP", GROUP)],
    }
}

/// Identity for a cluster whose name KubeRay generates when it creates the pods.
pub(crate) fn of_ray(name: &str) -> Identity {
    let cluster = "$(PACELINE_RAY_CLUSTER)";
    Identity {
        kind: Kind::RayJob,
        name: cluster.to_owned(),
        owner: name.to_owned(),
        first: Some(format!("{cluster}-head-svc")),
        is_alone: false,
        env: vec![label_variable("PACELINE_RAY_CLUSTER", RAY_CLUSTER)],
    }
}

/// Returns the identity for a runtime from which the JobSet of a TrainJob is created later. `job` is the replicated job
/// that trains.
pub(crate) fn of_runtime(name: &str, job: &str) -> Identity {
    let set = "$(PACELINE_JOBSET)";
    Identity {
        kind: Kind::TrainJob,
        name: set.to_owned(),
        owner: name.to_owned(),
        first: Some(format!("{set}-{job}-0-0.{set}")),
        is_alone: false,
        env: vec![label_variable("PACELINE_JOBSET", SET)],
    }
}

#[cfg(test)]
#[path = "identity_tests.rs"]
mod tests;
