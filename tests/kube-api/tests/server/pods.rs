//! Tests evictions, and tokens bound to a pod.

use super::*;

#[tokio::test]
async fn evictions_have_each_answer() {
    let (server, admin) = begin().await;
    server.cluster.make_trouble(&json!({ "kubelet_ms": 0 }));
    let evict = async |name: &str, uid: &str| {
        let options = if uid.is_empty() {
            Value::Null
        } else {
            json!({ "preconditions": { "uid": uid } })
        };
        let body = json!({ "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": name }, "deleteOptions": options });
        admin
            .post(&format!("{PODS}/{name}/eviction"), &body)
            .await
            .unwrap()
    };
    assert_eq!(evict("a", "").await.0, 404);
    for name in ["a", "b"] {
        admin.post(PODS, &pod(name, "n")).await.unwrap();
    }
    let mut waiting = pod("waiting", "");
    waiting["status"] = json!({ "phase": "Pending" });
    admin.post(PODS, &waiting).await.unwrap();
    assert_eq!(evict("a", "wrong").await.0, 409);
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    let budget = |name: &str| json!({ "metadata": { "name": name }, "spec": { "minAvailable": 2, "selector": { "matchLabels": { "app": "x" } } } });
    admin.post(budgets, &budget("one")).await.unwrap();
    let (code, refused) = evict("a", "").await;
    assert_eq!(
        (code, &refused["details"]["causes"][0]["reason"]),
        (429, &json!("DisruptionBudget"))
    );
    assert!(
        refused["details"]["causes"][0]["message"]
            .as_str()
            .unwrap()
            .contains("disruption budget one")
    );
    assert_eq!(
        evict("waiting", "").await.0,
        201,
        "what does not run yet passes budgets"
    );
    let mut over = pod("over", "n");
    over["status"] = json!({ "phase": "Succeeded" });
    let mut leaving = pod("leaving", "n");
    leaving["metadata"]["finalizers"] = json!(["test/held"]);
    for pod in [over, leaving] {
        admin.post(PODS, &pod).await.unwrap();
    }
    admin
        .delete(&format!("{PODS}/leaving"), &Value::Null)
        .await
        .unwrap();
    for name in ["over", "leaving"] {
        assert_eq!(evict(name, "").await.0, 201, "{name} passes budgets");
    }
    admin.post(budgets, &budget("two")).await.unwrap();
    assert_eq!(evict("a", "").await.0, 500);
    for name in ["one", "two"] {
        admin
            .delete(&format!("{budgets}/{name}"), &Value::Null)
            .await
            .unwrap();
    }
    assert_eq!(evict("a", "").await.0, 201);
    let began = std::time::Instant::now();
    while admin.get(&format!("{PODS}/a")).await.unwrap().0 != 404 {
        assert!(began.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    server.cluster.make_trouble(&json!({ "dead_nodes": ["n"] }));
    evict("b", "").await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let (_, stays) = admin.get(&format!("{PODS}/b")).await.unwrap();
    assert!(
        stays["metadata"]["deletionTimestamp"].is_string(),
        "nobody ends it on a dead node"
    );
    assert_eq!(stays["status"]["conditions"][1]["type"], "DisruptionTarget");
    admin
        .delete(&format!("{PODS}/b"), &json!({ "gracePeriodSeconds": 0 }))
        .await
        .unwrap();
    assert_eq!(admin.get(&format!("{PODS}/b")).await.unwrap().0, 404);
}

#[tokio::test]
async fn a_pods_token_tells_its_node_and_ends_with_it() {
    let (server, admin) = begin().await;
    admin.post(PODS, &pod("a", "node-7")).await.unwrap();
    let spec = json!({ "audiences": ["paceline"], "boundObjectRef": { "kind": "Pod", "name": "a" } });
    let token = admin.token("default", "bot", &spec).await.unwrap();
    let review = async |audience: &str| {
        let review = json!({ "spec": { "token": token, "audiences": [audience] } });
        admin
            .post("/apis/authentication.k8s.io/v1/tokenreviews", &review)
            .await
            .unwrap()
            .1["status"]
            .clone()
    };
    let good = review("paceline").await;
    assert_eq!(good["authenticated"], true);
    assert_eq!(
        good["user"]["extra"]["authentication.kubernetes.io/node-name"][0],
        "node-7"
    );
    assert_eq!(review("other").await["authenticated"], false);
    server.cluster.make_trouble(&json!({ "kubelet_ms": 0 }));
    admin
        .delete(&format!("{PODS}/a"), &json!({ "gracePeriodSeconds": 0 }))
        .await
        .unwrap();
    assert_eq!(review("paceline").await["authenticated"], false);
}
