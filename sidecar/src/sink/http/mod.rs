//! The metrics page and the live page over HTTP. They are served on loopback, or at a configured address or interface,
//! either for all clients that can reach it or only for those with the token. The pages are read-only and cannot change
//! anything in a job.

mod connection;
mod door;
mod host_names;
mod place;
mod scraped;
mod slots;
pub mod visit;

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use clap::Args;
use paceline_seal::Key;
use tokio::sync::{mpsc, oneshot};
use tokio_rustls::TlsAcceptor;

use crate::sink::metrics::{Facts, MetricsOptions, Shown};
use crate::sink::page::{Live, serve};
use crate::{host, warn};
pub use door::Visitors;
pub use host_names::{HostNames, check_name};
pub use place::{NoPlace, Place};
use scraped::Pages;
use slots::{Client, MAX_PAGES};

/// The path that Prometheus scrapes.
const METRICS: &str = "/metrics";
/// Answer to a request with a foreign host name.
const OTHER_HOST: &str = "this page accepts localhost, IP addresses and this machine's name; for another name \
    start the job with --http-hosts NAME (docs/security.md), or with a token (--http-token-file)\n";

/// Requests the aggregator's current facts.
pub type Scrape = oneshot::Sender<Arc<dyn Facts>>;

/// The page's command-line options, unparsed.
#[derive(Args, Clone, Debug)]
pub struct HttpOptions {
    /// Where the metrics page is wanted: an address, loopback or another of this machine, an interface as in eth0:9810 or a
    /// host name; port 0: any. All addresses at once (0.0.0.0) take a token.
    #[arg(
        long,
        env = "PACELINE_HTTP",
        default_value = "127.0.0.1:0",
        value_name = "PLACE:PORT"
    )]
    pub http: Place,
    /// Certificates (PEM) with which the page is served by TLS.
    #[arg(long, env = "PACELINE_HTTP_CERT", value_name = "FILE", requires = "http_key")]
    pub http_cert: Option<PathBuf>,
    /// Private key of the certificate (PEM).
    #[arg(long, env = "PACELINE_HTTP_KEY", value_name = "FILE", requires = "http_cert")]
    pub http_key: Option<PathBuf>,
    /// File with the access token of the page, 32 bytes or more ("Authorization: Bearer TOKEN").
    #[arg(long, env = "PACELINE_HTTP_TOKEN_FILE", value_name = "FILE")]
    pub http_token_file: Option<PathBuf>,
    /// Host names that the page accepts in requests, in addition to this machine's name, localhost and addresses:
    /// NAME, *.DOMAIN, or * for any.
    #[arg(
        long,
        env = "PACELINE_HTTP_HOSTS",
        value_name = "NAMES",
        value_delimiter = ','
    )]
    pub http_hosts: Vec<String>,
    /// What the metrics page shows.
    #[command(flatten)]
    pub metrics: MetricsOptions,
}

/// The parsed options.
#[derive(Clone)]
pub struct Page {
    place: Place,
    tls: Option<TlsAcceptor>,
    token: Option<Key>,
    names: HostNames,
    shown: Shown,
}

impl HttpOptions {
    /// Reads the files named by the options.
    ///
    /// # Errors
    /// What is wrong with a file. It is an error because a page that requires protection must not be served without it.
    pub fn read(&self) -> anyhow::Result<Page> {
        let token = self.http_token_file.as_deref().map(Key::read).transpose()?;
        let tls = self.http_cert.as_deref().zip(self.http_key.as_deref());
        let tls = tls.map(|(cert, key)| door::tls(cert, key)).transpose()?;
        for name in &self.http_hosts {
            check_name(name).map_err(|why| anyhow::anyhow!("--http-hosts: {why}"))?;
        }
        Ok(Page {
            place: self.http.clone(),
            tls,
            token,
            names: HostNames::new(&host::hostname(), &self.http_hosts),
            shown: self.metrics.shown(),
        })
    }
}

impl Page {
    /// Creates a page at this place, without a token.
    pub fn at(place: Place) -> Page {
        Page {
            place,
            tls: None,
            token: None,
            names: HostNames::new(&host::hostname(), &[]),
            shown: Shown::default(),
        }
    }

    /// Starts to listen. If the place is taken, is invalid, or covers all addresses without a token, it uses a free
    /// port on loopback.
    pub fn open(self) -> Option<OpenPage> {
        let loopback = |port| Place::Address(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
        let mut elsewhere = Vec::new();
        let place = if self.place.is_everywhere() && self.token.is_none() {
            let why = format!(
                "{}: without a token (--http-token-file) the page is not served on every network of the node; name one",
                self.place
            );
            warn::once(
                "http",
                format_args!("{why}: metrics are served on 127.0.0.1 only"),
            );
            elsewhere.push(why);
            loopback(self.place.port())
        } else {
            self.place.clone()
        };
        let listener = place.bind().or_else(|error| {
            warn::once(
                "http",
                format_args!("{place}: {error}; metrics are served on another port of 127.0.0.1"),
            );
            elsewhere.push(match error.kind() {
                ErrorKind::AddrInUse => format!("port {} is taken", place.port()),
                // The message already contains its subject.
                ErrorKind::NotFound | ErrorKind::AddrNotAvailable => error.to_string(),
                _ => format!("{place}: {error}"),
            });
            loopback(0).bind()
        });
        match listener {
            Ok(listener) => Some(OpenPage {
                listener,
                page: self,
                elsewhere: (!elsewhere.is_empty()).then(|| elsewhere.join("; ")),
            }),
            Err(error) => {
                warn::once("http", format_args!("127.0.0.1: {error}; no metrics are served"));
                None
            }
        }
    }
}

impl std::fmt::Debug for Page {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Page")
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}

/// A listening page.
#[derive(Debug)]
pub struct OpenPage {
    listener: TcpListener,
    page: Page,
    elsewhere: Option<String>,
}

impl OpenPage {
    /// Returns the page's address.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listener.local_addr().ok()
    }

    /// Returns why the page is not at the requested place, or `None` if it is.
    pub fn elsewhere(&self) -> Option<String> {
        self.elsewhere.clone()
    }

    /// The metrics options.
    pub fn shown(&self) -> Shown {
        self.page.shown
    }

    /// Serves in its own thread until the receiver of scrapes is dropped. In a thread that also handles thousands of
    /// connections, a request would wait at each stage: accept, read, and answer.
    pub fn serve_aside(self, scrapes: mpsc::Sender<Scrape>, live: Option<Live>) {
        let serve = move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .max_blocking_threads(1)
                .build()?;
            runtime.block_on(async {
                tokio::select! {
                    () = self.serve(scrapes.clone(), live) => {}
                    () = scrapes.closed() => {}
                }
            });
            Ok::<(), std::io::Error>(())
        };
        let say = |error: std::io::Error| warn::once("http", format_args!("metrics: {error}"));
        let thread = std::thread::Builder::new().name("page".into());
        if let Err(error) = thread.spawn(move || serve().unwrap_or_else(say)) {
            say(error);
        }
    }

    /// Serves until the runtime ends. Includes the live page if there is one.
    pub async fn serve(self, scrapes: mpsc::Sender<Scrape>, live: Option<Live>) {
        let OpenPage { listener, page, .. } = self;
        let visitors = listener
            .set_nonblocking(true)
            .and_then(|()| tokio::net::TcpListener::from_std(listener))
            .and_then(|listener| door::Visitors::of(listener, page.tls));
        let visitors = match visitors {
            Ok(visitors) => visitors,
            Err(error) => return warn::once("http", format_args!("metrics: {error}")),
        };
        talk(visitors, (page.token, page.names), scrapes, live).await;
    }
}

/// Answers the clients of `visitors`. With a token, answers only clients that have it. Without one, answers only
/// requests with one of these host names.
pub async fn talk(
    visitors: Visitors,
    (token, names): (Option<Key>, HostNames),
    scrapes: mpsc::Sender<Scrape>,
    live: Option<Live>,
) {
    let desk = Desk {
        pages: Arc::new(Pages::new(scrapes)),
        token,
        names: Arc::new(names),
        live,
    };
    let app = Router::new()
        .route(METRICS, get(metrics))
        .route("/", get(index))
        .route("/v1/live", get(state))
        .route("/v1/live/events", get(events))
        .layer(middleware::from_fn_with_state(desk.clone(), admit))
        .with_state(desk);
    let app = app.into_make_service_with_connect_info::<Client>();
    if let Err(error) = axum::serve(visitors, app).await {
        warn::once("http", format_args!("metrics: {error}"));
    }
}

/// Checks that the client may send requests and that there is room for it.
async fn admit(
    State(desk): State<Desk>,
    ConnectInfo(client): ConnectInfo<Client>,
    request: Request,
    next: Next,
) -> Response {
    // A request with the token needs no check of the host name, because a foreign web page cannot know the token.
    if desk.token.is_none() && !desk.names.take(request.uri(), request.headers()) {
        return (StatusCode::MISDIRECTED_REQUEST, OTHER_HOST).into_response();
    }
    if request.uri().path() != METRICS && !client.has_page() {
        let headers = [(header::CONNECTION, "close"), (header::RETRY_AFTER, "5")];
        let why = format!("too many viewers of the page: {MAX_PAGES} at most\n");
        return (StatusCode::SERVICE_UNAVAILABLE, headers, why).into_response();
    }
    next.run(request).await
}

#[derive(Clone)]
struct Desk {
    pages: Arc<Pages>,
    token: Option<Key>,
    names: Arc<HostNames>,
    live: Option<Live>,
}

/// Why a client gets no data of the live page.
enum NoData {
    Token,
    Relay,
}

impl IntoResponse for NoData {
    fn into_response(self) -> Response {
        match self {
            NoData::Token => serve::refused(),
            NoData::Relay => (StatusCode::NOT_FOUND, "a relay has no live page\n").into_response(),
        }
    }
}

impl Desk {
    /// Returns the live page's data, for authorized clients.
    fn live(&self, headers: &HeaderMap) -> Result<&Live, NoData> {
        if !is_admitted(self.token.as_ref(), headers) {
            return Err(NoData::Token);
        }
        self.live.as_ref().ok_or(NoData::Relay)
    }
}

async fn index(State(desk): State<Desk>) -> Response {
    match desk.live {
        Some(_) => serve::index(),
        None => "paceline: see /metrics\n".into_response(),
    }
}

async fn state(State(desk): State<Desk>, headers: HeaderMap) -> Response {
    match desk.live(&headers) {
        Ok(live) => serve::state(live),
        Err(none) => none.into_response(),
    }
}

async fn events(State(desk): State<Desk>, headers: HeaderMap) -> Response {
    match desk.live(&headers) {
        Ok(live) => serve::events(live, &headers).await,
        Err(none) => none.into_response(),
    }
}

async fn metrics(State(desk): State<Desk>, headers: HeaderMap) -> Response {
    if is_admitted(desk.token.as_ref(), &headers) {
        desk.pages.answer(&headers).await
    } else {
        (StatusCode::UNAUTHORIZED, "# a token is needed\n").into_response()
    }
}

/// Returns true if the request has the token or none is required
/// (<https://www.rfc-editor.org/rfc/rfc6750#section-2.1>).
fn is_admitted(token: Option<&Key>, headers: &HeaderMap) -> bool {
    let Some(token) = token else { return true };
    let said = headers.get(header::AUTHORIZATION).map(|value| value.as_bytes());
    let said = said.and_then(|said| said.split_at_checked(7));
    said.is_some_and(|(scheme, said)| {
        scheme.eq_ignore_ascii_case(b"bearer ") && token.matches(&Key::of_text(said))
    })
}
