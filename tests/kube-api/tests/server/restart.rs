//! Tests a server that is killed and restarted with its state.

use paceline_kube_api::Server;
use paceline_kube_api::client::Caller;
use serde_json::{Value, json};

use super::{PODS, pod};

const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";

#[tokio::test]
async fn it_goes_on_with_what_it_held() {
    let dir = std::env::temp_dir().join(format!("paceline-kube-api-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let file = dir.join("keep");
    let address = ([127, 0, 0, 1], 0).into();
    let first = Server::start_keeping(address, &file).await.unwrap();
    let admin = Caller::new(&first, &first.token).unwrap();
    let definition = json!({ "metadata": { "name": "things.x.dev" }, "spec": {
        "group": "x.dev", "scope": "Cluster", "names": { "kind": "Thing", "plural": "things" },
        "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": { "type": "object" } } }] } });
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    assert_eq!(admin.post(definitions, &definition).await.unwrap().0, 201);
    let things = "/apis/x.dev/v1/things";
    admin
        .post(things, &json!({ "metadata": { "name": "a" } }))
        .await
        .unwrap();
    let (_, job) = admin
        .post(JOBS, &json!({ "metadata": { "name": "j" } }))
        .await
        .unwrap();
    let mut owned = pod("p", "");
    owned["metadata"]["ownerReferences"] =
        json!([{ "apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": job["metadata"]["uid"] }]);
    assert_eq!(admin.post(PODS, &owned).await.unwrap().0, 201);
    admin.post(PODS, &pod("gone", "")).await.unwrap();
    admin.delete(&format!("{PODS}/gone"), &Value::Null).await.unwrap();
    // Creates a pod that is terminating and that its kubelet has not finished yet.
    first.cluster.make_trouble(&json!({ "kubelet_ms": 600_000 }));
    admin.post(PODS, &pod("ending", "n1")).await.unwrap();
    admin
        .delete(&format!("{PODS}/ending"), &Value::Null)
        .await
        .unwrap();
    let token = admin.token("default", "someone", &json!({})).await.unwrap();
    let (_, before) = admin.get(PODS).await.unwrap();
    drop(first);

    let second = Server::start_keeping(address, &file).await.unwrap();
    let admin = Caller::new(&second, &second.token).unwrap();
    let names = |list: &Value| -> Vec<String> {
        let items = list["items"].as_array().unwrap().iter();
        items
            .map(|item| item["metadata"]["name"].as_str().unwrap().to_owned())
            .collect()
    };
    let began = std::time::Instant::now();
    while names(&admin.get(PODS).await.unwrap().1) != ["p"] {
        assert!(
            began.elapsed() < super::PATIENCE,
            "kubelets finish what they were at"
        );
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(admin.get(&format!("{things}/a")).await.unwrap().0, 200);
    let someone = Caller::new(&second, &token).unwrap();
    assert_eq!(
        someone.get(PODS).await.unwrap().0,
        403,
        "his token is known, and may nothing"
    );
    // Changes from before the restart are not available.
    let version = before["metadata"]["resourceVersion"].as_str().unwrap();
    let number = |version: &str| version.parse::<u64>().unwrap();
    second.cluster.store().since(number(version) - 1).unwrap_err();
    let (_, after) = admin.get(PODS).await.unwrap();
    assert!(number(after["metadata"]["resourceVersion"].as_str().unwrap()) > number(version));
    // Owners must still be known.
    admin.delete(&format!("{JOBS}/j"), &Value::Null).await.unwrap();
    assert_eq!(admin.get(&format!("{PODS}/p")).await.unwrap().0, 404);
    // A third server must have the changes of the second.
    drop(second);
    let third = Server::start_keeping(address, &file).await.unwrap();
    let admin = Caller::new(&third, &third.token).unwrap();
    assert_eq!(names(&admin.get(PODS).await.unwrap().1), Vec::<String>::new());
    std::fs::remove_dir_all(&dir).unwrap();
}
