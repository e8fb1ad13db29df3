//! Serves the webhook over TLS, and health and metrics over HTTP, until the shutdown.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::certificate::{self, Certificate, Files, Look};
use crate::control::Control;
use crate::control::counts::Counts;
use crate::lease::first_end;
use crate::listener::{Counted, TlsListener, listen};
use crate::options::Options;
use crate::say;
use crate::webhook::metrics::Metrics;
use crate::webhook::review::{Rules, answer};

/// Size limit of a review. An API server accepts objects of at most 3 MiB, and a review may contain two.
const MOST_BYTES: usize = 8 << 20;
/// Limit of connections, each of which needs 26 kB. Further connections wait in the kernel. By default, an API server
/// processes 200 changes at a time and keeps 25 idle connections.
const CONNECTIONS: usize = 1024;
/// The interval of checks of the certificate files.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Time limit for requests in progress at shutdown.
const GRACE: Duration = Duration::from_secs(10);

struct App {
    rules: Rules,
    metrics: Metrics,
    certificate: Arc<Certificate>,
    /// True if callers trust the certificate. The program is not ready before that, because callers could not use it.
    is_trusted: Arc<AtomicBool>,
    is_ending: AtomicBool,
}

/// Waits for SIGTERM or SIGINT.
pub async fn asked_to_end() {
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return say("signals cannot be handled");
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// Serves until `end`, then finishes the requests in progress.
///
/// # Errors
/// Returns an error if an address cannot be bound.
pub async fn run(options: Options, end: impl Future<Output = ()>) -> anyhow::Result<()> {
    let (webhook, health) = (listen(options.listen).await?, listen(options.health).await?);
    serve(&options, webhook, health, end).await
}

/// Serves like [`run`], but on sockets that are already bound.
///
/// # Errors
/// Returns an error if TLS cannot be set up, a socket has no address, or the cluster's API server is needed and
/// unknown.
pub async fn serve(
    options: &Options,
    webhook: TcpListener,
    health: TcpListener,
    end: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let certificate = Arc::<Certificate>::default();
    let acceptor = TlsAcceptor::from(Arc::new(certificate::config(Arc::clone(&certificate))?));
    let app = Arc::new(App {
        rules: Rules {
            settings: options.settings(),
            exclude: options.exclude.clone(),
        },
        metrics: Metrics::new()?,
        certificate,
        is_trusted: Arc::new(AtomicBool::new(options.ca.is_none())),
        is_ending: AtomicBool::new(false),
    });
    say(format_args!(
        "serves https://{}/inject, and health at http://{}",
        webhook.local_addr()?,
        health.local_addr()?
    ));
    let mut tasks: Vec<_> = options
        .certificates
        .cert
        .as_deref()
        .zip(options.certificates.key.as_deref())
        .map(|(cert, key)| tokio::spawn(watch_files(Files::of(cert, key), Arc::clone(&app))))
        .into_iter()
        .collect();
    let counts = Arc::new(Counts::new(app.metrics.registry())?);
    let mut control = Control::start(options, &app.rules, &app.certificate, &app.is_trusted, &counts).await?;
    let (over, mut is_over) = watch::channel(false);
    let mut is_over_too = is_over.clone();
    let counted = Counted {
        connections: app.metrics.connections.clone(),
        handshakes_failed: app.metrics.handshakes_failed.clone(),
    };
    let tls = TlsListener::of(webhook, acceptor, CONNECTIONS, counted)?;
    let webhook = axum::serve(tls, webhook_pages(&app)).with_graceful_shutdown(async move {
        // A closed channel also means that the shutdown has begun.
        let _ = is_over.wait_for(|over| *over).await;
    });
    let health = axum::serve(health, health_pages(&app)).with_graceful_shutdown(async move {
        let _ = is_over_too.wait_for(|over| *over).await;
    });
    let webhook = tokio::spawn(webhook.into_future());
    let health = tokio::spawn(health.into_future());
    tasks.append(&mut control.tasks);
    let ended = tokio::select! {
        () = end => Ok(()),
        // End the process if a task has ended, because this leader would otherwise keep the Lease and block the other
        // replica.
        problem = first_end(&mut tasks) => Err(problem),
    };
    app.is_ending.store(true, Ordering::Relaxed);
    control.stop(tasks).await;
    sleep(Duration::from_secs(options.drain)).await;
    let _ = over.send(true);
    // Requests that are still in progress after this time get no response. The API server then continues without one.
    let _ = timeout(GRACE, webhook).await;
    health.abort();
    ended
}

async fn watch_files(mut files: Files, app: Arc<App>) {
    loop {
        match files.look(&app.certificate) {
            Look::Same => {}
            Look::New => {
                app.metrics.reloaded(true);
                say("loaded a certificate");
            }
            Look::Bad(problem) => {
                app.metrics.reloaded(false);
                say(format_args!("the certificate could not be loaded: {problem}"));
            }
        }
        sleep(LOOK_EVERY).await;
    }
}

fn webhook_pages(app: &Arc<App>) -> Router {
    Router::new()
        .route("/inject", post(inject))
        .layer(DefaultBodyLimit::max(MOST_BYTES))
        .with_state(Arc::clone(app))
}

fn health_pages(app: &Arc<App>) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(Arc::clone(app))
}

async fn inject(State(app): State<Arc<App>>, body: Bytes) -> Response {
    let began = Instant::now();
    match answer(&body, &app.rules) {
        Ok(answer) => {
            app.metrics.answered(&answer, began.elapsed());
            (
                [(header::CONTENT_TYPE, "application/json")],
                answer.review.to_string(),
            )
                .into_response()
        }
        Err(malformed) => {
            app.metrics.malformed();
            (StatusCode::BAD_REQUEST, format!("{}\n", malformed.0)).into_response()
        }
    }
}

async fn ready(State(app): State<Arc<App>>) -> Response {
    if app.is_ending.load(Ordering::Relaxed) {
        (StatusCode::SERVICE_UNAVAILABLE, "it ends\n").into_response()
    } else if !app.certificate.is_there() {
        (StatusCode::SERVICE_UNAVAILABLE, "there is no certificate yet\n").into_response()
    } else if !app.is_trusted.load(Ordering::Relaxed) {
        let says = "the API server does not trust the certificate yet\n";
        (StatusCode::SERVICE_UNAVAILABLE, says).into_response()
    } else {
        "ok\n".into_response()
    }
}

async fn metrics(State(app): State<Arc<App>>) -> Response {
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
    (kind, app.metrics.page()).into_response()
}
