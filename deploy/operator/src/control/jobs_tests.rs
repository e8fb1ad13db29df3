use paceline_inject::patch;

use super::*;

fn pod(change: impl Fn(&mut Value)) -> Value {
    let mut pod = json!({
        "metadata": {
            "name": "p-1", "namespace": "ml", "uid": "pod-uid", "labels": { "paceline.dev/inject": "true" },
            "ownerReferences": [{ "apiVersion": "batch/v1", "kind": "Job", "name": "p", "uid": "job-uid", "controller": true }],
        },
        "spec": { "containers": [{ "name": "t", "image": "i", "command": ["train"] }] },
    });
    change(&mut pod);
    pod
}

fn injected(change: impl Fn(&mut Value)) -> Value {
    inject(&pod(change), &Settings::default(), None).unwrap().pod
}

fn owner_of(pod: &Value) -> Value {
    let key = look(pod, &Rules::default()).key.unwrap();
    serde_json::from_str(&key.owner).unwrap()
}

#[test]
fn a_job_has_a_secret_that_goes_with_it() {
    let pod = injected(|pod| pod["metadata"]["labels"]["batch.kubernetes.io/job-name"] = json!("p"));
    let key = look(&pod, &Rules::default()).key.unwrap();
    assert_eq!((key.namespace.as_str(), key.name.as_str()), ("ml", "paceline-p"));
    let secret = key.secret("k");
    assert_eq!(secret["data"]["key"], "aw==");
    assert_eq!(secret["metadata"]["ownerReferences"][0]["uid"], "job-uid");
    // A second owner, or `blockOwnerDeletion`, would delay the deletion of the Secret or the job.
    assert!(secret["metadata"]["ownerReferences"][0]["blockOwnerDeletion"].is_null());
}

/// Users who may create pods must not be able to reserve a name in their namespace, such as that of a future database
/// Secret.
#[test]
fn no_secret_is_made_under_a_name_that_is_not_ours() {
    let named = |name: &str| {
        let pod = injected(|pod| pod["metadata"]["annotations"]["paceline.dev/key-secret"] = json!(name));
        look(&pod, &Rules::default()).key.map(|key| key.name)
    };
    assert_eq!(named("database"), None);
    assert_eq!(named("paceline-shared"), Some("paceline-shared".to_owned()));
}

#[test]
fn the_owner_is_what_lives_as_long_as_the_job() {
    let label = |pod: &mut Value, name: &str, value: &str| pod["metadata"]["labels"][name] = json!(value);
    let set = injected(|pod| {
        label(pod, "jobset.sigs.k8s.io/jobset-name", "s");
        label(pod, "jobset.sigs.k8s.io/jobset-uid", "set-uid");
    });
    assert_eq!(
        (owner_of(&set)["kind"].as_str(), owner_of(&set)["uid"].as_str()),
        (Some("JobSet"), Some("set-uid"))
    );
    let group = |worker: &str| {
        injected(|pod| {
            label(pod, "leaderworkerset.sigs.k8s.io/name", "l");
            label(pod, "leaderworkerset.sigs.k8s.io/worker-index", worker);
        })
    };
    assert_eq!(owner_of(&group("0"))["uid"], "job-uid");
    assert_eq!(look(&group("1"), &Rules::default()).key, None);
    let bare = injected(|pod| pod["metadata"]["ownerReferences"] = json!([]));
    assert_eq!(
        (owner_of(&bare)["kind"].as_str(), owner_of(&bare)["uid"].as_str()),
        (Some("Pod"), Some("pod-uid"))
    );
}

#[test]
fn why_not() {
    let missing = |pod: &Value| look(pod, &Rules::default()).missing();
    assert_eq!(missing(&pod(|_| {})), Some("not-injected"));
    assert_eq!(
        missing(&pod(|pod| pod["spec"]["os"] = json!({ "name": "windows" }))),
        Some("windows")
    );
    assert_eq!(missing(&injected(|_| {})), None);
    let mut hostile = injected(|_| {});
    let drop = json!([{ "op": "remove", "path": "/spec/initContainers/1/restartPolicy" }]);
    patch::apply(&mut hostile, drop.as_array().unwrap()).unwrap();
    assert_eq!(missing(&hostile), Some("restart-policy-lost"));
    for silent in [
        pod(|pod| pod["metadata"]["labels"] = json!({})),
        pod(|pod| pod["metadata"]["namespace"] = json!("kube-system")),
        pod(|pod| pod["status"] = json!({ "phase": "Succeeded" })),
        pod(|pod| pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z")),
    ] {
        assert_eq!(look(&silent, &Rules::default()), Call::default());
    }
}

/// Checks that the injected pod still shows what was requested, because the first check of a pod runs after the
/// webhook.
#[test]
fn a_wrap_that_became_a_sidecar_is_told() {
    let asks = pod(|pod| {
        pod["metadata"]["labels"]["paceline.dev/inject"] = json!("wrap");
        pod["spec"]["containers"][0]
            .as_object_mut()
            .unwrap()
            .remove("command");
    });
    let done = inject(&asks, &Settings::default(), None).unwrap();
    let words = look(&done.pod, &Rules::default()).words;
    let codes: Vec<_> = words.iter().map(|word| (word.code, word.is_missing)).collect();
    assert!(codes.contains(&("wrap-without-command", false)), "{codes:?}");
}

#[test]
fn a_word_is_said_about_the_owner_and_once() {
    let one = look(&pod(|_| {}), &Rules::default()).words.remove(0);
    let other = look(
        &pod(|pod| pod["metadata"]["name"] = json!("p-2")),
        &Rules::default(),
    )
    .words
    .remove(0);
    assert_eq!(one.name(), other.name());
    let event = one.event(1_709_164_800_123);
    assert_eq!(
        (&event["type"], &event["reason"]),
        (&json!("Warning"), &json!("PacelineMissing"))
    );
    assert_eq!(
        (&event["involvedObject"]["kind"], &event["firstTimestamp"]),
        (&json!("Job"), &json!("2024-02-29T00:00:00Z"))
    );
    assert!(
        event["message"]
            .as_str()
            .unwrap()
            .ends_with("(not-injected; seen in pod p-1)")
    );
    // This pod belongs to a multi-pod job whose first pod is unknown. The pod is monitored, and its owner gets an
    // Event.
    let alone = injected(|pod| pod["metadata"]["labels"]["batch.kubernetes.io/job-name"] = json!("p"));
    let words = look(&alone, &Rules::default()).words;
    assert_eq!(
        (words[0].code, words[0].is_missing, words.len()),
        ("no-first-pod", false, 1)
    );
}
