//! Tests the server with kube's client.

#![allow(clippy::unwrap_used, missing_docs)] // A test that cannot go on fails.

mod pods;
mod restart;

use std::time::Duration;

use axum::http::Method;
use futures_util::{StreamExt as _, TryStreamExt as _, pin_mut};
use kube::api::{Api, DynamicObject, WatchEvent, WatchParams};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use kube::runtime::watcher;
use paceline_kube_api::Server;
use paceline_kube_api::client::Caller;
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);
const PODS: &str = "/api/v1/namespaces/default/pods";

async fn begin() -> (Server, Caller) {
    let server = Server::start(([127, 0, 0, 1], 0).into()).await.unwrap();
    let admin = Caller::new(&server, &server.token).unwrap();
    (server, admin)
}

fn pod(name: &str, node: &str) -> Value {
    json!({
        "metadata": { "name": name, "labels": { "app": "x" } },
        "spec": { "nodeName": node, "containers": [{ "name": "c", "image": "i" }] },
        "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] },
    })
}

fn watched(admin: &Caller) -> Api<DynamicObject> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Pod"));
    Api::namespaced_with(admin.client.clone(), "default", &kind)
}

#[tokio::test]
async fn objects_are_made_changed_and_taken_away() {
    let (_server, admin) = begin().await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let (code, made) = admin
        .post(maps, &json!({ "metadata": { "generateName": "m-" } }))
        .await
        .unwrap();
    assert_eq!(code, 201);
    let name = made["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("m-") && made["metadata"]["uid"].as_str().unwrap().len() == 36);
    let path = format!("{maps}/{name}");
    let (code, dry) = admin
        .merge(&format!("{path}?dryRun=All"), &json!({ "data": { "a": "1" } }))
        .await
        .unwrap();
    assert_eq!((code, &dry["data"]["a"]), (200, &json!("1")));
    assert_eq!(admin.get(&path).await.unwrap().1["data"], Value::Null);
    let (_, changed) = admin
        .merge(&path, &json!({ "data": { "a": "1" } }))
        .await
        .unwrap();
    let (code, stale) = admin.put(&path, &made).await.unwrap();
    assert_eq!((code, &stale["reason"]), (409, &json!("Conflict")));
    assert_eq!(admin.put(&path, &changed).await.unwrap().0, 200);
    let patch = br#"[{"op":"replace","path":"/data/a","value":"2"}]"#.to_vec();
    let patched = admin
        .ask(Method::PATCH, &path, "application/json-patch+json", patch)
        .await;
    assert_eq!(patched.unwrap().1["data"]["a"], "2");
    let wrong = json!({ "preconditions": { "uid": "other" } });
    assert_eq!(admin.delete(&path, &wrong).await.unwrap().0, 409);
    assert_eq!(admin.delete(&path, &Value::Null).await.unwrap().0, 200);
    assert_eq!(admin.get(&path).await.unwrap().0, 404);
    assert_eq!(admin.get("/apis/none.dev/v1/things").await.unwrap().0, 404);
    let elsewhere = admin
        .post(
            "/api/v1/namespaces/none/configmaps",
            &json!({ "metadata": { "name": "a" } }),
        )
        .await;
    assert_eq!(elsewhere.unwrap().0, 404);
}

#[tokio::test]
async fn lists_come_in_pages_and_by_selectors() {
    let (server, admin) = begin().await;
    for number in 0..5 {
        admin
            .post(PODS, &pod(&format!("p{number}"), &format!("n{}", number % 2)))
            .await
            .unwrap();
    }
    let (_, first) = admin.get(&format!("{PODS}?limit=2")).await.unwrap();
    let token = first["metadata"]["continue"].as_str().unwrap();
    let (_, second) = admin
        .get(&format!("/api/v1/pods?limit=2&continue={token}"))
        .await
        .unwrap();
    let names = |list: &Value| -> Vec<String> {
        list["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["metadata"]["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(
        (names(&first), names(&second)),
        (vec!["p0".into(), "p1".into()], vec!["p2".into(), "p3".into()])
    );
    let (_, on_node) = admin
        .get("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1&labelSelector=app%20in%20(x)")
        .await
        .unwrap();
    assert_eq!(names(&on_node), ["p1", "p3"]);
    admin.post(PODS, &pod("later", "n0")).await.unwrap();
    server.cluster.store().compact();
    let (code, old) = admin
        .get(&format!("{PODS}?limit=2&continue={token}"))
        .await
        .unwrap();
    assert_eq!((code, &old["reason"]), (410, &json!("Expired")));
}

#[tokio::test]
async fn a_watch_tells_what_happens_and_says_when_it_is_too_old() {
    let (server, admin) = begin().await;
    let start = admin.get(PODS).await.unwrap().1["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .to_owned();
    let params = WatchParams::default().labels("app=x");
    let stream = watched(&admin).watch(&params, &start).await.unwrap();
    pin_mut!(stream);
    let path = format!("{PODS}/a");
    admin.post(PODS, &pod("a", "n")).await.unwrap();
    admin
        .merge(&path, &json!({ "metadata": { "annotations": { "k": "v" } } }))
        .await
        .unwrap();
    // For the watch, an object that the selector no longer matches counts as deleted.
    admin
        .merge(&path, &json!({ "metadata": { "labels": { "app": "y" } } }))
        .await
        .unwrap();
    let mut words = Vec::new();
    while words.len() < 3 {
        let event = tokio::time::timeout(PATIENCE, stream.try_next())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        match event {
            WatchEvent::Added(_) => words.push("added"),
            WatchEvent::Modified(_) => words.push("modified"),
            WatchEvent::Deleted(_) => words.push("deleted"),
            _ => {}
        }
    }
    assert_eq!(words, ["added", "modified", "deleted"]);
    server.cluster.store().compact();
    let stream = watched(&admin).watch(&params, &start).await.unwrap();
    pin_mut!(stream);
    match stream.try_next().await.unwrap().unwrap() {
        WatchEvent::Error(status) => assert_eq!(status.code, 410),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn kubes_watcher_goes_on_after_the_server_was_away() {
    let (server, admin) = begin().await;
    let stream = watcher(watched(&admin), watcher::Config::default());
    pin_mut!(stream);
    admin.post(PODS, &pod("before", "n")).await.unwrap();
    let mut seen = Vec::new();
    let mut is_told = false;
    while !(seen.contains(&"before".to_owned()) && seen.contains(&"after".to_owned())) {
        match tokio::time::timeout(PATIENCE, stream.next())
            .await
            .unwrap()
            .unwrap()
        {
            Ok(watcher::Event::Apply(pod) | watcher::Event::InitApply(pod)) => {
                seen.push(pod.metadata.name.unwrap())
            }
            Ok(_) => {}
            Err(_) => is_told = true,
        }
        if seen.len() == 1 && !is_told {
            server
                .cluster
                .make_trouble(&json!({ "away_ms": 300, "compact": true }));
            assert!(admin.get(PODS).await.is_err(), "it is away");
            let mut made = 0;
            while made != 201 {
                tokio::time::sleep(Duration::from_millis(50)).await;
                made = admin
                    .post(PODS, &pod("after", "n"))
                    .await
                    .map_or(0, |answer| answer.0);
            }
            is_told = true;
        }
    }
}

#[tokio::test]
async fn rights_follow_from_roles() {
    let (server, admin) = begin().await;
    let token = admin.token("default", "bot", &json!({})).await.unwrap();
    let bot = Caller::new(&server, &token).unwrap();
    let (code, refused) = bot.get(PODS).await.unwrap();
    assert_eq!((code, &refused["reason"]), (403, &json!("Forbidden")));
    assert!(
        refused["message"]
            .as_str()
            .unwrap()
            .contains("system:serviceaccount:default:bot"),
        "{refused}"
    );
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let role = json!({ "metadata": { "name": "r" }, "rules": [{ "apiGroups": [""], "resources": ["pods"], "verbs": ["list"] }] });
    admin.post(&format!("{rbac}/clusterroles"), &role).await.unwrap();
    let binding = json!({
        "metadata": { "name": "b" }, "roleRef": { "kind": "ClusterRole", "name": "r" },
        "subjects": [{ "kind": "ServiceAccount", "name": "bot", "namespace": "default" }],
    });
    admin
        .post(&format!("{rbac}/namespaces/default/rolebindings"), &binding)
        .await
        .unwrap();
    assert_eq!(bot.get(PODS).await.unwrap().0, 200);
    assert_eq!(
        bot.get("/api/v1/pods").await.unwrap().0,
        403,
        "a RoleBinding holds in its namespace"
    );
    assert_eq!(bot.post(PODS, &pod("a", "n")).await.unwrap().0, 403);
    let nobody = Caller::new(&server, "wrong").unwrap();
    assert_eq!(nobody.get(PODS).await.unwrap().0, 401);
    let review = json!({ "spec": { "user": "system:serviceaccount:default:bot", "resourceAttributes": { "verb": "list", "resource": "pods", "namespace": "default" } } });
    let reviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    assert_eq!(
        admin.post(reviews, &review).await.unwrap().1["status"]["allowed"],
        true
    );
}

#[tokio::test]
async fn definitions_owners_finalizers_and_status() {
    let (_server, admin) = begin().await;
    let any = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let definition = json!({ "metadata": { "name": "things.x.dev" }, "spec": {
        "group": "x.dev", "scope": "Cluster", "names": { "plural": "things", "kind": "Thing" },
        "versions": [{ "name": "v1", "served": true, "storage": true, "subresources": { "status": {} },
            "schema": { "openAPIV3Schema": { "type": "object", "properties": { "spec": any, "status": any } } } }],
    } });
    let things = "/apis/x.dev/v1/things";
    assert_eq!(admin.get(things).await.unwrap().0, 404);
    admin
        .post(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            &definition,
        )
        .await
        .unwrap();
    let thing = json!({ "metadata": { "name": "t", "finalizers": ["x.dev/wait"] }, "spec": { "a": 1 }, "status": { "b": 1 }, "other": 1 });
    let (_, made) = admin.post(things, &thing).await.unwrap();
    assert_eq!(
        (&made["kind"], &made["status"]),
        (&json!("Thing"), &json!({})),
        "status has its own door"
    );
    assert_eq!(made.get("other"), None, "its schema has none");
    let path = format!("{things}/t");
    let (_, set) = admin
        .merge(
            &format!("{path}/status"),
            &json!({ "status": { "b": 2 }, "spec": { "a": 9 } }),
        )
        .await
        .unwrap();
    assert_eq!((&set["status"]["b"], &set["spec"]["a"]), (&json!(2), &json!(1)));
    let owner =
        json!([{ "apiVersion": "x.dev/v1", "kind": "Thing", "name": "t", "uid": made["metadata"]["uid"] }]);
    let map = json!({ "metadata": { "name": "owned", "ownerReferences": owner } });
    admin
        .post("/api/v1/namespaces/default/configmaps", &map)
        .await
        .unwrap();
    admin.delete(&path, &Value::Null).await.unwrap();
    assert!(admin.get(&path).await.unwrap().1["metadata"]["deletionTimestamp"].is_string());
    admin
        .merge(&path, &json!({ "metadata": { "finalizers": null } }))
        .await
        .unwrap();
    assert_eq!(admin.get(&path).await.unwrap().0, 404);
    assert_eq!(
        admin
            .get("/api/v1/namespaces/default/configmaps/owned")
            .await
            .unwrap()
            .0,
        404,
        "it goes with its owner"
    );
}

#[tokio::test]
async fn trouble_comes_when_it_is_asked_for() {
    let (server, admin) = begin().await;
    let nodes = "/api/v1/nodes";
    admin
        .post(nodes, &json!({ "metadata": { "name": "n" } }))
        .await
        .unwrap();
    admin
        .post("/_test/trouble", &json!({ "conflicts": { "nodes": 1 } }))
        .await
        .unwrap();
    let cordon = json!({ "spec": { "unschedulable": true } });
    assert_eq!(admin.merge(&format!("{nodes}/n"), &cordon).await.unwrap().0, 409);
    assert_eq!(admin.merge(&format!("{nodes}/n"), &cordon).await.unwrap().0, 200);
    let (_, audit) = admin.get("/_test/audit").await.unwrap();
    let of = |code: u16| {
        audit
            .as_array()
            .unwrap()
            .iter()
            .any(|line| line["verb"] == "patch" && line["code"] == code)
    };
    assert!(of(409) && of(200), "{audit}");
    let token = admin.token("default", "bot", &json!({})).await.unwrap();
    let bot = Caller::new(&server, &token).unwrap();
    assert_eq!(bot.post("/_test/trouble", &json!({})).await.unwrap().0, 403);
}
