//! Creates 5,000 pods at once through an API server that calls the real program. Measures the cost of an admission and
//! of the program.
//! `cargo test --release -p paceline-operator --test burst -- --ignored --nocapture`

#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)] // The output is for people.

mod world;

use std::time::Instant;

use serde_json::{Value, json};
use world::{Operator, PATIENCE, PODS, World};

const PODS_IN_ALL: usize = 5000;
const MAKERS: usize = 16;
/// The documented memory limit, in kB.
const MOST: u64 = 40 * 1024;

fn resident(id: u32, word: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(word)).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it is for numbers, and takes a minute"]
async fn five_thousand_pods() {
    let world = World::begin().await;
    let operator = Operator::start(&world, &[]).await;
    world.serve(&[&operator]).await;
    let before = resident(operator.id(), "VmRSS:");
    let began = Instant::now();
    let mut makers = Vec::new();
    for maker in 0..MAKERS {
        let admin = world.admin.clone();
        makers.push(tokio::spawn(async move {
            for number in (maker..PODS_IN_ALL).step_by(MAKERS) {
                // The pods belong to 50 jobs of 100 pods each.
                let job = format!("j{}", number / 100);
                let pod = json!({
                    "metadata": {
                        "name": format!("p{number}"),
                        "labels": { "paceline.dev/inject": "true", "batch.kubernetes.io/job-name": job },
                        "ownerReferences": [{ "apiVersion": "x.dev/v1", "kind": "X", "name": job, "uid": job, "controller": true }],
                    },
                    "spec": { "subdomain": job, "containers": [{ "name": "t", "image": "i", "command": ["train"] }] },
                });
                assert_eq!(admin.post(PODS, &pod).await.unwrap().0, 201);
            }
        }));
    }
    for maker in makers {
        maker.await.unwrap();
    }
    let took = began.elapsed();
    for job in 0..PODS_IN_ALL / 100 {
        world.until_secret(&format!("paceline-j{job}")).await;
    }
    let told = world.server.cluster.callers.told();
    let mut times: Vec<f64> = told["ms"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_f64)
        .collect();
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    println!(
        "{PODS_IN_ALL} pods in {:.1} s; an admission p50 {:.1} ms, p99 {:.1} ms, worst {:.1} ms; {} handshakes; resident {} kB, most {} kB (before {before} kB)",
        took.as_secs_f64(),
        at(0.5),
        at(0.99),
        at(1.0),
        told["handshakes"],
        resident(operator.id(), "VmRSS:"),
        resident(operator.id(), "VmHWM:"),
    );
    assert_eq!((told["failed"].as_u64(), times.len()), (Some(0), PODS_IN_ALL));
    assert!(resident(operator.id(), "VmHWM:") <= MOST);
    // A new replica reads all of the pods.
    let second = Operator::start(&world, &[]).await;
    let began = Instant::now();
    drop(operator);
    second
        .until(
            "/metrics",
            "paceline_injector_secrets_total{result=\"exists\"} 50",
        )
        .await;
    println!(
        "another replica has seen all after {:.1} s, most {} kB",
        began.elapsed().as_secs_f64(),
        resident(second.id(), "VmHWM:")
    );
    assert!(began.elapsed() < PATIENCE && resident(second.id(), "VmHWM:") <= MOST);
}
