//! Tests the webhook as an API server uses it, over TLS with persistent connections, during a change of its certificate
//! and during a shutdown.

#![allow(clippy::unwrap_used, missing_docs)] // If a test cannot continue, it fails.

mod client;

use std::time::Duration;

use axum::http::StatusCode;
use client::{Caller, Webhook, question, write_certificate};

const NAME: &str = "paceline.paceline.svc";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_is_answered_on_a_connection_that_stays() {
    let webhook = Webhook::start(Some(NAME), &[]).await;
    webhook.until_ready().await;
    let mut caller = Caller::connect(webhook.port, &webhook.ca(), NAME).await.unwrap();
    for number in 0..3 {
        let answer = caller.review(&question(number)).await;
        assert_eq!(answer["response"]["uid"], format!("u-{number}"));
        assert_eq!(answer["response"]["patchType"], "JSONPatch");
    }
    // Header and body must arrive in one segment. With two, Nagle's algorithm and delayed acknowledgments would add
    // latency.
    let (status, _, pieces) = caller.ask("/inject", &question(4)).await.unwrap();
    assert_eq!((status, pieces), (200, 1));
    assert_eq!(caller.ask("/inject", b"{}").await.unwrap().0, 400);
    assert_eq!(caller.ask("/other", b"{}").await.unwrap().0, 404);
    let page = webhook.page("/metrics").await.1;
    for line in [
        r#"paceline_webhook_reviews_total{dry_run="false",outcome="injected",reason="sidecar"} 4"#,
        "paceline_webhook_malformed_total 1",
        "paceline_webhook_seconds_count 4",
        "paceline_webhook_connections 1",
    ] {
        assert!(page.contains(line), "{line}: {page}");
    }
    webhook.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_too_large_or_no_tls_hurts_nobody_else() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let webhook = Webhook::start(Some(NAME), &[]).await;
    webhook.until_ready().await;
    let mut plain = tokio::net::TcpStream::connect(("127.0.0.1", webhook.port))
        .await
        .unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut rest = Vec::new();
    let _ = plain.read_to_end(&mut rest).await;
    let mut silent = Vec::new();
    for _ in 0..50 {
        silent.push(
            tokio::net::TcpStream::connect(("127.0.0.1", webhook.port))
                .await
                .unwrap(),
        );
    }
    let mut large = Caller::connect(webhook.port, &webhook.ca(), NAME).await.unwrap();
    let answer = large.ask("/inject", &vec![b' '; 9 << 20]).await;
    assert!(answer.is_err() || answer.unwrap().0 == 413);
    let mut caller = Caller::connect(webhook.port, &webhook.ca(), NAME).await.unwrap();
    caller.review(&question(1)).await;
    webhook.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_certificate_changes_under_load_and_nobody_is_turned_away() {
    let webhook = Webhook::start(Some(NAME), &[]).await;
    webhook.until_ready().await;
    let (port, old) = (webhook.port, webhook.dir.path().join("old.crt"));
    std::fs::copy(webhook.ca(), &old).unwrap();
    // This API server's caBundle contains both certificates, as during a rotation.
    let mut stays = Caller::connect(port, &old, NAME).await.unwrap();
    // Only one file of the pair is replaced, so the old certificate stays in use.
    std::fs::write(webhook.dir.path().join("tls.key"), "none").unwrap();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    Caller::connect(port, &old, NAME)
        .await
        .unwrap()
        .review(&question(1))
        .await;
    write_certificate(webhook.dir.path(), NAME);
    let new = webhook.ca();
    let mut tried = 0;
    loop {
        stays.review(&question(tried)).await;
        // The old certificate is tried first, because the certificate may change between the two attempts.
        let is_old = Caller::connect(port, &old, NAME).await.is_ok();
        let is_new = Caller::connect(port, &new, NAME).await.is_ok();
        assert!(is_new || is_old, "neither is shown");
        if is_new && !is_old {
            break;
        }
        tried += 1;
        assert!(tried < 3000, "the new certificate is never shown");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Caller::connect(port, &new, NAME)
        .await
        .unwrap()
        .review(&question(1))
        .await;
    let page = webhook.page("/metrics").await.1;
    assert!(
        page.contains(r#"certificate_reloads_total{result="ok"} 2"#),
        "{page}"
    );
    assert!(
        page.contains(r#"certificate_reloads_total{result="error"} 1"#),
        "{page}"
    );
    webhook.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_ready_when_the_certificate_has_come() {
    let webhook = Webhook::start(None, &[]).await;
    assert_eq!(webhook.page("/readyz").await.0, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(webhook.page("/healthz").await.0, StatusCode::OK);
    write_certificate(webhook.dir.path(), NAME);
    webhook.until_ready().await;
    webhook.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_the_end_connections_are_closed_in_order() {
    let webhook = Webhook::start(Some(NAME), &[]).await;
    webhook.until_ready().await;
    let mut caller = Caller::connect(webhook.port, &webhook.ca(), NAME).await.unwrap();
    caller.review(&question(1)).await;
    webhook.end().await;
    // The server has closed the connection normally, and the port is closed.
    assert!(caller.ask("/inject", &question(2)).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn before_the_end_it_says_so_and_answers_on() {
    let mut webhook = Webhook::start(Some(NAME), &["--exclude", "ml", "--drain", "2"]).await;
    webhook.until_ready().await;
    webhook.ask_to_end();
    while webhook.page("/readyz").await.0 == StatusCode::OK {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut caller = Caller::connect(webhook.port, &webhook.ca(), NAME).await.unwrap();
    let answer = caller.review(&question(1)).await;
    assert_eq!(answer["response"]["auditAnnotations"]["reason"], "namespace");
    webhook.ended().await;
}
