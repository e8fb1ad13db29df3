use serde_json::json;

use super::*;
use crate::patch::{apply, difference};
use crate::pod::key_secret;

fn settings(mode: Mode) -> Settings {
    Settings {
        image: "paceline:test".to_owned(),
        mode,
        ..Settings::default()
    }
}

/// Injects, and checks two properties of every injection: it is idempotent, and its patch yields the same pod.
fn injected(pod: &Value, mode: Mode) -> Injected {
    let done = inject(pod, &settings(mode), None).unwrap();
    let again = inject(&done.pod, &settings(mode), None).unwrap();
    assert_eq!(again.pod, done.pod, "not idempotent");
    let other = if mode == Mode::Wrap {
        Mode::Sidecar
    } else {
        Mode::Wrap
    };
    let by_others = inject(&done.pod, &settings(other), None).unwrap();
    assert_eq!(by_others.pod, done.pod, "another default changes it");
    let mut patched = pod.clone();
    apply(&mut patched, &difference(pod, &done.pod)).unwrap();
    assert_eq!(patched, done.pod);
    done
}

fn env<'a>(container: &'a Value, name: &str) -> &'a Value {
    trainer::entry(container, name).unwrap_or(&Value::Null)
}

fn value<'a>(container: &'a Value, name: &str) -> &'a str {
    env(container, name)["value"].as_str().unwrap_or("")
}

fn named<'a>(pod: &'a Value, list: &str, name: &str) -> &'a Value {
    let all = pod["spec"][list].as_array().unwrap();
    all.iter().find(|one| one["name"] == name).unwrap_or(&Value::Null)
}

fn torch_pod() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "bert-worker-1",
            "labels": { "training.kubeflow.org/job-name": "bert", "training.kubeflow.org/replica-type": "worker" },
            "annotations": { "paceline.dev/inject": "true" },
        },
        "spec": {
            "someFutureField": { "kept": [1, 2.5, null] },
            "initContainers": [{ "name": "fetch", "image": "f" }],
            "containers": [
                { "name": "logs", "image": "l" },
                {
                    "name": "pytorch",
                    "image": "trainer",
                    "command": ["torchrun", "train.py"],
                    "args": ["--steps", "9"],
                    "env": [
                        { "name": "MASTER_ADDR", "value": "bert-master-0" },
                        { "name": "RANK", "value": "2" },
                        { "name": "PYTHONPATH", "value": "/code" },
                    ],
                    "resources": { "limits": { "nvidia.com/gpu": 8 } },
                },
            ],
            "restartPolicy": "OnFailure",
        },
    })
}

#[test]
fn a_sidecar_beside_the_trainer() {
    let pod = torch_pod();
    let done = injected(&pod, Mode::Sidecar);
    assert_eq!(
        (done.mode, done.trainer.as_str(), done.notes.len()),
        (Mode::Sidecar, "pytorch", 0)
    );
    let after = &done.pod;
    assert_eq!(after["spec"]["someFutureField"], pod["spec"]["someFutureField"]);
    assert_eq!(
        after["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"],
        "pytorch"
    );
    let order: Vec<&str> = after["spec"]["initContainers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|container| container["name"].as_str().unwrap())
        .collect();
    assert_eq!(order, ["fetch", "paceline-init", "paceline"]);
    assert_eq!(after["spec"]["containers"][0], pod["spec"]["containers"][0]);
    let trainer = &after["spec"]["containers"][1];
    assert_eq!(trainer["command"], json!(["torchrun", "train.py"]));
    assert_eq!(value(trainer, "PYTHONPATH"), "/paceline/files:/code");
    assert_eq!(value(trainer, "PACELINE_RING_DIR"), "/paceline/rings");
    let sidecar = named(after, "initContainers", "paceline");
    assert_eq!(sidecar["restartPolicy"], "Always");
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        assert!(sidecar[probe].is_null());
    }
    assert_eq!(sidecar["resources"]["requests"], sidecar["resources"]["limits"]);
    assert_eq!(value(sidecar, "PACELINE_AGGREGATOR"), "bert-master-0");
    assert_eq!(value(sidecar, "PACELINE_JOB"), "$(PACELINE_NAMESPACE)/bert");
    assert_eq!((value(sidecar, "RANK"), value(sidecar, "PYTHONPATH")), ("2", ""));
    let key = named(after, "volumes", "paceline-key");
    assert_eq!(key["secret"]["secretName"], "paceline-bert");
    assert_eq!(
        (&key["secret"]["optional"], &key["secret"]["defaultMode"]),
        (&json!(true), &json!(0o444))
    );
    // A variable precedes those that reference it.
    let names: Vec<&Value> = sidecar["env"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| &entry["name"])
        .collect();
    let place = |name: &str| names.iter().position(|known| *known == name).unwrap();
    assert!(place("PACELINE_NAMESPACE") < place("PACELINE_JOB"));
    assert!(place("MASTER_ADDR") < place("PACELINE_AGGREGATOR"));
}

#[test]
fn the_trainers_own_command_wrapped() {
    let done = injected(&torch_pod(), Mode::Wrap);
    let trainer = &done.pod["spec"]["containers"][1];
    let command = json!(["/paceline/files/paceline", "run", "--", "torchrun", "train.py"]);
    assert_eq!(trainer["command"], command);
    assert_eq!(trainer["args"], json!(["--steps", "9"]));
    assert_eq!(value(trainer, "PYTHONPATH"), "/code");
    assert_eq!(value(trainer, "PACELINE_RUN_DIR"), "/paceline/run");
    assert!(named(&done.pod, "initContainers", "paceline").is_null());
    let install = named(&done.pod, "initContainers", "paceline-init");
    assert_eq!(
        install["command"],
        json!(["/usr/bin/paceline", "install", "--program", "/paceline/files"])
    );
    assert!(install["restartPolicy"].is_null());
    assert!(named(&done.pod, "volumes", "paceline-rings").is_null());
    assert_eq!(
        named(&done.pod, "volumes", "paceline-key")["secret"]["defaultMode"],
        0o444
    );
    let mut pod = torch_pod();
    pod["metadata"]["annotations"]["paceline.dev/preflight"] = json!("quick");
    let done = injected(&pod, Mode::Wrap);
    assert_eq!(
        done.pod["spec"]["containers"][1]["command"][2],
        "--preflight=quick"
    );
    assert_eq!(
        injected(&pod, Mode::Sidecar).notes[0].code,
        "preflight-needs-wrap"
    );
}

#[test]
fn a_pod_tells_the_remediator_that_there_is() {
    for mode in [Mode::Sidecar, Mode::Wrap] {
        let settings = Settings {
            remediator: Some("https://r.ns.svc/verdicts".to_owned()),
            ..settings(mode)
        };
        let mut pod = torch_pod();
        pod["spec"]["automountServiceAccountToken"] = json!(false);
        let author = json!({ "name": "PACELINE_NOTIFY", "value": "slack=env:HOOK" });
        pod["spec"]["containers"][1]["env"]
            .as_array_mut()
            .unwrap()
            .push(author.clone());
        let done = inject(&pod, &settings, None).unwrap();
        assert_eq!(inject(&done.pod, &settings, None).unwrap().pod, done.pod);
        // An injection without a remediator keeps a receiver that is already there.
        assert_eq!(injected(&done.pod, mode).pod, done.pod);
        let volume = &named(&done.pod, "volumes", "paceline-remediator")["projected"]["sources"];
        assert_eq!(
            volume[0]["serviceAccountToken"]["audience"],
            "paceline-remediator"
        );
        assert_eq!(volume[1]["configMap"]["optional"], true);
        let trainer = &done.pod["spec"]["containers"][1];
        let (teller, other) = match mode {
            Mode::Sidecar => (named(&done.pod, "initContainers", "paceline"), trainer),
            Mode::Wrap => (trainer, &done.pod["spec"]["containers"][0]),
        };
        let has_mount = |container: &Value| {
            let mounts = container["volumeMounts"].as_array();
            mounts.is_some_and(|mounts| {
                mounts
                    .iter()
                    .any(|one| one["mountPath"] == "/paceline/remediator")
            })
        };
        assert!(has_mount(teller) && !has_mount(other), "{mode:?}");
        let told = value(teller, "PACELINE_NOTIFY");
        assert!(
            told.starts_with(
                "slack=env:HOOK webhook=https://r.ns.svc/verdicts,bearer=file:/paceline/remediator/token"
            ),
            "{told}"
        );
        if mode == Mode::Sidecar {
            assert_eq!(env(trainer, "PACELINE_NOTIFY"), &author);
        }
    }
    // If no remediator is requested, the pod contains nothing that refers to one.
    let text = injected(&torch_pod(), Mode::Sidecar).pod.to_string();
    assert!(!text.contains("PACELINE_NOTIFY") && !text.contains("remediator"));
}

#[test]
fn without_a_command_nothing_is_wrapped_and_it_is_said_why() {
    for command in [json!(null), json!([])] {
        let mut pod = torch_pod();
        pod["spec"]["containers"][1]["command"] = command;
        let done = injected(&pod, Mode::Wrap);
        assert_eq!(
            (done.mode, done.notes[0].code),
            (Mode::Sidecar, "wrap-without-command")
        );
        assert_eq!(done.pod["metadata"]["annotations"][INJECTED], "sidecar");
        // A later check of the pod, whose result is reported to the pod's owner, gives the same notes.
        let again = injected(&done.pod, Mode::Wrap);
        assert_eq!(
            (again.mode, again.pod, again.notes),
            (done.mode, done.pod, done.notes)
        );
    }
}

#[test]
fn what_another_webhook_broke_is_repaired_and_what_it_added_stays() {
    for mode in [Mode::Sidecar, Mode::Wrap] {
        let done = injected(&torch_pod(), mode);
        let mut broken = done.pod.clone();
        let inits = broken["spec"]["initContainers"].as_array_mut().unwrap();
        for container in inits.iter_mut() {
            let container = container.as_object_mut().unwrap();
            // A client without support for native sidecars drops the field.
            container.remove("restartPolicy");
            container.insert(
                "volumeMounts".into(),
                json!([{ "name": "token", "mountPath": "/var/run/t" }]),
            );
            container.insert("terminationMessagePath".into(), json!("/dev/log"));
        }
        inits.insert(0, json!({ "name": "mesh", "restartPolicy": "Always" }));
        broken["spec"]["volumes"]
            .as_array_mut()
            .unwrap()
            .retain(|volume| volume["name"] != "paceline-files");
        broken["spec"]["containers"][1]["command"] = json!(["torchrun", "train.py"]);
        let repaired = inject(&broken, &settings(mode), None).unwrap().pod;
        assert_eq!(
            named(&repaired, "initContainers", "mesh")["restartPolicy"],
            "Always"
        );
        assert_eq!(repaired["spec"]["containers"], done.pod["spec"]["containers"]);
        for name in ["paceline-init", "paceline"] {
            let (was, is) = (
                named(&done.pod, "initContainers", name),
                named(&repaired, "initContainers", name),
            );
            if was.is_null() {
                continue;
            }
            assert_eq!(was["restartPolicy"], is["restartPolicy"]);
            assert_eq!(is["terminationMessagePath"], "/dev/log");
            let mounts = is["volumeMounts"].as_array().unwrap();
            assert!(
                was["volumeMounts"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .all(|mount| mounts.contains(mount))
            );
            assert_eq!(mounts[0]["name"], "token");
        }
        assert!(!named(&repaired, "volumes", "paceline-files").is_null());
        assert_eq!(inject(&repaired, &settings(mode), None).unwrap().pod, repaired);
    }
}

#[path = "injection_odd_tests.rs"]
mod odd;
