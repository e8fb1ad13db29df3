use serde_json::json;

use super::*;

fn check(pod: Value, env: Value, kind: Kind, name: &str, first: Option<&str>) {
    let trainer = json!({ "name": "t", "env": env });
    let found = Identity::of_pod(&pod, &trainer);
    assert_eq!(found.kind, kind, "{pod}");
    assert_eq!(found.name, name, "{pod}");
    assert_eq!(found.first.as_deref(), first, "{pod} {trainer}");
}

fn labelled(labels: Value, subdomain: Option<&str>) -> Value {
    json!({ "metadata": { "labels": labels }, "spec": { "subdomain": subdomain } })
}

#[test]
fn each_operator_has_its_own_words() {
    let none = json!([]);
    let torch = |replica: &str| {
        labelled(
            json!({ "training.kubeflow.org/job-name": "bert", "training.kubeflow.org/replica-type": replica }),
            None,
        )
    };
    for replica in ["master", "worker", "Worker"] {
        // Some operator versions set localhost on the master.
        let local = json!([{ "name": "MASTER_ADDR", "value": "localhost" }]);
        check(
            torch(replica),
            local,
            Kind::PyTorchJob,
            "bert",
            Some("bert-master-0"),
        );
    }
    let elastic = json!([{ "name": "PET_RDZV_ENDPOINT", "value": "bert-worker-0:29400" }]);
    check(
        torch("worker"),
        elastic,
        Kind::PyTorchJob,
        "bert",
        Some("bert-worker-0"),
    );

    let set = json!({ "jobset.sigs.k8s.io/jobset-name": "js", "jobset.sigs.k8s.io/replicatedjob-name": "w", "batch.kubernetes.io/job-name": "js-w-0" });
    check(
        labelled(set.clone(), None),
        none.clone(),
        Kind::JobSet,
        "js",
        Some("js-w-0-0.js"),
    );
    check(
        labelled(set.clone(), Some("net")),
        none.clone(),
        Kind::JobSet,
        "js",
        Some("js-w-0-0.net"),
    );
    let mut led = labelled(set.clone(), None);
    led["metadata"]["annotations"] = json!({ "jobset.sigs.k8s.io/coordinator": "js-lead-0-0.js" });
    check(led, none.clone(), Kind::JobSet, "js", Some("js-lead-0-0.js"));
}

/// Tests pods as Kubeflow's trainer creates them through JobSet. Only the Job has the step label. The pod has JobSet's
/// labels and the plugin's variables.
#[test]
fn pods_of_a_train_job() {
    let index = "metadata.annotations['batch.kubernetes.io/job-completion-index']";
    let pet = json!([
        { "name": "PET_NNODES", "value": "2" },
        { "name": "PET_NPROC_PER_NODE", "value": "auto" },
        { "name": "PET_NODE_RANK", "valueFrom": { "fieldRef": { "fieldPath": index } } },
        { "name": "PET_MASTER_ADDR", "value": "tj-node-0-0.tj" },
        { "name": "PET_MASTER_PORT", "value": "29500" },
    ]);
    let pod = |job: &str, env: Value| {
        let set = json!({ "jobset.sigs.k8s.io/jobset-name": "tj", "jobset.sigs.k8s.io/replicatedjob-name": job,
            "batch.kubernetes.io/job-name": format!("tj-{job}-0") });
        let mut pod = labelled(set, Some("tj"));
        pod["spec"]["containers"] = json!([{ "name": "log" }, { "name": "node", "env": env }]);
        pod
    };
    let first = Some("tj-node-0-0.tj");
    check(pod("node", pet.clone()), pet.clone(), Kind::TrainJob, "tj", first);
    // torchtune and other launchers do not get a rendezvous address. A runtime can use another job name.
    check(pod("node", json!([])), json!([]), Kind::TrainJob, "tj", first);
    check(
        pod("trainer", pet.clone()),
        pet.clone(),
        Kind::TrainJob,
        "tj",
        first,
    );
    let known = crate::pod::trainer::find(&pod("node", pet.clone()), Kind::TrainJob, None);
    assert_eq!(known, Ok(1));
    let mut own = pod("workers", json!([]));
    check(
        own.clone(),
        json!([]),
        Kind::JobSet,
        "tj",
        Some("tj-workers-0-0.tj"),
    );
    own["metadata"]["labels"]["trainer.kubeflow.org/trainjob-ancestor-step"] = json!("trainer");
    check(own, json!([]), Kind::TrainJob, "tj", Some("tj-workers-0-0.tj"));
}

#[test]
fn groups_tasks_clusters_and_jobs() {
    let none = json!([]);
    let group =
        json!({ "leaderworkerset.sigs.k8s.io/name": "lws", "leaderworkerset.sigs.k8s.io/group-index": "3" });
    check(
        labelled(group.clone(), None),
        none.clone(),
        Kind::LeaderWorkerSet,
        "lws-3",
        Some("lws-3.lws"),
    );
    let led = json!([{ "name": "LWS_LEADER_ADDRESS", "value": "lws-3.lws.ns" }]);
    check(
        labelled(group, None),
        led,
        Kind::LeaderWorkerSet,
        "lws-3",
        Some("lws-3.lws.ns"),
    );

    let volcano = json!({ "volcano.sh/job-name": "vj", "volcano.sh/task-spec": "worker" });
    check(
        labelled(volcano.clone(), None),
        none.clone(),
        Kind::Volcano,
        "vj",
        None,
    );
    check(
        labelled(volcano.clone(), Some("vj")),
        none.clone(),
        Kind::Volcano,
        "vj",
        Some("vj-worker-0.vj"),
    );
    let master = json!([{ "name": "MASTER_ADDR", "value": "vj-master-0.vj" }]);
    check(
        labelled(volcano, None),
        master,
        Kind::Volcano,
        "vj",
        Some("vj-master-0.vj"),
    );

    check(
        labelled(json!({ "ray.io/cluster": "rc" }), None),
        none.clone(),
        Kind::RayJob,
        "rc",
        Some("rc-head-svc"),
    );
    check(
        labelled(json!({ "job-name": "j" }), None),
        none.clone(),
        Kind::Job,
        "j",
        None,
    );
    check(
        labelled(json!({ "batch.kubernetes.io/job-name": "j" }), Some("s")),
        none.clone(),
        Kind::Job,
        "j",
        None,
    );
    let mut counted = labelled(json!({ "batch.kubernetes.io/job-name": "j" }), Some("s"));
    counted["spec"]["hostname"] = json!("j-1");
    check(counted, none, Kind::Job, "j", Some("j-0.s"));
}

#[test]
fn a_variable_that_is_told_later_stays_one() {
    let env =
        json!([{ "name": "MASTER_ADDR", "valueFrom": { "configMapKeyRef": { "name": "c", "key": "k" } } }]);
    check(
        json!({ "metadata": { "name": "p" } }),
        env,
        Kind::Pod,
        "p",
        Some("$(MASTER_ADDR)"),
    );
    let env = json!([{ "name": "A", "value": "x" }, { "name": "MASTER_ADDR", "value": "$(A)-0.s" }]);
    check(
        json!({ "metadata": { "name": "p" } }),
        env,
        Kind::Pod,
        "p",
        Some("$(MASTER_ADDR)"),
    );
}

#[test]
fn pods_of_nobody() {
    let none = json!([]);
    check(
        json!({ "metadata": { "generateName": "run-" } }),
        none.clone(),
        Kind::Pod,
        "run",
        None,
    );
    for bare in [
        json!({}),
        json!(null),
        json!({ "metadata": { "generateName": "-" } }),
    ] {
        check(bare, none.clone(), Kind::Pod, "pod", None);
    }
}
