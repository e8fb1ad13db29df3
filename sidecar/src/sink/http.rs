//! The metrics page over HTTP, on loopback: whoever may log in to the machine may read it, nobody else.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::sync::{mpsc, oneshot};

use crate::warn;

/// Asks the aggregator for the page of this moment.
pub type Scrape = oneshot::Sender<String>;

/// Listens at `wanted`. An address that is taken or not on loopback is replaced by one that is free there.
pub fn listen(wanted: SocketAddr) -> Option<TcpListener> {
    let local = if wanted.ip().is_loopback() {
        wanted
    } else {
        warn::once(
            "http",
            format_args!("{wanted} is not loopback: metrics are served on 127.0.0.1 only"),
        );
        SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), wanted.port())
    };
    let free = SocketAddr::new(local.ip(), 0);
    let listener = TcpListener::bind(local).or_else(|error| {
        warn::once(
            "http",
            format_args!("{local}: {error}; metrics are served on another port"),
        );
        TcpListener::bind(free)
    });
    match listener {
        Ok(listener) => Some(listener),
        Err(error) => {
            warn::once("http", format_args!("{free}: {error}; no metrics are served"));
            None
        }
    }
}

/// Serves until the runtime ends.
pub async fn serve(listener: TcpListener, scrapes: mpsc::Sender<Scrape>) {
    let listener = listener
        .set_nonblocking(true)
        .and_then(|()| tokio::net::TcpListener::from_std(listener));
    let listener = match listener {
        Ok(listener) => listener,
        Err(error) => return warn::once("http", format_args!("metrics: {error}")),
    };
    let app = Router::new()
        .route("/metrics", get(metrics))
        .route("/", get(|| async { "paceline: see /metrics\n" }))
        .with_state(scrapes);
    if let Err(error) = axum::serve(listener, app).await {
        warn::once("http", format_args!("metrics: {error}"));
    }
}

async fn metrics(State(scrapes): State<mpsc::Sender<Scrape>>) -> impl IntoResponse {
    let (sender, page) = oneshot::channel();
    let asked = scrapes.send(sender).await;
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    match (asked, page.await) {
        (Ok(()), Ok(page)) => (StatusCode::OK, kind, page),
        _ => (
            StatusCode::SERVICE_UNAVAILABLE,
            kind,
            "# the aggregator is ending\n".to_owned(),
        ),
    }
}
