//! The page over HTTP. There is one request for the whole page, one for its data, and one for updates.
//!
//! Updates are server-sent events in answers that end. A browser then requests the updates after the last number, as
//! EventSource does by itself (<https://html.spec.whatwg.org/multipage/server-sent-events.html>). No state is kept for
//! a client between two answers, so a slow client only gets fewer updates.

use std::fmt::Write as _;
use std::sync::LazyLock;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use paceline_health::codec::base64;
use ring::digest::{SHA256, digest};

use super::Live;

/// Reconnection delay of EventSource, milliseconds.
const RETRY_MS: u32 = 250;
/// Retry delay when all seats are taken, seconds.
const FULL_RETRY_S: u32 = 5;

const STYLE: &str = include_str!("web/style.css");
/// The scripts, in dependency order.
const SCRIPTS: [&str; 9] = [
    include_str!("web/words.js"),
    include_str!("web/dom.js"),
    include_str!("web/data.js"),
    include_str!("web/answer.js"),
    include_str!("web/heat.js"),
    include_str!("web/band.js"),
    include_str!("web/fleet.js"),
    include_str!("web/story.js"),
    include_str!("web/main.js"),
];

/// Returns all scripts as one.
pub(super) fn scripts() -> String {
    format!("'use strict';\n{}", SCRIPTS.concat())
}

/// The page, and the restrictions that a browser must apply to it.
struct Document {
    html: String,
    policy: HeaderValue,
}

static DOCUMENT: LazyLock<Document> = LazyLock::new(|| {
    let script = scripts();
    let hash = |text: &str| base64::encode(digest(&SHA256, text.as_bytes()).as_ref());
    // Allow only this style and this script, and requests to their origin.
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash(&script),
        hash(STYLE)
    );
    let html = include_str!("web/index.html")
        .replace("/*STYLE*/", STYLE)
        .replace("/*SCRIPT*/", &script);
    Document {
        html,
        policy: HeaderValue::try_from(policy).unwrap_or(HeaderValue::from_static("default-src 'none'")),
    }
});

/// Returns the page itself. It contains no data of the job and needs no token, because it asks the user for one.
pub(in crate::sink) fn index() -> Response {
    let headers = [
        (
            header::CONTENT_TYPE,
            HeaderValue::from_static("text/html; charset=utf-8"),
        ),
        (header::CONTENT_SECURITY_POLICY, DOCUMENT.policy.clone()),
        (
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        ),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    (headers, Body::from(DOCUMENT.html.as_str())).into_response()
}

/// Returns all data, as JSON.
pub(in crate::sink) fn state(live: &Live) -> Response {
    let (_, json) = live.since(0);
    answer("application/json", json)
}

/// Waits for updates and returns them.
pub(in crate::sink) async fn events(live: &Live, headers: &HeaderMap) -> Response {
    let Ok(_seat) = live.0.seats.try_acquire() else {
        let retry = [(header::RETRY_AFTER, HeaderValue::from(FULL_RETRY_S))];
        return (StatusCode::SERVICE_UNAVAILABLE, retry, "too many viewers\n").into_response();
    };
    let after = heard(live, headers);
    live.news_after(after).await;
    let (serial, json) = live.since(after);
    let mut text = format!("retry: {RETRY_MS}\nid: {}-{serial}\n", live.0.epoch);
    if serial > after {
        let _ = write!(text, "data: {json}\n\n");
    } else {
        text.push_str(": nothing new\n\n");
    }
    answer("text/event-stream", text)
}

/// Returns the last serial number that a client received, or zero if it received none or another aggregator's.
fn heard(live: &Live, headers: &HeaderMap) -> u64 {
    let said = headers.get("last-event-id").and_then(|id| id.to_str().ok());
    let said = said.and_then(|id| id.split_once('-'));
    let said = said.filter(|(epoch, _)| *epoch == live.0.epoch);
    said.and_then(|(_, serial)| serial.parse().ok()).unwrap_or(0)
}

/// Returns the answer to a request without the token.
pub(in crate::sink) fn refused() -> Response {
    let ask = [(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))];
    (StatusCode::UNAUTHORIZED, ask, "a token is needed\n").into_response()
}

fn answer(kind: &'static str, text: String) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        ),
    ];
    (headers, Body::from(text)).into_response()
}
