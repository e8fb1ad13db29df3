use serde_json::json;

use super::*;

fn check(document: Value, wanted: &[(&str, &str, Option<&str>)]) {
    let found = templates(&document);
    assert_eq!(found.cannot, Vec::<String>::new(), "{document}");
    let found: Vec<(String, String, Option<String>)> = found
        .templates
        .iter()
        .map(|template| {
            let identity = template.identity(document.pointer(&template.path).unwrap(), None);
            (template.path.clone(), identity.name, identity.first)
        })
        .collect();
    let found: Vec<(&str, &str, Option<&str>)> = found
        .iter()
        .map(|(path, name, first)| (path.as_str(), name.as_str(), first.as_deref()))
        .collect();
    assert_eq!(found, wanted);
}

fn template() -> Value {
    json!({ "spec": { "containers": [{ "name": "node", "image": "i" }] } })
}

#[test]
fn jobs_and_pods() {
    let job = |more: Value| {
        let mut job = json!({ "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": "j" }, "spec": { "template": template() } });
        job["spec"]
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        job
    };
    check(job(json!({})), &[("/spec/template", "j", None)]);
    check(job(json!({ "completions": 2 })), &[("/spec/template", "j", None)]);
    let mut named = job(json!({ "completions": 2, "completionMode": "Indexed" }));
    named["spec"]["template"]["spec"]["subdomain"] = json!("net");
    check(named.clone(), &[("/spec/template", "j", Some("j-0.net"))]);
    named["spec"]["template"]["spec"]["containers"][0]["env"] =
        json!([{ "name": "MASTER_ADDR", "value": "other-0.net" }]);
    check(named.clone(), &[("/spec/template", "j", Some("other-0.net"))]);
    let cron = json!({ "apiVersion": "batch/v1", "kind": "CronJob", "metadata": { "name": "c" },
        "spec": { "jobTemplate": { "spec": named["spec"] } } });
    let path = "/spec/jobTemplate/spec/template";
    check(cron.clone(), &[(path, "$(PACELINE_OBJECT)", Some("other-0.net"))]);
    let mut own = cron;
    own["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["env"] = json!(null);
    // A CronJob's Jobs have names like c-28000000.
    let first = Some("$(PACELINE_OBJECT)-0.net");
    check(own, &[(path, "$(PACELINE_OBJECT)", first)]);
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "generateName": "p-" }, "spec": template()["spec"] });
    check(pod.clone(), &[("", "p", None)]);
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": [{ "kind": "Service", "apiVersion": "v1" }, pod] });
    check(list, &[("/items/1", "p", None)]);
}

/// The name comes from the pods' label, through a variable. The Secret is created before the name is known.
#[test]
fn one_whose_name_is_made_up_later() {
    let made_up = |api: &str, kind: &str, spec: Value| {
        let meta = json!({ "generateName": "run-" });
        templates(&json!({ "apiVersion": api, "kind": kind, "metadata": meta, "spec": spec }))
    };
    let check = |found: Found, label: &str, first: &str| {
        let identity = &found.templates[0].identity;
        assert_eq!(identity.first.as_deref(), Some(first));
        assert_eq!(identity.owner, "run");
        let path = &identity.env[0]["valueFrom"]["fieldRef"]["fieldPath"];
        assert_eq!(path, &format!("metadata.labels['{label}']"));
        assert_eq!(identity.env[0]["name"], "PACELINE_OBJECT");
    };
    let mut pod = template();
    pod["spec"]["subdomain"] = json!("net");
    check(
        made_up(
            "batch/v1",
            "Job",
            json!({ "completions": 2, "completionMode": "Indexed", "template": pod }),
        ),
        "batch.kubernetes.io/job-name",
        "$(PACELINE_OBJECT)-0.net",
    );
    check(
        made_up(
            "kubeflow.org/v1",
            "PyTorchJob",
            json!({ "pytorchReplicaSpecs": { "Master": { "template": template() }, "Worker": { "template": template() } } }),
        ),
        "training.kubeflow.org/job-name",
        "$(PACELINE_OBJECT)-master-0",
    );
    check(
        made_up(
            "jobset.x-k8s.io/v1alpha2",
            "JobSet",
            json!({ "replicatedJobs": [{ "name": "w", "template": { "spec": { "template": template() } } }] }),
        ),
        "jobset.sigs.k8s.io/jobset-name",
        "$(PACELINE_OBJECT)-w-0-0.$(PACELINE_OBJECT)",
    );
    check(
        made_up(
            "leaderworkerset.x-k8s.io/v1",
            "LeaderWorkerSet",
            json!({ "leaderWorkerTemplate": { "workerTemplate": template() } }),
        ),
        "leaderworkerset.sigs.k8s.io/name",
        "$(PACELINE_OBJECT)-$(PACELINE_GROUP).$(PACELINE_OBJECT)",
    );
}

#[test]
fn operators_of_training() {
    let torch = |replicas: Value| {
        json!({ "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": { "name": "bert" },
            "spec": { "pytorchReplicaSpecs": replicas } })
    };
    let (master, worker) = (
        "/spec/pytorchReplicaSpecs/Master/template",
        "/spec/pytorchReplicaSpecs/Worker/template",
    );
    let first = Some("bert-master-0");
    check(
        torch(
            json!({ "Master": { "template": template() }, "Worker": { "replicas": 3, "template": template() } }),
        ),
        &[(master, "bert", first), (worker, "bert", first)],
    );
    check(
        torch(json!({ "Master": { "template": template() } })),
        &[(master, "bert", None)],
    );
    check(
        torch(json!({ "Worker": { "replicas": 3, "template": template() } })),
        &[(worker, "bert", Some("bert-worker-0"))],
    );
    let job = |name: &str| json!({ "name": name, "template": { "spec": { "template": template() } } });
    let mut set = json!({ "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": { "name": "js" },
        "spec": { "replicatedJobs": [job("lead"), job("w")] } });
    let paths = [
        "/spec/replicatedJobs/0/template/spec/template",
        "/spec/replicatedJobs/1/template/spec/template",
    ];
    let each = |one, other| [(paths[0], "js", Some(one)), (paths[1], "js", Some(other))];
    let both = |first| each(first, first);
    check(set.clone(), &each("js-lead-0-0.js", "js-w-0-0.js"));
    set["spec"]["coordinator"] = json!({ "replicatedJob": "w", "podIndex": 1 });
    set["spec"]["network"] = json!({ "subdomain": "net" });
    check(set, &both("js-w-0-1.net"));
    let runtime = json!({ "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "ClusterTrainingRuntime",
        "metadata": { "name": "torch" },
        "spec": { "template": { "spec": { "replicatedJobs": [job("node")] } } } });
    let set = "$(PACELINE_JOBSET)";
    check(
        runtime,
        &[(
            "/spec/template/spec/replicatedJobs/0/template/spec/template",
            set,
            Some("$(PACELINE_JOBSET)-node-0-0.$(PACELINE_JOBSET)"),
        )],
    );
}

#[test]
fn groups_tasks_and_clusters() {
    let mut groups = json!({ "apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": { "name": "lws" },
        "spec": { "leaderWorkerTemplate": { "workerTemplate": template() } } });
    let (path, name) = (
        "/spec/leaderWorkerTemplate/workerTemplate",
        "lws-$(PACELINE_GROUP)",
    );
    check(groups.clone(), &[(path, name, Some("lws-$(PACELINE_GROUP).lws"))]);
    groups["spec"]["networkConfig"] = json!({ "subdomainPolicy": "UniquePerReplica" });
    check(
        groups,
        &[(path, name, Some("lws-$(PACELINE_GROUP).lws-$(PACELINE_GROUP)"))],
    );
    let task = |name: &str| json!({ "name": name, "replicas": 2, "template": template() });
    let mut volcano = json!({ "apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": { "name": "vj" },
        "spec": { "tasks": [task("worker"), task("master")] } });
    let both = |first| {
        [
            ("/spec/tasks/0/template", "vj", first),
            ("/spec/tasks/1/template", "vj", first),
        ]
    };
    check(volcano.clone(), &both(None));
    volcano["spec"]["plugins"] = json!({ "svc": [] });
    check(volcano.clone(), &both(Some("vj-master-0.vj")));
    volcano["spec"]["plugins"] = json!({ "pytorch": ["--master=worker"] });
    check(volcano, &both(Some("vj-worker-0.vj")));
    let ray = json!({ "apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": { "name": "rj" },
        "spec": { "rayClusterSpec": { "headGroupSpec": { "template": template() }, "workerGroupSpecs": [{ "template": template() }] } } });
    let (cluster, head) = (
        "$(PACELINE_RAY_CLUSTER)",
        Some("$(PACELINE_RAY_CLUSTER)-head-svc"),
    );
    check(
        ray,
        &[
            ("/spec/rayClusterSpec/headGroupSpec/template", cluster, head),
            ("/spec/rayClusterSpec/workerGroupSpecs/0/template", cluster, head),
        ],
    );
}

#[test]
fn what_is_no_job_and_what_cannot_be_done() {
    for other in [
        json!({}),
        json!(null),
        json!([1]),
        json!({ "apiVersion": "v1", "kind": "ConfigMap" }),
        json!({ "apiVersion": "apps/v1", "kind": "Deployment" }),
        json!({ "apiVersion": "v1", "kind": "List", "items": [] }),
    ] {
        assert_eq!(templates(&other), Found::default(), "{other}");
    }
    let says = |document: Value| {
        let found = templates(&document);
        assert!(found.templates.is_empty() && found.cannot.len() == 1, "{found:?}");
        found.cannot.concat()
    };
    let train = json!({ "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": { "name": "t" }, "spec": {} });
    assert!(says(train.clone()).contains("TrainingRuntime"));
    let list = |items: Value| json!({ "apiVersion": "v1", "kind": "List", "items": items });
    assert!(says(list(json!([train]))).starts_with("/items/0 t: a TrainJob"));
    // The remaining documents are injected nevertheless.
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "spec": template()["spec"] });
    let found = templates(&list(json!([pod, train, pod])));
    let paths: Vec<&str> = found
        .templates
        .iter()
        .map(|template| template.path.as_str())
        .collect();
    assert_eq!((paths, found.cannot.len()), (vec!["/items/0", "/items/2"], 1));
    for empty in [
        json!({}),
        json!(null),
        json!({ "template": 1 }),
        json!({ "template": { "spec": [] } }),
    ] {
        let job = json!({ "apiVersion": "batch/v1", "kind": "Job", "spec": empty });
        assert!(says(job).contains("no pod template"));
    }
}

/// A job has one aggregator regardless of how Paceline is injected. The pod that the operator creates and the template
/// of that pod must therefore yield the same first pod.
#[test]
fn the_webhook_finds_the_same_first_pod() {
    let check = |document: Value, pods: &[(&str, Value)]| {
        for (template, (place, pod)) in templates(&document).templates.iter().zip(pods) {
            let trainer = document.pointer(&template.path).unwrap()["spec"]["containers"][0].clone();
            let mut made = trainer.clone();
            if let Some(env) = pod["env"].as_array() {
                made["env"] = json!(env);
            }
            let told = Identity::of_pod(pod, &made);
            let read = template.identity(document.pointer(&template.path).unwrap(), None);
            assert_eq!((told.first, told.name), (read.first.clone(), read.name), "{pod}");
            assert_eq!(read.first.as_deref(), Some(*place));
        }
    };
    let job = |name: &str| json!({ "name": name, "template": { "spec": { "template": template() } } });
    let mut set = json!({ "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": { "name": "js" },
        "spec": { "replicatedJobs": [job("fetch"), job("w")] } });
    let pod = |job: &str| {
        json!({ "metadata": { "labels": { "jobset.sigs.k8s.io/jobset-name": "js",
        "jobset.sigs.k8s.io/replicatedjob-name": job } }, "spec": { "subdomain": "js" } })
    };
    check(
        set.clone(),
        &[("js-fetch-0-0.js", pod("fetch")), ("js-w-0-0.js", pod("w"))],
    );
    for at in 0..2 {
        let container =
            &mut set["spec"]["replicatedJobs"][at]["template"]["spec"]["template"]["spec"]["containers"][0];
        container["command"] = json!(["torchrun", "--rdzv-endpoint=js-w-0-0.js:29500", "t.py"]);
    }
    check(set, &[("js-w-0-0.js", pod("fetch")), ("js-w-0-0.js", pod("w"))]);

    let task = |name: &str| json!({ "name": name, "template": template() });
    let volcano = |one: &str, other: &str| {
        json!({ "apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job",
        "metadata": { "name": "vj" }, "spec": { "plugins": { "svc": [] }, "tasks": [task(one), task(other)] } })
    };
    let pod = |task: &str, tasks: [&str; 2]| {
        let env = tasks.map(|task| {
            let key = format!("VC_{}_HOSTS", task.to_uppercase().replace('-', "_"));
            json!({ "name": key, "valueFrom": { "configMapKeyRef": { "name": "vj-svc", "key": key } } })
        });
        json!({ "metadata": { "labels": { "volcano.sh/job-name": "vj", "volcano.sh/task-spec": task } },
            "spec": { "subdomain": "vj" }, "env": env })
    };
    for (tasks, first) in [
        (["gpu-a", "gpu-b"], "vj-gpu-a-0.vj"),
        (["worker", "master"], "vj-master-0.vj"),
    ] {
        let [one, other] = tasks;
        check(
            volcano(one, other),
            &[(first, pod(one, tasks)), (first, pod(other, tasks))],
        );
    }
}
