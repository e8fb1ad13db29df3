//! Connections: the webhook by TLS, health and metrics without, both until somebody asks for the end.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::certificate::{self, Certificate, Files, Look};
use crate::metrics::Metrics;
use crate::options::Options;
use crate::review::{Rules, answer};
use crate::say;

mod visit;

use visit::Visit;

/// An API server takes objects of 3 MiB at most; a review may have two.
const MOST_BYTES: usize = 8 << 20;
/// Connections at once; the next one waits in the kernel.
const CONNECTIONS: usize = 2048;
/// TLS is agreed on within this.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// The certificate's files are looked at so often.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// When there are no descriptors left, the next look.
const BREATH: Duration = Duration::from_millis(50);
/// Answers that are under way at the end have so long.
const GRACE: Duration = Duration::from_secs(10);

struct App {
    rules: Rules,
    metrics: Metrics,
    certificate: Arc<Certificate>,
    is_ending: AtomicBool,
}

/// Ends with SIGTERM or SIGINT.
pub async fn asked_to_end() {
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return say("signals are not heard");
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// Serves until `end`, then until what is under way is answered.
///
/// # Errors
/// When an address cannot be listened at.
pub async fn run(options: Options, end: impl Future<Output = ()>) -> anyhow::Result<()> {
    let bind = async |address: SocketAddr| {
        TcpListener::bind(address)
            .await
            .with_context(|| address.to_string())
    };
    let (webhook, health) = (bind(options.listen).await?, bind(options.health).await?);
    serve(&options, webhook, health, end).await
}

/// The same with sockets that listen already.
///
/// # Errors
/// When TLS cannot be set up, or a socket tells no address.
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
        is_ending: AtomicBool::new(false),
    });
    say(format_args!(
        "serves https://{}/inject, and health at http://{}",
        webhook.local_addr()?,
        health.local_addr()?
    ));
    let watching = tokio::spawn(watch_files(
        Files::of(&options.cert, &options.key),
        Arc::clone(&app),
    ));
    let (over, mut is_over) = watch::channel(false);
    let mut is_over_too = is_over.clone();
    let visitors = Visitors::of(webhook, acceptor, &app)?;
    let webhook = axum::serve(visitors, webhook_pages(&app)).with_graceful_shutdown(async move {
        // That the other end is gone says the same.
        let _ = is_over.wait_for(|over| *over).await;
    });
    let health = axum::serve(health, health_pages(&app)).with_graceful_shutdown(async move {
        let _ = is_over_too.wait_for(|over| *over).await;
    });
    let webhook = tokio::spawn(webhook.into_future());
    let health = tokio::spawn(health.into_future());
    end.await;
    app.is_ending.store(true, Ordering::Relaxed);
    sleep(Duration::from_secs(options.drain)).await;
    let _ = over.send(true);
    // Whoever has not had his answer by then gets none; the API server goes on without it.
    let _ = timeout(GRACE, webhook).await;
    health.abort();
    watching.abort();
    Ok(())
}

async fn watch_files(mut files: Files, app: Arc<App>) {
    loop {
        match files.look(&app.certificate) {
            Look::Same => {}
            Look::New => {
                app.metrics.reloaded(true);
                say("a certificate was taken up");
            }
            Look::Bad(problem) => {
                app.metrics.reloaded(false);
                say(format_args!("the certificate is not taken up: {problem}"));
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
    } else {
        "ok\n".into_response()
    }
}

async fn metrics(State(app): State<Arc<App>>) -> Response {
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
    (kind, app.metrics.page()).into_response()
}

/// Who has come in and has TLS.
struct Visitors {
    come: mpsc::Receiver<(Visit, SocketAddr)>,
    address: SocketAddr,
}

impl Visitors {
    fn of(listener: TcpListener, acceptor: TlsAcceptor, app: &Arc<App>) -> io::Result<Visitors> {
        let address = listener.local_addr()?;
        let (sender, come) = mpsc::channel(16);
        tokio::spawn(take(listener, acceptor, Arc::clone(app), sender));
        Ok(Visitors { come, address })
    }
}

impl axum::serve::Listener for Visitors {
    type Io = Visit;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Visit, SocketAddr) {
        match self.come.recv().await {
            Some(visit) => visit,
            // The runtime ends.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}

async fn take(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    app: Arc<App>,
    come: mpsc::Sender<(Visit, SocketAddr)>,
) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else {
            return;
        };
        let Ok((stream, from)) = listener.accept().await else {
            sleep(BREATH).await;
            continue;
        };
        let (acceptor, app, come) = (acceptor.clone(), Arc::clone(&app), come.clone());
        tokio::spawn(async move {
            let Some(stream) = handshake(stream, &acceptor).await else {
                app.metrics.handshakes_failed.inc();
                return;
            };
            let visit = Visit::new(stream, permit, app.metrics.connections.clone());
            // The runtime ends.
            let _ = come.send((visit, from)).await;
        });
    }
}

async fn handshake(
    stream: TcpStream,
    acceptor: &TlsAcceptor,
) -> Option<tokio_rustls::server::TlsStream<TcpStream>> {
    // An answer that waits for the acknowledgement of its first half takes 40 ms more.
    stream.set_nodelay(true).ok()?;
    timeout(HANDSHAKE, acceptor.accept(stream)).await.ok()?.ok()
}
