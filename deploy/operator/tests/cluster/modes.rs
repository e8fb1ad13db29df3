//! Tests a change of the source of certificates while the operator runs. Old and new replicas serve side by side,
//! regardless of which one holds the Lease, and the API server trusts both all the time.

use std::collections::BTreeSet;
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use paceline_inject::presence::{Presence, presence};
use paceline_operator::certificate::trust::{Authority, authorities};
use serde_json::{Value, json};

use crate::world::{CONFIGURATIONS, NAME, Operator, PATIENCE, World};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/paceline/leases";

/// Writes an authority and its certificate for the webhook's Service to files. Returns the authority and the program's
/// arguments for the files.
fn given(world: &World) -> (BTreeSet<Authority>, Vec<String>) {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, "the site's");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca = params.self_signed(&key).unwrap().pem();
    let issuer = rcgen::Issuer::new(params, key);
    let own = rcgen::KeyPair::generate().unwrap();
    let leaf = rcgen::CertificateParams::new([format!("{NAME}.paceline.svc")]).unwrap();
    let cert = leaf.signed_by(&own, &issuer).unwrap().pem();
    let mut words = Vec::new();
    for (flag, text) in [
        ("--cert", cert),
        ("--key", own.serialize_pem()),
        ("--ca", ca.clone()),
    ] {
        let file = world.path(flag.trim_start_matches('-'));
        std::fs::write(&file, text).unwrap();
        words.push(format!("{flag}={}", file.display()));
    }
    (authorities(&ca), words)
}

async fn trusted(world: &World) -> BTreeSet<Authority> {
    let path = format!("{CONFIGURATIONS}/{NAME}");
    let (_, configuration) = world.admin.get(&path).await.unwrap();
    let bundle = configuration["webhooks"][0]["clientConfig"]["caBundle"].as_str();
    let text = STANDARD.decode(bundle.unwrap_or_default()).unwrap();
    authorities(&String::from_utf8(text).unwrap())
}

/// Checks that each operator injects a pod. The failurePolicy is Fail, so a webhook that is not trusted fails the
/// request.
async fn answers(world: &World, operators: &[&Operator], name: &str) {
    for (index, operator) in operators.iter().enumerate() {
        world.serve(&[operator]).await;
        let (code, pod) = world.pod(&format!("{name}-{index}"), |_| {}).await;
        assert_eq!(
            (code, presence(&pod)),
            (201, Presence::Whole),
            "{name} {index}: {pod}"
        );
    }
}

/// Another replica holds the Lease and does not end before these replicas are ready. The Secret is empty, as the chart
/// creates it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_not_in_charge_is_ready_all_the_same() {
    let world = World::begin().await;
    let spec = json!({ "holderIdentity": "of before", "leaseDurationSeconds": 3600 });
    let lease = json!({ "metadata": { "name": NAME }, "spec": spec });
    assert_eq!(world.admin.post(LEASES, &lease).await.unwrap().0, 201);
    let empty = json!({ "metadata": { "name": crate::world::SECRET } });
    world
        .admin
        .post("/api/v1/namespaces/paceline/secrets", &empty)
        .await
        .unwrap();
    let (theirs, _) = given(&world);
    let ca = std::fs::read_to_string(world.path("ca")).unwrap();
    let path = format!("{CONFIGURATIONS}/{NAME}");
    let (_, mut configuration) = world.admin.get(&path).await.unwrap();
    configuration["webhooks"][0]["clientConfig"]["caBundle"] = json!(STANDARD.encode(ca));
    assert_eq!(world.admin.put(&path, &configuration).await.unwrap().0, 200);
    // Both replicas start at the same time, and only one of the certificates that they create is kept.
    let (first, second) = tokio::join!(Operator::start(&world, &[]), Operator::start(&world, &[]));
    for operator in [&first, &second] {
        operator.until("/metrics", "paceline_injector_leader 0").await;
    }
    answers(&world, &[&first, &second], "both").await;
    let all = trusted(&world).await;
    assert!(
        all.len() == 2 && all.is_superset(&theirs),
        "{} authorities",
        all.len()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_given_to_self_and_back() {
    let world = World::begin().await;
    let (site, words) = given(&world);
    let files: Vec<&str> = words.iter().map(String::as_str).collect();
    let more = ["--lease", "2"];
    let before = Operator::start_with(&world, &files, &more).await;
    before.until("/metrics", "paceline_injector_leader 1").await;
    answers(&world, &[&before], "given").await;
    assert_eq!(trusted(&world).await, site);

    // Tests an upgrade. The new replica becomes ready while the old one is the leader.
    let after = Operator::start(&world, &more).await;
    after.until("/metrics", "paceline_injector_leader 0").await;
    answers(&world, &[&before, &after], "upgrade").await;
    assert_eq!(before.end(), Some(0));
    after.until("/metrics", "paceline_injector_leader 1").await;
    answers(&world, &[&after], "self").await;
    let both = trusted(&world).await;
    assert!(both.len() == 2 && both.is_superset(&site));

    // Tests a rollback.
    let again = Operator::start_with(&world, &files, &more).await;
    answers(&world, &[&after, &again], "rollback").await;
    assert_eq!(after.end(), Some(0));
    again.until("/metrics", "paceline_injector_leader 1").await;
    answers(&world, &[&again], "given-again").await;
    assert!(trusted(&world).await.is_superset(&site));
}

/// An injector whose authority is not trusted cannot serve, so it must not become ready before it is trusted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_not_trusted_is_not_ready() {
    let world = World::begin().await;
    let (site, words) = given(&world);
    let files: Vec<&str> = words.iter().map(String::as_str).collect();
    let path = format!("{CONFIGURATIONS}/{NAME}");
    world.admin.delete(&path, &Value::Null).await.unwrap();
    let starts = Operator::start_with(&world, &files, &[]);
    let registers = async {
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        assert_eq!(trusted_or_none(&world).await, None);
        world.register("Fail").await;
    };
    let (operator, ()) = tokio::join!(starts, registers);
    let began = Instant::now();
    while trusted(&world).await != site {
        assert!(began.elapsed() < PATIENCE, "{}", operator.said());
    }
    assert!(
        operator
            .said()
            .contains("the authorities that callers trust: the caBundle: 404"),
        "{}",
        operator.said()
    );
    answers(&world, &[&operator], "trusted").await;
}

async fn trusted_or_none(world: &World) -> Option<BTreeSet<Authority>> {
    let (code, _) = world
        .admin
        .get(&format!("{CONFIGURATIONS}/{NAME}"))
        .await
        .unwrap();
    if code == 404 {
        None
    } else {
        Some(trusted(world).await)
    }
}
