//! A webhook that reverts changes of other webhooks.

use std::future::IntoFuture as _;
use std::sync::Arc;

use axum::body::Bytes;
use axum::routing::post;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use paceline_kube_api::{certificate, cluster::Cluster, door::Door};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::{CONFIGURATIONS, World};

/// Starts another webhook, whose old client does not know restartPolicy of init containers.
pub async fn hostile(world: &World, reinvocation: &str) {
    let (ca, config) = certificate::server(&["127.0.0.1"]).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let door = Door::of(listener, acceptor, Arc::new(Cluster::new("none"))).unwrap();
    let answer = async |body: Bytes| {
        let review: Value = serde_json::from_slice(&body).unwrap();
        let request = &review["request"];
        let inits = request["object"]["spec"]["initContainers"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let patch: Vec<Value> = inits
            .iter()
            .enumerate()
            .filter(|(_, container)| container["restartPolicy"].is_string())
            .map(|(at, _)| json!({ "op": "remove", "path": format!("/spec/initContainers/{at}/restartPolicy") }))
            .collect();
        let patch = STANDARD.encode(serde_json::to_vec(&patch).unwrap());

        json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "response": { "uid": request["uid"], "allowed": true, "patchType": "JSONPatch", "patch": patch } })
        .to_string()
    };
    let pages = axum::Router::new().route("/old", post(answer));
    tokio::spawn(axum::serve(door, pages).into_future());
    let webhook = json!({
        "name": "old.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Fail",
        "reinvocationPolicy": reinvocation,
        "clientConfig": { "url": format!("https://127.0.0.1:{port}/old"), "caBundle": STANDARD.encode(ca) },
        "rules": [{ "operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"] }],
    });
    let body = json!({ "metadata": { "name": "zz-old" }, "webhooks": [webhook] });
    assert_eq!(world.admin.post(CONFIGURATIONS, &body).await.unwrap().0, 201);
}
