//! Tests pods that report to the remediator: the remediator's address, the token, and the CA, including changes of the
//! CA. Also tests the choice of the training container.

use std::time::{Duration, Instant};

use paceline_inject::presence::{Presence, presence};
use serde_json::{Value, json};

use crate::world::{Operator, PATIENCE, PODS, World};

const URL: &str = "https://paceline-remediator.paceline.svc/verdicts";
const PLACE: &str = "/api/v1/namespaces/ml/configmaps/paceline-remediator-ca";

/// Returns a CA that is used nowhere else, in PEM.
fn authority(name: &str) -> String {
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.self_signed(&key).unwrap().pem()
}

async fn until_given(world: &World, wanted: &str) {
    let began = Instant::now();
    loop {
        let (code, map) = world.admin.get(PLACE).await.unwrap();
        if code == 200 && map["data"]["ca.crt"] == wanted {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "{code} {map}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// GPU slices (MIG) have resource names of their own. The container without slices comes first here, and must not be
/// chosen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_slices_of_gpus_trains() {
    let world = World::begin().await;
    let operator = Operator::start(&world, &[]).await;
    world.serve(&[&operator]).await;
    let slices = json!({ "limits": { "nvidia.com/mig-1g.10gb": "1" } });
    for mode in ["sidecar", "wrap"] {
        let (code, pod) = world
            .pod(mode, |pod| {
                pod["metadata"]["labels"]["paceline.dev/inject"] = json!(mode);
                pod["spec"]["containers"] = json!([
                    { "name": "shell", "image": "i", "command": ["sleep"] },
                    { "name": "train", "image": "i", "command": ["train"], "resources": slices },
                ]);
            })
            .await;
        assert_eq!((code, presence(&pod)), (201, Presence::Whole), "{pod}");
        let containers = &pod["spec"]["containers"];
        assert_eq!(containers[0]["env"], Value::Null, "{pod}");
        let rings = containers[1]["volumeMounts"].as_array().unwrap();
        assert!(!rings.is_empty(), "{pod}");
        assert_eq!(
            containers[1]["resources"]["limits"]["nvidia.com/mig-1g.10gb"],
            "1"
        );
        let ours = pod["spec"]["initContainers"].to_string();
        assert!(!ours.contains("nvidia.com"), "a slice is the trainer's: {ours}");
    }
    assert_eq!(operator.end(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_tell_the_remediator_and_follow_its_authority() {
    let world = World::begin().await;
    let file = world.path("ca.crt");
    let words = ["--remediator", URL, "--remediator-ca", file.to_str().unwrap()];
    let operator = Operator::start(&world, &words).await;
    world.serve(&[&operator]).await;
    let author = json!([{ "name": "PACELINE_NOTIFY", "value": "alertmanager=http://am:9093" }]);
    let (code, pod) = world
        .pod("a", |pod| {
            pod["spec"]["automountServiceAccountToken"] = json!(false);
            pod["spec"]["containers"][0]["env"] = author.clone();
        })
        .await;
    assert_eq!(code, 201, "{pod}");
    let sidecar = &pod["spec"]["initContainers"][1];
    let mut env = sidecar["env"].as_array().unwrap().iter();
    let notify = env.find(|entry| entry["name"] == "PACELINE_NOTIFY").unwrap();
    let wanted = format!(
        "alertmanager=http://am:9093 webhook={URL},bearer=file:/paceline/remediator/token,ca=file:/paceline/remediator/ca.crt"
    );
    assert_eq!(notify["value"], wanted.as_str());
    let (_, again) = world.admin.get(&format!("{PODS}/a")).await.unwrap();
    assert_eq!(
        again["spec"]["containers"][0]["env"][0], author[0],
        "the trainer's own stays"
    );
    // The file does not exist yet, and nothing waits for it. It is then created and later changed.
    assert_eq!(world.admin.get(PLACE).await.unwrap().0, 404);
    for name in ["first", "second"] {
        let ca = authority(name);
        std::fs::write(&file, &ca).unwrap();
        until_given(&world, &ca).await;
    }
    // A file without a certificate changes nothing. A deleted ConfigMap is restored at the next change of the file.
    let before = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, "none").unwrap();
    operator.until_said("the CA of the remediator is unknown").await;
    until_given(&world, &before).await;
    world.admin.delete(PLACE, &Value::Null).await.unwrap();
    let ca = authority("third");
    std::fs::write(&file, &ca).unwrap();
    until_given(&world, &ca).await;
    let page = operator.page("/metrics").await;
    assert!(
        page.contains("paceline_injector_authorities_total{result=\"written\"}"),
        "{page}"
    );
    assert_eq!(operator.end(), Some(0));
}
