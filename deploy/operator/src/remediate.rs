//! Receives verdicts about nodes and acts on the nodes.
//!
//! - [`policy`]: makes the decisions, independent of a cluster.
//! - [`intake`]: receives verdicts from authenticated [`callers`]. [`notices`] defines their format.
//! - [`actor`]: the leader's loop ([`crate::lease`]). It checks [`nodes`] and NodeHealths ([`known`], read by
//!   [`record`]), records decisions, and applies them ([`chores`], [`objects`]) through the [`crate::api`].
//! - [`counts`][]: metrics. [`retry`][]: retries of failed requests.

pub mod actor;
pub mod callers;
pub mod chores;
pub mod counts;
pub mod intake;
pub mod known;
pub mod nodes;
pub mod notices;
pub mod objects;
pub mod policy;
pub mod record;
pub mod retry;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use clap::{ArgGroup, Parser};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::api::Api;
use crate::certificate::trust::Place;
use crate::certificate::{self, Certificate, CertificateManager, Files, Look, ProvidedCertificate};
use crate::lease::{Lead, Lease, first_end};
use crate::listener::{Counted, TlsListener, listen};
use crate::options::CertificateOptions;
use crate::say;
use crate::timestamp::now_ms;
use crate::webhook::server::asked_to_end;
use counts::Counts;
use policy::Rules;

/// Name of the leader's Lease.
pub(crate) const LEASE: &str = "paceline-remediator";
/// Limit of connections. Each connection needs memory up to the size limit of a body.
const CONNECTIONS: usize = 128;
/// Limit of reports in the queue.
const WAITING: usize = 4096;
/// The interval of checks of the certificate files.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Time limit for requests in progress at shutdown.
const GRACE: Duration = Duration::from_secs(10);

/// Receive verdicts about nodes, and cordon, drain and check nodes as the policy allows.
#[derive(Clone, Debug, Parser)]
#[command(group = ArgGroup::new("certificates").required(true).args(["cert", "self_signed"]))]
#[command(group = ArgGroup::new("authorities").args(["ca", "self_signed"]))]
pub struct Options {
    /// Listen address for verdicts, HTTPS at /verdicts.
    #[arg(
        long,
        env = "PACELINE_REMEDIATOR_LISTEN",
        default_value = "[::]:9445",
        value_name = "ADDR:PORT"
    )]
    pub listen: SocketAddr,
    /// Listen address of /healthz, /readyz and /metrics, HTTP.
    #[arg(
        long,
        env = "PACELINE_REMEDIATOR_HEALTH",
        default_value = "[::]:9446",
        value_name = "ADDR:PORT"
    )]
    pub health: SocketAddr,
    /// Policy file; its values override the built-in ones. No node is changed without `mode = "act"` in it.
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// The TLS certificate.
    #[command(flatten)]
    pub certificates: CertificateOptions,
    /// With --self-signed or --ca: the ConfigMap from which senders, or the injector, take the CA to trust.
    #[arg(
        long,
        value_name = "NAME",
        requires = "authorities",
        required_unless_present = "cert"
    )]
    pub authority: Option<String>,
    /// With --cert: CA certificates (PEM) for --authority. Reloaded when they change.
    #[arg(long, value_name = "FILE", requires = "cert", requires = "authority")]
    pub ca: Option<PathBuf>,
    /// The remediator's namespace: of its Lease, --self-signed, the breaker and preflight Jobs.
    #[arg(long, env = "POD_NAMESPACE", default_value = "paceline", value_name = "NAME")]
    pub namespace: String,
    /// Audience of senders' tokens [default: paceline-remediator, as injected pods have them, or the API server
    /// itself].
    #[arg(long, value_name = "NAME")]
    pub audience: Option<String>,
    /// Duration of the leader's Lease; after it, another replica takes over.
    #[arg(long, default_value_t = 15, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(2..=300))]
    pub lease: u64,
    /// The image of preflight Jobs [default: that of this version].
    #[arg(long, env = "PACELINE_IMAGE", value_name = "IMAGE")]
    pub image: Option<String>,
    /// Additional fields of a preflight Job's pod, as JSON: imagePullSecrets, tolerations, runtimeClassName,
    /// priorityClassName.
    #[arg(long, value_name = "JSON", default_value = "{}", value_parser = preflight_pod)]
    pub preflight_pod: objects::PreflightPod,
    /// Time to keep accepting verdicts after /readyz fails at shutdown.
    #[arg(long, default_value_t = 5, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=300))]
    pub drain: u64,
}

fn preflight_pod(text: &str) -> Result<objects::PreflightPod, serde_json::Error> {
    serde_json::from_str(text)
}

struct Shown {
    counts: Arc<Counts>,
    certificate: Arc<Certificate>,
    is_ending: AtomicBool,
}

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// Returns an error if the policy is invalid, an address cannot be bound, or the API server is unreachable.
pub async fn serve(options: Options) -> anyhow::Result<()> {
    let rules = rules(&options)?;
    let (listener, health) = (listen(options.listen).await?, listen(options.health).await?);
    let api = Api::open().await?;
    let counts = Arc::new(Counts::new()?);
    let certificate = Arc::<Certificate>::default();
    let acceptor = TlsAcceptor::from(Arc::new(certificate::config(Arc::clone(&certificate))?));
    say(format_args!(
        "mode {:?}; serves https://{}/verdicts, and health at http://{}",
        rules.mode,
        listener.local_addr()?,
        health.local_addr()?
    ));
    let shown = Arc::new(Shown {
        counts: Arc::clone(&counts),
        certificate: Arc::clone(&certificate),
        is_ending: AtomicBool::new(false),
    });
    let me = identity();
    let (until, is_until) = watch::channel(None);
    let lasts = Duration::from_secs(options.lease);
    let lease = Lease::of(api.clone(), &options.namespace, LEASE, &me, lasts);
    let (reports, heard) = mpsc::channel(WAITING);
    let setting = setting(&options, &api, rules, &counts);
    let intake = intake::Intake::of(
        api.clone(),
        options.audience.clone(),
        reports,
        is_until.clone(),
        Arc::clone(&counts),
    );
    let (over, mut is_over) = watch::channel(false);
    let counted = Counted {
        connections: counts.connections.clone(),
        handshakes_failed: counts.handshakes_failed.clone(),
    };
    let tls = TlsListener::of(listener, acceptor, CONNECTIONS, counted)?;
    let verdicts = axum::serve(tls, intake.router()).with_graceful_shutdown(async move {
        // A closed channel also means that the shutdown has begun.
        let _ = is_over.wait_for(|over| *over).await;
    });
    let verdicts = tokio::spawn(verdicts.into_future());
    let health = tokio::spawn(axum::serve(health, health_pages(&shown)).into_future());
    let mut tasks = vec![
        tokio::spawn(lease.hold(Arc::new(until))),
        tokio::spawn(count_lead(is_until.clone(), Arc::clone(&counts))),
    ];
    tasks.extend(show(&options, &api, certificate, &is_until, &counts));
    tasks.push(tokio::spawn(actor::run(setting, is_until, heard)));
    let ended = tokio::select! {
        () = asked_to_end() => {
            shown.is_ending.store(true, Ordering::Relaxed);
            sleep(Duration::from_secs(options.drain)).await;
            let _ = over.send(true);
            let _ = timeout(GRACE, verdicts).await;
            Ok(())
        }
        // End the process if a task has ended, because this leader would otherwise keep the Lease and block all other
        // replicas.
        problem = first_end(&mut tasks) => Err(problem),
    };
    tasks.iter().for_each(JoinHandle::abort);
    health.abort();
    // Release the Lease, so that the next leader need not wait. If the release fails, the next leader waits until the
    // Lease expires.
    let _ = Lease::release(&api, &options.namespace, LEASE, &me).await;
    ended
}

fn setting(options: &Options, api: &Api, rules: Rules, counts: &Arc<Counts>) -> chores::Setting {
    let image = options.image.clone();
    chores::Setting {
        api: api.clone(),
        rules,
        namespace: options.namespace.clone(),
        image: image.unwrap_or_else(|| paceline_inject::Settings::default().image),
        preflight_pod: options.preflight_pod.clone(),
        counts: Arc::clone(counts),
    }
}

fn rules(options: &Options) -> anyhow::Result<Rules> {
    let Some(path) = &options.policy else {
        return Ok(Rules::with("")?);
    };
    let name = || path.display().to_string();
    let text = std::fs::read_to_string(path).with_context(name)?;
    Rules::with(&text).with_context(name)
}

/// Returns an identity that is unique for each process. A successor must not mistake the Lease of a killed process for
/// its own.
fn identity() -> String {
    let name = std::env::var("POD_NAME").or_else(|_| std::env::var("HOSTNAME"));
    format!(
        "{}_{}_{}",
        name.unwrap_or_else(|_| "remediator".to_owned()),
        std::process::id(),
        now_ms()
    )
}

async fn count_lead(mut until: watch::Receiver<Option<Instant>>, counts: Arc<Counts>) {
    loop {
        let is_leader = until
            .borrow_and_update()
            .is_some_and(|until| until > Instant::now());
        counts.lead(is_leader);
        if until.changed().await.is_err() {
            return;
        }
    }
}

/// Maintains the certificate, which is from files or self-signed, and the senders' trust in it.
fn show(
    options: &Options,
    api: &Api,
    certificate: Arc<Certificate>,
    lead: &Lead,
    counts: &Counts,
) -> Vec<JoinHandle<()>> {
    let (given, namespace) = (&options.certificates, &options.namespace);
    let place = options.authority.clone().map(Place::Map);
    let mut tasks = Vec::new();
    if let Some((cert, key)) = given.cert.as_deref().zip(given.key.as_deref()) {
        tasks.push(tokio::spawn(watch_files(Files::of(cert, key), certificate)));
        if let Some((place, ca)) = place.zip(options.ca.clone()) {
            // Readiness does not wait until senders trust the certificate, because senders that do not trust it yet
            // retry.
            let trusted = ProvidedCertificate::of(api, namespace, place, cert.to_owned(), ca);
            tasks.push(tokio::spawn(trusted.run(lead.clone())));
        }
    } else if let Some(place) = place
        && let Some(manager) =
            CertificateManager::of(api, given, namespace, place, &certificate, &counts.renewals)
    {
        tasks.push(tokio::spawn(manager.run(lead.clone())));
    }
    tasks
}

async fn watch_files(mut files: Files, certificate: Arc<Certificate>) {
    loop {
        match files.look(&certificate) {
            Look::Same => {}
            Look::New => say("loaded a certificate"),
            Look::Bad(problem) => say(format_args!("the certificate could not be loaded: {problem}")),
        }
        sleep(LOOK_EVERY).await;
    }
}

fn health_pages(shown: &Arc<Shown>) -> Router {
    let (ready, page) = (Arc::clone(shown), Arc::clone(shown));
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(async move || is_ready(&ready)))
        .route(
            "/metrics",
            get(async move || {
                (
                    [(header::CONTENT_TYPE, "text/plain; version=0.0.4")],
                    page.counts.page(),
                )
            }),
        )
}

fn is_ready(shown: &Shown) -> Response {
    if shown.is_ending.load(Ordering::Relaxed) {
        (StatusCode::SERVICE_UNAVAILABLE, "it ends\n").into_response()
    } else if !shown.certificate.is_there() {
        (StatusCode::SERVICE_UNAVAILABLE, "there is no certificate yet\n").into_response()
    } else {
        "ok\n".into_response()
    }
}
