//! Tests Secrets that cannot be created yet. Either the Secret of an older job still exists, or the API server fails
//! for one of the Secrets.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::world::{CONFIGURATIONS, Operator, PATIENCE, World};

const JOBS: &str = "/apis/batch/v1/namespaces/ml/jobs";
const SECRET: &str = "/api/v1/namespaces/ml/secrets/paceline-j";

/// Creates a Job and a pod of the Job. Returns the Job's uid.
async fn apply(world: &World, pod: &str) -> Value {
    let job = json!({ "metadata": { "name": "j" }, "spec": {} });
    let (code, job) = world.admin.post(JOBS, &job).await.unwrap();
    assert_eq!(code, 201, "{job}");
    let uid = job["metadata"]["uid"].clone();
    let owner =
        json!({ "apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": uid, "controller": true });
    let (code, _) = world
        .pod(pod, |pod| {
            pod["metadata"]["labels"]["batch.kubernetes.io/job-name"] = json!("j");
            pod["metadata"]["ownerReferences"] = json!([owner]);
        })
        .await;
    assert_eq!(code, 201);
    uid
}

/// Returns how many such requests the injector has sent, whatever the responses were.
fn asked(world: &World, verb: &str, resource: &str, namespace: &str) -> u64 {
    let audit = world.server.cluster.audit();
    let lines = audit.as_array().unwrap().iter().filter(|line| {
        line["user"].as_str().unwrap().ends_with(":injector")
            && line["verb"] == verb
            && line["resource"] == resource
            && line["namespace"] == namespace
    });
    lines.map(|line| line["count"].as_u64().unwrap()).sum()
}

/// A job is deleted and applied again, as after an edit of a manifest. The garbage collector deletes the old Secret
/// only later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_is_applied_again_gets_a_key_of_its_own() {
    let world = World::begin().await;
    let operator = Operator::start(&world, &[]).await;
    world.serve(&[&operator]).await;
    for is_marked in [true, false] {
        // If `is_marked` is false, the old Secret is not yet marked for deletion, because another pod of the old job
        // keeps it. It is not deleted before the new job requests one.
        let first = apply(&world, &format!("first-{is_marked}")).await;
        let old = world.until_secret("paceline-j").await;
        assert_eq!(old["metadata"]["ownerReferences"][0]["uid"], first);
        let held = json!({ "metadata": { "finalizers": ["test/held"] } });
        let kept = json!({ "metadata": { "ownerReferences": null } });
        let change = if is_marked { held } else { kept };
        world.admin.merge(SECRET, &change).await.unwrap();
        world
            .admin
            .delete(&format!("{JOBS}/j"), &Value::Null)
            .await
            .unwrap();
        let before = asked(&world, "create", "/secrets", "ml");
        let second = apply(&world, &format!("second-{is_marked}")).await;
        let began = Instant::now();
        while asked(&world, "create", "/secrets", "ml") == before {
            assert!(began.elapsed() < PATIENCE, "{}", operator.said());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let there = world.secret("paceline-j").await.unwrap();
        assert_eq!(there["data"], old["data"], "it is still the old one");
        match is_marked {
            true => drop(
                world
                    .admin
                    .merge(SECRET, &json!({ "metadata": { "finalizers": null } }))
                    .await,
            ),
            false => drop(world.admin.delete(SECRET, &Value::Null).await),
        }
        let new = world.until_secret("paceline-j").await;
        assert_eq!(new["metadata"]["ownerReferences"][0]["uid"], second);
        assert_ne!(new["data"], old["data"]);
        world
            .admin
            .delete(&format!("{JOBS}/j"), &Value::Null)
            .await
            .unwrap();
    }
    assert_eq!(operator.end(), Some(0));
}

/// The Secret is deleted, and the leader stays the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_that_is_deleted_is_made_again_for_a_new_pod() {
    let world = World::begin().await;
    let operator = Operator::start(&world, &[]).await;
    world.serve(&[&operator]).await;
    let job = json!({ "metadata": { "name": "j" }, "spec": {} });
    let (_, job) = world.admin.post(JOBS, &job).await.unwrap();
    let pod = async |name: &str| {
        let owner = json!({
            "apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": job["metadata"]["uid"], "controller": true,
        });
        let (code, _) = world
            .pod(name, |pod| {
                pod["metadata"]["labels"]["batch.kubernetes.io/job-name"] = json!("j");
                pod["metadata"]["ownerReferences"] = json!([owner]);
            })
            .await;
        assert_eq!(code, 201);
    };
    pod("first").await;
    let old = world.until_secret("paceline-j").await;
    // The Secret exists, so there is one request and no retry.
    pod("second").await;
    let began = Instant::now();
    while asked(&world, "create", "/secrets", "ml") < 2 {
        assert!(began.elapsed() < PATIENCE, "{}", operator.said());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    world.admin.delete(SECRET, &Value::Null).await.unwrap();
    pod("third").await;
    let new = world.until_secret("paceline-j").await;
    assert_made_anew(&old, &new);
    assert_eq!(operator.end(), Some(0));
}

fn assert_made_anew(old: &Value, new: &Value) {
    assert_ne!(new["data"], old["data"]);
    let owners = |secret: &Value| secret["metadata"]["ownerReferences"].clone();
    assert_eq!(owners(new), owners(old));
}

/// The Secret is deleted, and no new pod arrives. The unscheduled pod would find the Secret missing. Each list of pods,
/// one in four minutes, triggers another request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_that_is_deleted_is_made_again_for_a_pod_that_waits_for_a_machine() {
    let world = World::begin().await;
    let operator = Operator::start(&world, &[]).await;
    world.serve(&[&operator]).await;
    apply(&world, "waits").await;
    let old = world.until_secret("paceline-j").await;
    world.admin.delete(SECRET, &Value::Null).await.unwrap();
    let began = Instant::now();
    while world.secret("paceline-j").await.is_none() {
        assert!(began.elapsed() < PATIENCE, "{}", operator.said());
        world
            .server
            .cluster
            .make_trouble(&json!({ "drop_watches": true }));
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let new = world.until_secret("paceline-j").await;
    assert_made_anew(&old, &new);
    assert_eq!(operator.end(), Some(0));
}

/// A third-party webhook is required for Secrets of one namespace but does not run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_that_cannot_be_made_holds_up_no_other() {
    let world = World::begin().await;
    let sick = json!({ "metadata": { "name": "sick", "labels": { "is": "sick" } } });
    world.admin.post("/api/v1/namespaces", &sick).await.unwrap();
    let webhook = json!({
        "name": "gone.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
        "timeoutSeconds": 1, "failurePolicy": "Fail",
        "clientConfig": { "service": { "name": "gone", "namespace": "sick", "path": "/", "port": 443 } },
        "rules": [{ "operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["secrets"] }],
        "namespaceSelector": { "matchLabels": { "is": "sick" } },
    });
    let webhook = json!({ "metadata": { "name": "gone" }, "webhooks": [webhook] });
    assert_eq!(world.admin.post(CONFIGURATIONS, &webhook).await.unwrap().0, 201);
    let operator = Operator::start(&world, &[]).await;
    world.serve(&[&operator]).await;
    let pod = json!({
        "metadata": { "name": "a", "labels": { "paceline.dev/inject": "true" } },
        "spec": { "containers": [{ "name": "t", "image": "i", "command": ["train"] }] },
    });
    let (code, _) = world
        .admin
        .post("/api/v1/namespaces/sick/pods", &pod)
        .await
        .unwrap();
    assert_eq!(code, 201);
    operator
        .until_said("the Secret sick/paceline-a could not be created; retrying: 500")
        .await;
    let lists = asked(&world, "list", "/pods", "");
    for name in ["b", "c", "d"] {
        assert_eq!(world.pod(name, |_| {}).await.0, 201);
        world.until_secret(&format!("paceline-{name}")).await;
    }
    // The write is retried after 1, 3 and 7 s, without listing the cluster's pods.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(asked(&world, "create", "/secrets", "sick") <= 4);
    assert!(asked(&world, "list", "/pods", "") <= lists + 1);
    let gone = format!("{CONFIGURATIONS}/gone");
    world.admin.delete(&gone, &Value::Null).await.unwrap();
    let began = Instant::now();
    let secret = "/api/v1/namespaces/sick/secrets/paceline-a";
    while world.admin.get(secret).await.unwrap().0 != 200 {
        assert!(began.elapsed() < PATIENCE, "{}", operator.said());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(operator.end(), Some(0));
}
