//! The scraped metrics page. The aggregator's thread only copies its facts, so frames wait only for the copy. Families
//! and text are made in another thread.

use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::task::spawn_blocking;

use super::Scrape;
use crate::host::monotonic_ns;
use crate::sink::metrics::{Format, Kept};

/// The latest pages.
pub(super) struct Pages {
    scrapes: mpsc::Sender<Scrape>,
    /// The latest page in each format. It is locked while a page is made, so that concurrent requests get the same
    /// page.
    kept: Mutex<[Kept<Bytes>; 2]>,
}

impl Pages {
    /// Creates it for the facts requested through `scrapes`.
    pub(super) fn new(scrapes: mpsc::Sender<Scrape>) -> Pages {
        Pages {
            scrapes,
            kept: Mutex::default(),
        }
    }

    /// Returns the page in the requested format.
    pub(super) async fn answer(&self, headers: &HeaderMap) -> Response {
        let accept = headers.get_all(header::ACCEPT).iter();
        let accept: Vec<&str> = accept.filter_map(|value| value.to_str().ok()).collect();
        let format = Format::wanted(&accept.join(","));
        let kind = [
            (header::CONTENT_TYPE, format.content_type()),
            (header::VARY, "Accept"),
        ];
        match self.page(format).await {
            Some(page) => (kind, page).into_response(),
            None => (StatusCode::SERVICE_UNAVAILABLE, "# the aggregator is ending\n").into_response(),
        }
    }

    async fn page(&self, format: Format) -> Option<Bytes> {
        let mut kept = self.kept.lock().await;
        let kept = match format {
            Format::Text => &mut kept[0],
            Format::OpenMetrics => &mut kept[1],
        };
        if let Some(page) = kept.fresh(monotonic_ns()) {
            return Some(page);
        }
        let (sender, facts) = oneshot::channel();
        self.scrapes.send(sender).await.ok()?;
        let facts = facts.await.ok()?;
        let make = move || {
            let began_ns = monotonic_ns();
            let page = Bytes::from(format.page(&*facts));
            (page, began_ns, monotonic_ns())
        };
        let (page, began_ns, done_ns) = spawn_blocking(make).await.ok()?;
        kept.keep(page.clone(), began_ns, done_ns);
        Some(page)
    }
}
