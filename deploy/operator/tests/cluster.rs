//! Tests the real program in a cluster: how it changes pods when an API server calls it, and its other tasks.

#![allow(clippy::unwrap_used, missing_docs)] // If a test cannot continue, it fails.

#[path = "cluster/hangs.rs"]
mod hangs;
#[path = "cluster/modes.rs"]
mod modes;
#[path = "cluster/remediator.rs"]
mod remediator;
#[path = "cluster/secrets.rs"]
mod secrets;
mod world;

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use paceline_inject::presence::{Presence, presence};
use serde_json::{Value, json};
use world::hostile::hostile;
use world::{CONFIGURATIONS, Operator, PATIENCE, PODS, World};

/// Names and values of labels.
type Labels = &'static [(&'static str, &'static str)];

/// Labels that each operator sets on its pods, and the resulting Secret.
const KINDS: [(&str, Labels, &str); 8] = [
    ("Pod", &[], "paceline-a"),
    ("Job", &[("batch.kubernetes.io/job-name", "j")], "paceline-j"),
    (
        "PyTorchJob",
        &[
            ("training.kubeflow.org/job-name", "pt"),
            ("training.kubeflow.org/replica-type", "worker"),
        ],
        "paceline-pt",
    ),
    (
        "TrainJob",
        &[
            ("trainer.kubeflow.org/trainjob-ancestor-step", "trainer"),
            ("jobset.sigs.k8s.io/jobset-name", "tj"),
        ],
        "paceline-tj",
    ),
    (
        "JobSet",
        &[
            ("jobset.sigs.k8s.io/jobset-name", "js"),
            ("jobset.sigs.k8s.io/jobset-uid", "u"),
        ],
        "paceline-js",
    ),
    (
        "LeaderWorkerSet",
        &[
            ("leaderworkerset.sigs.k8s.io/name", "l"),
            ("leaderworkerset.sigs.k8s.io/worker-index", "0"),
        ],
        "paceline-l",
    ),
    (
        "Volcano",
        &[("volcano.sh/job-name", "v"), ("volcano.sh/task-spec", "w")],
        "paceline-v",
    ),
    ("RayJob", &[("ray.io/cluster", "r")], "paceline-r"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_kind_in_both_modes() {
    let world = World::begin().await;
    let operator = Operator::start(&world, &[]).await;
    world.serve(&[&operator]).await;
    for mode in ["sidecar", "wrap"] {
        for (kind, labels, secret) in KINDS {
            let name = if kind == "Pod" {
                "a".to_owned()
            } else {
                format!("{}-{mode}", kind.to_lowercase())
            };
            let (code, pod) = world
                .pod(&name, |pod| {
                    for (label, value) in labels {
                        pod["metadata"]["labels"][label] = json!(value);
                    }
                    pod["metadata"]["labels"]["paceline.dev/inject"] = json!(mode);
                })
                .await;
            assert_eq!(code, 201, "{kind} {mode}: {pod}");
            assert_eq!(presence(&pod), Presence::Whole, "{kind} {mode}");
            assert_eq!(pod["metadata"]["annotations"]["paceline.dev/injected"], mode);
            world.until_secret(secret).await;
            if kind == "Pod" {
                world
                    .admin
                    .delete(&format!("{PODS}/a"), &Value::Null)
                    .await
                    .unwrap();
            }
        }
    }
    // Injection is requested only by an annotation, in a minimal pod.
    let (code, bare) = world
        .pod(
            "bare",
            |pod| {
                pod["metadata"] = json!({ "name": "bare", "annotations": { "paceline.dev/inject": "true" } })
            },
        )
        .await;
    assert_eq!((code, presence(&bare)), (201, Presence::Whole));
    let (_, other) = world
        .pod("other", |pod| pod["metadata"]["labels"] = json!({}))
        .await;
    assert_eq!(presence(&other), Presence::Absent);
    assert_eq!(operator.end(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dry_run_restricted_and_a_secret_that_goes_with_its_job() {
    let world = World::begin().await;
    // A chart may create the Secret empty, so that the Secret is deleted together with the chart.
    let empty = json!({ "metadata": { "name": world::SECRET } });
    world
        .admin
        .post("/api/v1/namespaces/paceline/secrets", &empty)
        .await
        .unwrap();
    let operator = Operator::start(&world, &[]).await;
    world.serve(&[&operator]).await;
    let label = json!({ "metadata": { "labels": { "pod-security.kubernetes.io/enforce": "restricted" } } });
    world.admin.merge("/api/v1/namespaces/ml", &label).await.unwrap();
    let loose = world.pod("loose", |_| {}).await;
    assert_eq!(loose.0, 403, "the trainer itself is not restricted");
    let jobs = "/apis/batch/v1/namespaces/ml/jobs";
    let (_, job) = world
        .admin
        .post(jobs, &json!({ "metadata": { "name": "j" }, "spec": {} }))
        .await
        .unwrap();
    let strict = |pod: &mut Value| {
        pod["metadata"]["labels"]["batch.kubernetes.io/job-name"] = json!("j");
        pod["metadata"]["ownerReferences"] = json!([{ "apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": job["metadata"]["uid"], "controller": true }]);
        pod["spec"]["securityContext"] = json!({ "runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": { "type": "RuntimeDefault" } });
        pod["spec"]["containers"][0]["securityContext"] =
            json!({ "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } });
    };
    let mut asked = json!({ "metadata": { "name": "dry", "labels": { "paceline.dev/inject": "true" } },
        "spec": { "containers": [{ "name": "t", "image": "i", "command": ["train"] }] } });
    strict(&mut asked);
    let (code, dry) = world
        .admin
        .post(&format!("{PODS}?dryRun=All"), &asked)
        .await
        .unwrap();
    assert_eq!((code, presence(&dry)), (201, Presence::Whole));
    assert_eq!(world.admin.get(&format!("{PODS}/dry")).await.unwrap().0, 404);
    for mode in ["sidecar", "wrap"] {
        let (code, pod) = world
            .pod(mode, |pod| {
                strict(pod);
                pod["metadata"]["labels"]["paceline.dev/inject"] = json!(mode);
            })
            .await;
        assert_eq!((code, presence(&pod)), (201, Presence::Whole), "{pod}");
    }
    let secret = world.until_secret("paceline-j").await;
    let key = STANDARD.decode(secret["data"]["key"].as_str().unwrap()).unwrap();
    assert_eq!(
        STANDARD
            .decode(String::from_utf8(key).unwrap().trim())
            .unwrap()
            .len(),
        32
    );
    world.until_event("j", "no-first-pod").await;
    world
        .admin
        .delete(&format!("{jobs}/j"), &Value::Null)
        .await
        .unwrap();
    assert!(world.secret("paceline-j").await.is_none(), "it goes with the job");
    // This pod requests injection but cannot have it. The pod is created nevertheless, and its owner gets an Event.
    let (code, _) = world
        .pod("win", |pod| {
            strict(pod);
            pod["spec"]["os"] = json!({ "name": "windows" });
            pod["metadata"]["ownerReferences"] = json!([]);
        })
        .await;
    assert_eq!(code, 201);
    world.until_event("win", "windows").await;
    operator
        .until(
            "/metrics",
            r#"paceline_injector_pods_without_paceline{reason="windows"} 1"#,
        )
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_with_resources_of_its_own_is_taken() {
    let world = World::begin().await;
    let operator = Operator::start(&world, &[]).await;
    world.serve(&[&operator]).await;
    let all = json!({ "cpu": "4", "memory": "8Gi" });
    for mode in ["sidecar", "wrap"] {
        let (code, pod) = world
            .pod(mode, |pod| {
                pod["metadata"]["labels"]["paceline.dev/inject"] = json!(mode);
                pod["spec"]["resources"] = json!({ "requests": all, "limits": all });
                pod["spec"]["containers"][0]["resources"] = json!({ "requests": all });
            })
            .await;
        assert_eq!((code, presence(&pod)), (201, Presence::Whole), "{pod}");
        assert_eq!(pod["spec"]["containers"][0]["resources"]["requests"], all);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_webhook_drops_is_put_back_or_told() {
    let world = World::begin().await;
    let operator = Operator::start(&world, &[]).await;
    world.serve(&[&operator]).await;
    hostile(&world, "Never").await;
    let (code, pod) = world.pod("repaired", |_| {}).await;
    assert_eq!((code, presence(&pod)), (201, Presence::Whole), "{pod}");
    // Tests a webhook that runs last.
    world
        .admin
        .delete(&format!("{CONFIGURATIONS}/zz-old"), &Value::Null)
        .await
        .unwrap();
    hostile(&world, "IfNeeded").await;
    let (code, pod) = world.pod("broken", |_| {}).await;
    assert_eq!(
        (code, presence(&pod)),
        (201, Presence::Broken("restart-policy-lost"))
    );
    let event = world.until_event("broken", "restart-policy-lost").await;
    assert_eq!(
        (&event["type"], &event["reason"]),
        (&json!("Warning"), &json!("PacelineMissing"))
    );
    operator
        .until(
            "/metrics",
            r#"paceline_injector_pods_without_paceline{reason="restart-policy-lost"} 1"#,
        )
        .await;
    world
        .admin
        .delete(&format!("{PODS}/broken"), &Value::Null)
        .await
        .unwrap();
    let began = Instant::now();
    while operator.page("/metrics").await.contains("pods_without_paceline{") {
        assert!(began.elapsed() < PATIENCE, "what is gone is missed no longer");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_that_came_while_the_webhook_was_away_are_told_of() {
    let world = World::begin().await;
    world
        .admin
        .delete(&format!("{CONFIGURATIONS}/paceline-injector"), &Value::Null)
        .await
        .unwrap();
    let (code, pod) = world.pod("early", |_| {}).await;
    assert_eq!((code, presence(&pod)), (201, Presence::Absent));
    world.register("Ignore").await;
    let operator = Operator::start(&world, &[]).await;
    world.until_event("early", "not-injected").await;
    operator
        .until(
            "/metrics",
            r#"paceline_injector_pods_without_paceline{reason="not-injected"} 1"#,
        )
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_and_authorities_change_and_no_admission_is_lost() {
    let world = World::begin().await;
    // A certificate is valid for 20 s here. It is renewed after 13 s, and its authority after 27 s.
    let operator = Operator::start(&world, &["--certificate-life", "20"]).await;
    world.serve(&[&operator]).await;
    let bundle = async || {
        let (_, configuration) = world
            .admin
            .get(&format!("{CONFIGURATIONS}/paceline-injector"))
            .await
            .unwrap();
        configuration["webhooks"][0]["clientConfig"]["caBundle"]
            .as_str()
            .unwrap_or("")
            .to_owned()
    };
    let first = bundle().await;
    let began = Instant::now();
    let mut asked = 0;
    loop {
        let pod = json!({ "metadata": { "name": "p", "labels": { "paceline.dev/inject": "true" } },
            "spec": { "containers": [{ "name": "t", "image": "i", "command": ["train"] }] } });
        let (code, pod) = world
            .admin
            .post(&format!("{PODS}?dryRun=All"), &pod)
            .await
            .unwrap();
        assert_eq!(
            (code, presence(&pod)),
            (201, Presence::Whole),
            "after {asked}: {pod}"
        );
        asked += 1;
        let page = operator.page("/metrics").await;
        let count = |what: &str| {
            let line = format!("paceline_injector_certificates_renewed_total{{what=\"{what}\"}} ");
            page.lines()
                .find_map(|one| one.strip_prefix(&line)?.parse::<u32>().ok())
                .unwrap_or(0)
        };
        // The second authority exists and signs, because two certificates followed the first.
        if count("authority") >= 2 && count("certificate") >= 2 {
            break;
        }
        assert!(began.elapsed() < PATIENCE * 2, "{page}\n{}", operator.said());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_ne!(bundle().await, first);
    let told = world.server.cluster.callers.told();
    assert_eq!(
        (told["failed"].as_u64(), told["called"].as_u64()),
        (Some(0), Some(asked)),
        "{}",
        told["last_failure"]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_server_that_was_away_is_waited_for() {
    let world = World::begin().await;
    let mut operator = Operator::start(&world, &["--lease", "2"]).await;
    world.serve(&[&operator]).await;
    world.pod("before", |_| {}).await;
    world.until_secret("paceline-before").await;
    world
        .server
        .cluster
        .make_trouble(&json!({ "away_ms": 4000, "compact": true }));
    // The replica is no longer the leader, but still runs, because the webhook itself makes no requests to the API
    // server.
    operator.until("/metrics", "paceline_injector_leader 0").await;
    operator.until("/readyz", "ok").await;
    let began = Instant::now();
    while world.admin.get(PODS).await.is_err() {
        assert!(began.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(world.pod("after", |_| {}).await.0, 201);
    world.until_secret("paceline-after").await;
    operator.until("/metrics", "paceline_injector_leader 1").await;
    assert!(operator.is_alive());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_replicas_one_acts_and_the_other_follows_when_it_is_killed() {
    let world = World::begin().await;
    let first = Operator::start(&world, &["--lease", "2"]).await;
    first.until("/metrics", "paceline_injector_leader 1").await;
    let second = Operator::start(&world, &["--lease", "2"]).await;
    second.until("/metrics", "paceline_injector_leader 0").await;
    // Both replicas serve the same certificate, and both get requests.
    world.serve(&[&first, &second]).await;
    for number in 0..4 {
        let (code, pod) = world.pod(&format!("both-{number}"), |_| {}).await;
        assert_eq!((code, presence(&pod)), (201, Presence::Whole));
    }
    world.until_secret("paceline-both-0").await;
    first.kill();
    world.serve(&[&second]).await;
    let (code, pod) = world.pod("after", |_| {}).await;
    assert_eq!((code, presence(&pod)), (201, Presence::Whole));
    world.until_secret("paceline-after").await;
    second.until("/metrics", "paceline_injector_leader 1").await;
    // A normal shutdown releases the Lease, so that the successor need not wait.
    assert_eq!(second.end(), Some(0));
    let lease = "/apis/coordination.k8s.io/v1/namespaces/paceline/leases/paceline-injector";
    let (_, lease) = world.admin.get(lease).await.unwrap();
    assert_eq!(lease["spec"]["holderIdentity"], "");
}
