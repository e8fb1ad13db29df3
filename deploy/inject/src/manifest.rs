//! Finds the pod templates in a job's manifest, and the job to which each template belongs.

use serde_json::Value;

use crate::identity::{self, Identity, Kind};
use crate::pod::trainer;

/// A pod template in a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// JSON pointer to the template.
    pub path: String,
    /// The job of the template. The rendezvous address in the container's own environment takes precedence over the one
    /// here.
    pub identity: Identity,
}

/// The result for one document of a manifest. It is empty if the document is not a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The document's pod templates.
    pub templates: Vec<Template>,
    /// Reasons why jobs in this document cannot be injected.
    pub cannot: Vec<String>,
}

impl Found {
    fn cannot(why: impl Into<String>) -> Found {
        Found {
            cannot: vec![why.into()],
            ..Found::default()
        }
    }
}

/// Finds the templates in one document.
pub fn templates(document: &Value) -> Found {
    let (api, kind) = (text(&document["apiVersion"]), text(&document["kind"]));
    let group = api.split('/').next().unwrap_or("");
    let spec = &document["spec"];
    let owner = object_name(document);
    let is_made_up = is_made_up(document);
    let name = if is_made_up {
        identity::OBJECT.to_owned()
    } else {
        owner.clone()
    };
    let found = match (group, kind) {
        ("v1", "List") => return of_list(document),
        ("v1", "Pod") => vec![one(String::new(), Kind::Pod, &owner, None, true)],
        ("batch", "Job") => vec![of_job(spec, "/spec/template", &name)],
        ("batch", "CronJob") => {
            let job = &spec["jobTemplate"]["spec"];
            vec![of_job(job, "/spec/jobTemplate/spec/template", &name)]
        }
        ("kubeflow.org", "PyTorchJob") => of_pytorch(spec, &name),
        ("jobset.x-k8s.io", "JobSet") => of_set(spec, "/spec/replicatedJobs", &name),
        ("trainer.kubeflow.org", "TrainingRuntime" | "ClusterTrainingRuntime") => of_runtime(spec, &owner),
        ("trainer.kubeflow.org", "TrainJob") => {
            return Found::cannot(
                "a TrainJob has no pod template of its own: inject the TrainingRuntime that it names, or let the webhook do it",
            );
        }
        ("leaderworkerset.x-k8s.io", "LeaderWorkerSet") => of_groups(spec, &name),
        ("batch.volcano.sh", "Job") => of_volcano(spec, &name),
        ("ray.io", "RayJob") => of_ray(&spec["rayClusterSpec"], "/spec/rayClusterSpec", &owner),
        ("ray.io", "RayCluster") => of_ray(spec, "/spec", &owner),
        _ => return Found::default(),
    };
    let is_there = |template: &Template| {
        document
            .pointer(&template.path)
            .is_some_and(|template| template["spec"].is_object())
    };
    let mut found: Vec<Template> = found.into_iter().filter(is_there).collect();
    if is_made_up {
        found.iter_mut().for_each(|template| template.follow(&owner));
    }
    if found.is_empty() {
        return Found::cannot(format!("this {kind} has no pod template"));
    }
    Found {
        templates: found,
        ..Found::default()
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("")
}

/// Returns true if the name of the pods' owning object is not known yet.
fn is_made_up(document: &Value) -> bool {
    let meta = &document["metadata"];
    document["kind"] == "CronJob" || (meta["name"].is_null() && meta["generateName"].is_string())
}

/// Returns the object's name, or its prefix if the name will be generated.
fn object_name(document: &Value) -> String {
    let meta = &document["metadata"];
    let name = meta["name"]
        .as_str()
        .or(meta["generateName"].as_str())
        .unwrap_or("job");
    name.trim_end_matches('-').to_owned()
}

fn one(path: String, kind: Kind, name: &str, first: Option<String>, is_alone: bool) -> Template {
    let identity = Identity {
        kind,
        name: name.to_owned(),
        owner: name.to_owned(),
        first,
        is_alone,
        env: Vec::new(),
    };
    Template { path, identity }
}

fn of_list(document: &Value) -> Found {
    let items = document["items"].as_array().map_or(&[][..], Vec::as_slice);
    let mut all = Found::default();
    for (at, item) in items.iter().enumerate() {
        let found = templates(item);
        all.templates
            .extend(found.templates.into_iter().map(|template| Template {
                path: format!("/items/{at}{}", template.path),
                ..template
            }));
        let name = text(&item["metadata"]["name"]);
        let why = found.cannot.into_iter();
        all.cannot
            .extend(why.map(|why| format!("/items/{at} {name}: {why}")));
    }
    all
}

fn of_job(spec: &Value, path: &str, name: &str) -> Template {
    let count = |key: &str| spec[key].as_u64();
    let pods = count("completions").or(count("parallelism")).unwrap_or(1);
    let subdomain = spec["template"]["spec"]["subdomain"].as_str();
    // Only indexed pods have stable DNS names.
    let has_names = pods > 1 && spec["completionMode"] == "Indexed";
    let first = subdomain
        .filter(|_| has_names)
        .map(|domain| format!("{name}-0.{domain}"));
    one(path.to_owned(), Kind::Job, name, first, pods <= 1)
}

fn of_pytorch(spec: &Value, name: &str) -> Vec<Template> {
    let replicas = &spec["pytorchReplicaSpecs"];
    let first = match replicas["Master"].is_object() {
        true => format!("{name}-master-0"),
        false => format!("{name}-worker-0"),
    };
    let workers = replicas["Worker"]["replicas"].as_u64().unwrap_or(1);
    let is_alone = match (replicas["Master"].is_object(), replicas["Worker"].is_object()) {
        (true, true) => workers == 0,
        (true, false) => true,
        _ => workers <= 1,
    };
    let path = |role: &str| format!("/spec/pytorchReplicaSpecs/{role}/template");
    ["Master", "Worker"]
        .into_iter()
        .map(|role| one(path(role), Kind::PyTorchJob, name, Some(first.clone()), is_alone))
        .collect()
}

fn of_set(spec: &Value, path: &str, name: &str) -> Vec<Template> {
    let jobs = spec["replicatedJobs"].as_array().map_or(&[][..], Vec::as_slice);
    let domain = spec["network"]["subdomain"].as_str().unwrap_or(name);
    let leader = &spec["coordinator"];
    let leader = leader["replicatedJob"].as_str().map(|job| {
        let index = |key: &str| leader[key].as_u64().unwrap_or(0);
        format!(
            "{name}-{job}-{}-{}.{domain}",
            index("jobIndex"),
            index("podIndex")
        )
    });
    let first = |job: &Value| {
        leader
            .clone()
            .or_else(|| Some(format!("{name}-{}-0-0.{domain}", job["name"].as_str()?)))
    };
    let template = |at: usize| format!("{path}/{at}/template/spec/template");
    // These replicated jobs do not necessarily train together, because the first may only download data for the next.
    jobs.iter()
        .enumerate()
        .map(|(at, job)| one(template(at), Kind::JobSet, name, first(job), false))
        .collect()
}

fn of_runtime(spec: &Value, name: &str) -> Vec<Template> {
    let jobs = &spec["template"]["spec"]["replicatedJobs"];
    let jobs = jobs.as_array().map_or(&[][..], Vec::as_slice);
    let mut all = Vec::new();
    for (at, job) in jobs.iter().enumerate() {
        let template = &job["template"]["spec"]["template"];
        let containers = template["spec"]["containers"].as_array();
        // Only the container that trains is named `node`. Replicated jobs that load data and models use other container
        // names.
        if containers.is_some_and(|all| all.iter().any(|container| container["name"] == "node")) {
            all.push(Template {
                path: format!("/spec/template/spec/replicatedJobs/{at}/template/spec/template"),
                identity: identity::of_runtime(name, text(&job["name"])),
            });
        }
    }
    all
}

fn of_groups(spec: &Value, name: &str) -> Vec<Template> {
    let per_group = spec["networkConfig"]["subdomainPolicy"] == "UniquePerReplica";
    ["leaderTemplate", "workerTemplate"]
        .into_iter()
        .map(|role| Template {
            path: format!("/spec/leaderWorkerTemplate/{role}"),
            identity: identity::of_groups(name, per_group),
        })
        .collect()
}

fn of_volcano(spec: &Value, name: &str) -> Vec<Template> {
    let tasks = spec["tasks"].as_array().map_or(&[][..], Vec::as_slice);
    let task_name = |at: usize| match tasks[at]["name"].as_str() {
        Some(name) => name.to_owned(),
        None => format!("default{at}"),
    };
    let plugins = &spec["plugins"];
    let said = plugins["pytorch"].as_array().into_iter().flatten();
    let mut said = said.filter_map(|word| word.as_str()?.trim_start_matches('-').strip_prefix("master="));
    let master = said.next_back().unwrap_or(identity::MASTER);
    let master = (0..tasks.len()).find(|at| task_name(*at) == master).unwrap_or(0);
    let pods: u64 = tasks
        .iter()
        .map(|task| task["replicas"].as_u64().unwrap_or(1))
        .sum();
    // The svc plugin gives pods their DNS names. The launcher plugins enable it, so they are checked too.
    let has_names = ["svc", "pytorch", "mpi", "tensorflow"]
        .iter()
        .any(|plugin| !plugins[*plugin].is_null());
    let first = has_names && !tasks.is_empty();
    let first = first.then(|| format!("{name}-{}-0.{name}", task_name(master)));
    (0..tasks.len())
        .map(|at| {
            let path = format!("/spec/tasks/{at}/template");
            one(path, Kind::Volcano, name, first.clone(), pods <= 1)
        })
        .collect()
}

fn of_ray(cluster: &Value, path: &str, name: &str) -> Vec<Template> {
    let workers = cluster["workerGroupSpecs"].as_array().map_or(0, Vec::len);
    let groups = (0..workers).map(|at| format!("{path}/workerGroupSpecs/{at}/template"));
    std::iter::once(format!("{path}/headGroupSpec/template"))
        .chain(groups)
        .map(|path| Template {
            path,
            identity: identity::of_ray(name),
        })
        .collect()
}

impl Template {
    /// Only the pods know the job's final name, from their label. The Secret is therefore named after the name in the
    /// manifest.
    fn follow(&mut self, owner: &str) {
        if let Some(label) = identity::object_label(self.identity.kind) {
            owner.clone_into(&mut self.identity.owner);
            let variable = identity::label_variable("PACELINE_OBJECT", label);
            self.identity.env.insert(0, variable);
        }
    }

    /// Returns the job's identity, with the rendezvous host from the template's own container.
    pub fn identity(&self, template: &Value, container: Option<&str>) -> Identity {
        let mut identity = self.identity.clone();
        let trainer = trainer::find(template, identity.kind, container).ok();
        let said = trainer.and_then(|at| identity::said(&template["spec"]["containers"][at]));
        if let Some(host) = said {
            identity.first = Some(host);
            identity.is_alone = false;
        } else if identity.is_alone {
            identity.first = None;
        }
        identity
    }
}

#[cfg(test)]
#[path = "manifest_tests.rs"]
mod tests;
