//! 5,000 pods at once: how long an API server waits for each answer, TLS included, and what it takes. Run with
//! `cargo bench -p paceline-operator --bench burst`; the numbers are in docs/kubernetes.md.
//!
//! The callers are in this process and on the same cores, so that the webhook has what they leave.

#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)] // It is a program for a person.

#[allow(dead_code)] // The tests use the rest.
#[path = "../tests/client/mod.rs"]
mod client;

use std::time::{Duration, Instant};

use client::{Caller, Webhook, question};

const PODS: usize = 5000;
/// Questions at once: as many connections as API servers have that make pods for a few controllers.
const CALLERS: usize = 16;
const NAME: &str = "paceline.paceline.svc";

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let webhook = Webhook::start(Some(NAME), &[]).await;
        webhook.until_ready().await;
        let before = resident();
        for round in 1..=3 {
            let began = Instant::now();
            let mut times = burst(&webhook).await;
            let all = began.elapsed();
            times.sort_unstable();
            let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
            println!(
                "round {round}: {PODS} pods by {CALLERS} callers in {:.2} s; an answer p50 {:.2} ms, p99 {:.2} ms, worst {:.2} ms; resident {} kB (before {before} kB, the callers in it)",
                all.as_secs_f64(),
                at(0.5),
                at(0.99),
                at(1.0),
                resident()
            );
        }
        // Without TLS, the network and the wait for a core.
        let page = webhook.page("/metrics").await.1;
        let buckets = page
            .lines()
            .filter_map(|line| line.strip_prefix("paceline_webhook_seconds_bucket{le="));
        println!("in the webhook: {}", buckets.collect::<Vec<_>>().join(", "));
        webhook.end().await;
    });
}

async fn burst(webhook: &Webhook) -> Vec<Duration> {
    let mut callers = Vec::new();
    for number in 0..CALLERS {
        let (port, ca) = (webhook.port, webhook.ca());
        callers.push(tokio::spawn(async move {
            let mut caller = Caller::connect(port, &ca, NAME).await.unwrap();
            let mut times = Vec::new();
            for pod in (number..PODS).step_by(CALLERS) {
                let question = question(pod);
                let began = Instant::now();
                let answer = caller.ask("/inject", &question).await.unwrap();
                times.push(began.elapsed());
                assert_eq!(answer.0, 200);
            }
            times
        }));
    }
    let mut times = Vec::new();
    for caller in callers {
        times.extend(caller.await.unwrap());
    }
    assert_eq!(times.len(), PODS);
    times
}

/// kB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
