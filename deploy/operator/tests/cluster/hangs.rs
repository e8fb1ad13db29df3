//! Tests a webhook that runs but does not respond.

use std::process::Command;
use std::time::{Duration, Instant};

use paceline_inject::presence::{Presence, presence};
use serde_json::{Value, json};

use crate::world::{CONFIGURATIONS, Operator, World};

fn signal(operator: &Operator, name: &str) {
    let id = operator.id().to_string();
    assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
}

/// Waits until all threads are stopped. On a busy machine, a thread that waits for a core continues until it handles
/// the signal.
async fn stop(operator: &Operator) {
    signal(operator, "-STOP");
    let state = |thread: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).ok()?;
        stat.rsplit_once(") ").unwrap().1.chars().next()
    };
    let threads = || std::fs::read_dir(format!("/proc/{}/task", operator.id())).unwrap();
    while !threads().all(|thread| state(thread.unwrap()) == Some('T')) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// A pod waits at most the webhook's timeout and is then created without Paceline. Its owner gets an Event when the
/// program resumes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_that_hangs_costs_a_pod_its_timeout_and_no_more() {
    let world = World::begin().await;
    let one = format!("{CONFIGURATIONS}/paceline-injector");
    world.admin.delete(&one, &Value::Null).await.unwrap();
    world.register("Ignore").await;
    let operator = Operator::start(&world, &[]).await;
    world.serve(&[&operator]).await;
    let (_, mut configuration) = world.admin.get(&one).await.unwrap();
    configuration["webhooks"][0]["timeoutSeconds"] = json!(1);
    assert_eq!(world.admin.put(&one, &configuration).await.unwrap().0, 200);
    assert_eq!(presence(&world.pod("before", |_| {}).await.1), Presence::Whole);
    stop(&operator).await;
    let began = Instant::now();
    let (code, pod) = world.pod("meanwhile", |_| {}).await;
    let took = began.elapsed();
    signal(&operator, "-CONT");
    assert_eq!((code, presence(&pod)), (201, Presence::Absent));
    // With reinvocation, the webhook would be called again if another webhook had changed the pod. That did not happen
    // here.
    assert!(
        (Duration::from_secs(1)..Duration::from_secs(4)).contains(&took),
        "{took:?}"
    );
    world.until_event("meanwhile", "not-injected").await;
    assert_eq!(presence(&world.pod("after", |_| {}).await.1), Presence::Whole);
}
