use super::*;

#[test]
fn pods_that_have_next_to_nothing() {
    for pod in [
        json!({ "spec": { "containers": [{ "name": "a" }] } }),
        json!({ "metadata": null, "spec": { "containers": [{ "name": "a", "env": null, "volumeMounts": null }], "volumes": null, "initContainers": null } }),
        json!({ "metadata": { "labels": null, "annotations": null }, "spec": { "containers": [{}] } }),
        json!({ "metadata": "odd", "spec": { "containers": [{ "name": "a", "command": "no list" }] } }),
    ] {
        let sidecar = injected(&pod, Mode::Sidecar);
        assert!(
            !named(&sidecar.pod, "initContainers", "paceline").is_null(),
            "{pod}"
        );
        assert_eq!(injected(&pod, Mode::Wrap).mode, Mode::Sidecar);
    }
}

#[test]
fn what_is_left_alone_and_why() {
    let check = |change: &dyn Fn(&mut Value), code: &str| {
        let mut pod = torch_pod();
        change(&mut pod);
        let refused = inject(&pod, &settings(Mode::Sidecar), None).unwrap_err();
        assert_eq!(refused.code, code, "{}", refused.says);
    };
    check(&|pod| pod["spec"] = json!([]), "no-pod");
    check(&|pod| pod["spec"]["containers"] = json!([]), "no-trainer");
    check(
        &|pod| pod["metadata"]["labels"][crate::INJECT] = json!("false"),
        "opted-out",
    );
    for word in ["Wrap", "True", ""] {
        check(
            &|pod| pod["metadata"]["annotations"][crate::INJECT] = json!(word),
            "inject-word",
        );
    }
    check(
        &|pod| pod["metadata"]["annotations"]["paceline.dev/container"] = json!("x"),
        "no-trainer",
    );
    check(&|pod| pod["spec"]["os"] = json!({ "name": "windows" }), "windows");
    check(
        &|pod| pod["metadata"]["annotations"]["kubernetes.io/config.mirror"] = json!("f00d"),
        "static-pod",
    );
    check(
        &|pod| pod["spec"]["containers"][0]["name"] = json!("paceline"),
        "name-taken",
    );
    check(
        &|pod| pod["spec"]["volumes"] = json!([{ "name": "paceline-key", "emptyDir": {} }]),
        "name-taken",
    );
    let mount = json!([{ "name": "mine", "mountPath": "/paceline/" }]);
    check(
        &|pod| pod["spec"]["containers"][1]["volumeMounts"] = mount.clone(),
        "path-taken",
    );
    let own = json!(["/opt/bin/paceline", "run", "--", "torchrun"]);
    check(
        &|pod| pod["spec"]["containers"][1]["command"] = own.clone(),
        "already-run",
    );
    for nonsense in [json!(null), json!(7), json!([]), json!({ "spec": 1 })] {
        assert_eq!(
            inject(&nonsense, &settings(Mode::Wrap), None).unwrap_err().code,
            "no-pod"
        );
    }
}

#[test]
fn a_restricted_pod_stays_restricted() {
    let mut pod = torch_pod();
    pod["spec"]["securityContext"] = json!({ "runAsNonRoot": true, "runAsUser": 1000 });
    for mode in [Mode::Sidecar, Mode::Wrap] {
        let done = injected(&pod, mode);
        for container in done.pod["spec"]["initContainers"]
            .as_array()
            .unwrap()
            .iter()
            .skip(1)
        {
            let security = &container["securityContext"];
            assert_eq!(security["allowPrivilegeEscalation"], false);
            assert_eq!(security["capabilities"], json!({ "drop": ["ALL"] }));
            assert_eq!(
                (&security["runAsNonRoot"], &security["runAsUser"]),
                (&json!(true), &json!(null))
            );
            assert_eq!(security["seccompProfile"]["type"], "RuntimeDefault");
            assert_eq!(security["runAsGroup"], json!(null), "the pod's own, if any");
        }
    }
    for root in [
        json!({ "runAsUser": 0 }),
        json!({ "runAsUser": 0, "runAsGroup": 0 }),
    ] {
        pod["spec"]["securityContext"] = root;
        let done = injected(&pod, Mode::Sidecar);
        for name in ["paceline-init", "paceline"] {
            let security = &named(&done.pod, "initContainers", name)["securityContext"];
            let who = (&security["runAsUser"], &security["runAsGroup"]);
            assert_eq!(who, (&json!(65_532), &json!(65_532)), "{name}");
        }
    }
}

#[test]
fn whoever_reads_the_key_can() {
    let check = |pods: Value, own: Value, wrapped: u32| {
        let mut pod = torch_pod();
        pod["spec"]["securityContext"] = pods;
        pod["spec"]["containers"][1]["securityContext"] = own;
        let beside = if wrapped == 0o440 { 0o440 } else { 0o444 };
        for (mode, wanted) in [(Mode::Sidecar, beside), (Mode::Wrap, wrapped)] {
            let done = injected(&pod, mode);
            let key = &named(&done.pod, "volumes", "paceline-key")["secret"];
            assert_eq!(key["defaultMode"], wanted, "{pod}");
        }
    };
    // The container runs as the user that its image defines, which is unknown here.
    check(json!(null), json!(null), 0o444);
    check(
        json!({ "runAsUser": 1000, "runAsGroup": 1000 }),
        json!(null),
        0o444,
    );
    check(json!({ "runAsUser": 0 }), json!(null), 0o400);
    check(json!({ "runAsUser": 1000 }), json!({ "runAsUser": 0 }), 0o400);
    check(json!({ "runAsUser": 0 }), json!({ "runAsUser": 1000 }), 0o444);
    check(json!({ "runAsUser": 1000, "fsGroup": 2000 }), json!(null), 0o440);
}

#[test]
fn a_pod_with_resources_of_its_own_has_room_for_ours() {
    let mut pod = torch_pod();
    let all = json!({ "cpu": "8", "memory": "64Gi" });
    pod["spec"]["resources"] = json!({ "requests": all, "limits": all });
    let done = injected(&pod, Mode::Sidecar);
    let more = json!({ "cpu": "8200m", "memory": "65792Mi" });
    assert_eq!(
        done.pod["spec"]["resources"],
        json!({ "requests": more, "limits": more })
    );
    let sidecar = named(&done.pod, "initContainers", "paceline");
    assert_eq!(sidecar["resources"]["requests"]["memory"], "256Mi");
    assert!(named(&done.pod, "initContainers", "paceline-init")["resources"].is_null());
    // Another webhook removes the sidecar, and injection runs again. The pod's resources still include the sidecar.
    let mut dropped = done.pod.clone();
    dropped["spec"]["initContainers"] = json!([]);
    assert_eq!(
        injected(&dropped, Mode::Sidecar).pod["spec"]["resources"],
        done.pod["spec"]["resources"]
    );
    // In wrap mode no container runs beside the trainer, so the pod's resources stay as they are.
    assert_eq!(
        injected(&pod, Mode::Wrap).pod["spec"]["resources"],
        pod["spec"]["resources"]
    );
}

#[test]
fn ports_gpus_and_the_run_directory() {
    let mut pod = torch_pod();
    let annotations = pod["metadata"]["annotations"].as_object_mut().unwrap();
    for (key, text) in [
        ("metrics", "9810"),
        ("gpu-runtime-class", "nvidia"),
        ("run-claim", "results"),
        ("aggregator-port", "7001"),
        ("cpu", "1"),
        ("log-level", "warning"),
        ("key-secret", "mine"),
        ("job", "big one"),
    ] {
        annotations.insert(format!("paceline.dev/{key}"), json!(text));
    }
    let done = injected(&pod, Mode::Sidecar);
    let sidecar = named(&done.pod, "initContainers", "paceline");
    assert_eq!(sidecar["ports"][0]["containerPort"], 9810);
    assert_eq!(value(sidecar, "PACELINE_HTTP"), "$(PACELINE_POD_IP):9810");
    assert_eq!(value(sidecar, "PACELINE_AGGREGATOR"), "bert-master-0:7001");
    assert_eq!(value(sidecar, "PACELINE_JOB"), "big one");
    assert_eq!(value(sidecar, "NVIDIA_DRIVER_CAPABILITIES"), "utility");
    assert_eq!(sidecar["command"][3], "--quiet");
    assert_eq!(
        sidecar["resources"]["limits"],
        json!({ "cpu": "1", "memory": "256Mi" })
    );
    assert_eq!(done.pod["spec"]["runtimeClassName"], "nvidia");
    let run = named(&done.pod, "volumes", "paceline-run");
    assert_eq!(run["persistentVolumeClaim"]["claimName"], "results");
    assert_eq!(
        named(&done.pod, "volumes", "paceline-key")["secret"]["secretName"],
        "mine"
    );
    // With hostNetwork, a declared port would be reserved on the machine, so none is declared.
    pod["spec"]["hostNetwork"] = json!(true);
    pod["spec"]["runtimeClassName"] = json!("gvisor");
    let done = injected(&pod, Mode::Sidecar);
    assert!(named(&done.pod, "initContainers", "paceline")["ports"].is_null());
    assert_eq!(done.pod["spec"]["runtimeClassName"], "gvisor");
    let codes: Vec<&str> = done.notes.iter().map(|note| note.code).collect();
    assert_eq!(codes, ["key-secret", "runtime-class"]);
}

#[test]
fn the_users_python_path() {
    let path = |env: Value, annotation: Option<&str>| {
        let mut pod = torch_pod();
        pod["spec"]["containers"][1]["env"] = env;
        pod["metadata"]["annotations"]["paceline.dev/image-python-path"] = json!(annotation);
        let done = injected(&pod, Mode::Sidecar);
        let trainer = done.pod["spec"]["containers"][1].clone();
        (value(&trainer, "PYTHONPATH").to_owned(), trainer)
    };
    assert_eq!(path(json!(null), None).0, "/paceline/files");
    assert_eq!(path(json!([]), Some("/opt/lib")).0, "/paceline/files:/opt/lib");
    assert_eq!(
        path(json!([{ "name": "PYTHONPATH", "value": "" }]), None).0,
        "/paceline/files"
    );
    let told = json!({ "configMapKeyRef": { "name": "c", "key": "k" } });
    let (text, trainer) = path(json!([{ "name": "PYTHONPATH", "valueFrom": told }]), None);
    assert_eq!(text, "/paceline/files:$(PACELINE_PYTHONPATH_BEFORE)");
    assert_eq!(
        trainer["env"][0],
        json!({ "name": "PACELINE_PYTHONPATH_BEFORE", "valueFrom": told })
    );
}

#[test]
fn a_job_of_many_pods_whose_first_nobody_knows() {
    let mut pod = torch_pod();
    pod["metadata"]["labels"] = json!({ "batch.kubernetes.io/job-name": "j" });
    pod["spec"]["containers"][1]["env"] = json!(null);
    let done = injected(&pod, Mode::Sidecar);
    assert_eq!(done.notes[0].code, "no-first-pod");
    let sidecar = named(&done.pod, "initContainers", "paceline");
    assert_eq!(value(sidecar, "PACELINE_AGGREGATOR"), "");
    let index = &env(sidecar, "JOB_COMPLETION_INDEX")["valueFrom"]["fieldRef"]["fieldPath"];
    assert_eq!(
        index,
        "metadata.labels['batch.kubernetes.io/job-completion-index']"
    );
    pod["metadata"]["labels"] = json!({});
    assert_eq!(injected(&pod, Mode::Sidecar).notes, []);
}

#[test]
fn names_that_are_too_long_or_odd() {
    assert_eq!(key_secret("bert"), "paceline-bert");
    let long = "x".repeat(300);
    for owner in [
        long.as_str(),
        "UPPER",
        "a_b",
        "$(PACELINE_JOBSET)",
        "",
        "-",
        "ä/ö",
    ] {
        let name = key_secret(owner);
        assert!(
            crate::request::is_name(&name) && name.len() < 80,
            "{owner}: {name}"
        );
    }
    assert_ne!(key_secret("a_b"), key_secret("a-b"));
    assert_ne!(key_secret(&long), key_secret(&"x".repeat(301)));
    let mut pod = torch_pod();
    pod["metadata"]["labels"]["training.kubeflow.org/job-name"] = json!(long);
    let done = injected(&pod, Mode::Sidecar);
    let secret = named(&done.pod, "volumes", "paceline-key")["secret"]["secretName"].clone();
    assert!(secret.as_str().unwrap().len() < 254);
}

/// A ring file on disk would make trainers wait for I/O. A volume without a limit could use all memory of the machine.
#[test]
fn volumes_have_bounds_and_rings_are_memory() {
    for (mode, files) in [(Mode::Sidecar, "16Mi"), (Mode::Wrap, "512Mi")] {
        let pod = injected(&torch_pod(), mode).pod;
        let volume = |name: &str| named(&pod, "volumes", name)["emptyDir"].clone();
        assert_eq!(volume("paceline-files"), json!({ "sizeLimit": files }));
        assert_eq!(
            volume("paceline-run"),
            json!({}),
            "the journal keeps to its own bound"
        );
        let rings = json!({ "medium": "Memory", "sizeLimit": "64Mi" });
        let wanted = if mode == Mode::Sidecar { rings } else { json!(null) };
        assert_eq!(volume("paceline-rings"), wanted);
    }
}

/// Each injected container has requests and limits, because a quota rejects a container without them and a LimitRange
/// would set its own values. It also has a pull policy under which an image that is present is not pulled again.
#[test]
fn each_container_of_ours_says_what_a_quota_wants_to_know() {
    for (mode, names) in [
        (Mode::Sidecar, &["paceline-init", "paceline"][..]),
        (Mode::Wrap, &["paceline-init"]),
    ] {
        let pod = injected(&torch_pod(), mode).pod;
        for name in names {
            let container = named(&pod, "initContainers", name);
            let amount = json!({ "cpu": "200m", "memory": "256Mi" });
            assert_eq!(
                container["resources"],
                json!({ "requests": amount, "limits": amount })
            );
            assert_eq!(container["imagePullPolicy"], "IfNotPresent");
        }
    }
}
