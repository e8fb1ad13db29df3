use super::*;
use crate::remediate::nodes::Nodes;

fn node(status: Value) -> NodeView {
    NodeView::of(&json!({ "metadata": { "name": "n1" }, "status": status })).unwrap()
}

#[test]
fn gpus_are_the_nodes_own_and_not_those_that_can_be_given_away() {
    let gpus = |status: Value| node(status).gpus;
    let key = "nvidia.com/gpu";
    assert_eq!(
        gpus(json!({ "capacity": { key: "8" }, "allocatable": { key: "0" } })),
        Some(8)
    );
    assert_eq!(
        gpus(json!({ "capacity": { key: "0" }, "allocatable": { key: "0" } })),
        Some(0),
        "the device plugin is gone"
    );
    assert_eq!(gpus(json!({ "capacity": { "cpu": "64" } })), None);
}

/// With MIG's mixed strategy, the capacity has `nvidia.com/gpu` for whole GPUs besides the slices.
#[test]
fn slices_of_gpus_are_seen_beside_whole_ones() {
    let slices = |count: &str| {
        let capacity =
            json!({ "nvidia.com/gpu": "0", "nvidia.com/mig-1g.10gb": count, "nvidia.com/hostdev": "8" });
        node(json!({ "capacity": capacity })).has_slices
    };
    assert!(slices("7") && !slices("0"));
    let holds = |limits: Value| {
        let pod = json!({ "spec": { "containers": [{ "resources": { "limits": limits } }] } });
        is_drained(&pod, rules::Pods::Gpu)
    };
    assert!(holds(
        json!({ "nvidia.com/gpu": "0", "nvidia.com/mig-1g.10gb": 1 })
    ));
    assert!(!holds(json!({ "nvidia.com/gpu": 0, "cpu": "8" })) && !holds(json!({ "nvidia.com/gpu": "0" })));
}

/// Checks which pods a drain evicts. A pod that has ended holds no devices. A pod of a DaemonSet or a mirror pod would
/// be recreated immediately.
#[test]
fn who_is_asked_to_leave() {
    let check = |wanted: bool, change: Value| {
        let mut pod = json!({
            "metadata": {},
            "spec": { "containers": [{ "resources": { "limits": { "nvidia.com/gpu": "8" } } }] },
        });
        for (part, value) in change.as_object().unwrap() {
            pod[part] = value.clone();
        }
        assert_eq!(is_drained(&pod, rules::Pods::Gpu), wanted, "{pod}");
    };
    check(true, json!({}));
    for (phase, wanted) in [
        ("Pending", true),
        ("Running", true),
        ("Unknown", true),
        ("Succeeded", false),
        ("Failed", false),
    ] {
        check(wanted, json!({ "status": { "phase": phase } }));
    }
    let owner =
        |kind: &str| json!({ "metadata": { "ownerReferences": [{ "kind": kind, "controller": true }] } });
    check(true, owner("Job"));
    check(false, owner("DaemonSet"));
    let mirror = json!({ "annotations": { "kubernetes.io/config.mirror": "f00d" } });
    check(false, json!({ "metadata": mirror }));
    check(false, json!({ "spec": { "containers": [{}] } }));
    let claims = json!([{ "name": "gpus", "resourceClaimTemplateName": "whole" }]);
    check(
        true,
        json!({ "spec": { "containers": [{}], "resourceClaims": claims } }),
    );
}

#[test]
fn shares_are_of_nodes_with_gpus_or_of_all_where_none_shows_any() {
    let fleet = |capacities: &[Value]| {
        let nodes = Nodes::default();
        for (index, capacity) in capacities.iter().enumerate() {
            nodes.saw(
                &json!({ "metadata": { "name": format!("n{index}") }, "status": { "capacity": capacity } }),
            );
        }
        nodes.fleet().into_iter().collect::<Vec<_>>().join(" ")
    };
    let (cpu, nic) = (json!({ "cpu": "8" }), json!({ "rdma/hca": "1" }));
    let gone = json!({ "nvidia.com/gpu": "0" });
    assert_eq!(
        fleet(&[cpu.clone(), json!({ "amd.com/gpu": "8" }), nic.clone(), gone]),
        "n1 n3"
    );
    assert_eq!(fleet(&[cpu, nic]), "n0 n1");
}

fn pod(gpus: Option<u32>, wanted: &str) -> Value {
    let job = Preflight {
        name: "p",
        namespace: "paceline",
        gpus,
        image: "image",
        pod: &serde_json::from_str(wanted).unwrap(),
        deadline_s: 60,
    };
    preflight(job, &node(json!({})))["spec"]["template"]["spec"].clone()
}

#[test]
fn a_preflight_gets_all_gpus_and_must_measure_them() {
    let container = |gpus| pod(gpus, "{}")["containers"][0].clone();
    let of_eight = container(Some(8));
    assert_eq!(of_eight["resources"]["limits"]["nvidia.com/gpu"], "8");
    assert_eq!(
        of_eight["command"],
        json!(["paceline", "preflight", "full", "--gpus=8"])
    );
    let driver = json!({ "name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility" });
    assert!(of_eight["env"].as_array().unwrap().contains(&driver));
    let none = container(None);
    assert_eq!(none["command"], json!(["paceline", "preflight", "full"]));
    assert!(none["resources"]["limits"]["nvidia.com/gpu"].is_null());
}

#[test]
fn a_preflights_pod_bears_what_the_site_wants() {
    let toleration = json!({ "key": "team", "operator": "Exists" });
    let wanted = json!({ "imagePullSecrets": [{ "name": "pull" }], "runtimeClassName": "nvidia", "tolerations": [toleration] });
    let full = pod(None, &wanted.to_string());
    assert_eq!(full["imagePullSecrets"], wanted["imagePullSecrets"]);
    assert_eq!(full["runtimeClassName"], "nvidia");
    let keys: Vec<&Value> = full["tolerations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["key"])
        .collect();
    assert_eq!(
        keys,
        [
            TAINT,
            "node.kubernetes.io/unschedulable",
            "nvidia.com/gpu",
            "team"
        ]
    );
    let plain = pod(None, "{}");
    assert!(plain["runtimeClassName"].is_null() && plain["imagePullSecrets"].is_null());
    assert_eq!(plain["tolerations"].as_array().unwrap().len(), 3);
    let other = serde_json::from_str::<PreflightPod>("{\"containers\": []}");
    assert!(
        other
            .unwrap_err()
            .to_string()
            .contains("unknown field `containers`")
    );
}

#[test]
fn what_did_not_run_has_not_failed() {
    let check = |status: Value, wanted: Result<&str, &str>| {
        let found = ran(&[json!({ "status": status })]);
        assert_eq!(found.as_deref().map_err(String::as_str), wanted, "{status}");
    };
    let of = |state: Value| json!({ "containerStatuses": [{ "name": "preflight", "state": state }] });
    check(
        of(json!({ "terminated": { "exitCode": 2, "reason": "Error", "message": "7 of 8 GPUs\n" } })),
        Ok("7 of 8 GPUs"),
    );
    check(
        of(json!({ "running": { "startedAt": "2026-01-01T00:00:00Z" } })),
        Ok(""),
    );
    check(
        of(json!({ "waiting": { "reason": "ImagePullBackOff", "message": "no such image" } })),
        Err("ImagePullBackOff: no such image"),
    );
    check(
        of(
            json!({ "terminated": { "exitCode": 3, "reason": "Error", "message": "nothing to compare with" } }),
        ),
        Err("it had no result (exit code 3): nothing to compare with"),
    );
    // The runtime cannot start the container, for example because the driver's libraries are missing.
    check(
        of(json!({ "terminated": { "exitCode": 128, "reason": "StartError", "message": "hook failed" } })),
        Err("StartError: hook failed"),
    );
    check(
        json!({ "conditions": [
            { "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "Insufficient nvidia.com/gpu" },
        ] }),
        Err("Unschedulable: Insufficient nvidia.com/gpu"),
    );
    check(
        json!({ "phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no healthy devices" }),
        Err("UnexpectedAdmissionError: no healthy devices"),
    );
    // A pod with a higher priority has preempted this pod.
    let mut taken = of(json!({ "terminated": { "exitCode": 143, "reason": "Error" } }));
    taken["conditions"] = json!([{ "type": "DisruptionTarget", "status": "True", "message": "preempted" }]);
    check(taken, Err("its pod was removed: preempted"));
    check(json!({}), Err("its pod did not start"));
    assert_eq!(ran(&[]), Err("it has no pod".to_owned()));
}
