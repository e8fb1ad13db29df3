//! Client for the API server. It sends and receives JSON by path, applies a deadline to each request, and returns an
//! error code for each failure.

use std::time::Duration;

use axum::http::{Method, Request, header};
use futures_util::{Stream, StreamExt as _};
use kube::core::WatchEvent;
use paceline_health::text::sanitize;
use serde_json::Value;
use tokio::time::{sleep, timeout};

/// Deadline of a request.
const DEADLINE: Duration = Duration::from_secs(15);
/// Objects per page of a list. The limit bounds memory use, which grows with the size of a parsed page.
const PAGE: usize = 100;
/// A watch is restarted after this time, so that a dead connection does not stall it forever.
const WATCH_S: u64 = 240;

/// A failed request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failed {
    /// The HTTP status code, or 0 if there was no response.
    pub code: u16,
    /// The message.
    pub says: String,
    /// The causes in the API server's Status: reason and message.
    pub causes: Vec<(String, String)>,
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.code {
            0 => write!(f, "the API server does not answer: {}", self.says),
            code => write!(f, "{code} {}", self.says),
        }
    }
}

impl std::error::Error for Failed {}

impl Failed {
    pub(crate) fn silent(says: impl ToString) -> Failed {
        Failed {
            says: says.to_string(),
            ..Failed::default()
        }
    }

    /// Returns true if another client wrote the object in the meantime.
    pub fn is_conflict(&self) -> bool {
        self.code == 409
    }

    /// Returns true if an object with this name is still being deleted (registry/generic/registry/store.go of the API
    /// server).
    pub fn is_of_one_that_goes(&self) -> bool {
        self.is_conflict() && self.says.starts_with("object is being deleted")
    }

    /// Returns true if the object does not exist.
    pub fn is_missing(&self) -> bool {
        self.code == 404
    }
}

impl From<kube::Error> for Failed {
    fn from(error: kube::Error) -> Failed {
        let kube::Error::Api(status) = error else {
            return Failed::silent(error);
        };
        let causes = status.details.iter().flat_map(|details| &details.causes);
        Failed {
            code: status.code,
            says: status.message.clone(),
            causes: causes
                .map(|cause| (cause.reason.clone(), cause.message.clone()))
                .collect(),
        }
    }
}

/// The type of a patch's body.
#[derive(Clone, Copy, Debug)]
pub enum Patch {
    /// JSON merge patch (RFC 7386).
    Merge,
    /// Kubernetes' strategic merge patch: lists are merged by key.
    Strategic,
}

/// The client; see the module documentation.
#[derive(Clone)]
pub struct Api(kube::Client);

impl Api {
    /// Connects with the pod's ServiceAccount, or with a kubeconfig if there is one.
    ///
    /// # Errors
    /// Returns an error if there is neither a ServiceAccount nor a kubeconfig.
    pub async fn open() -> anyhow::Result<Api> {
        let mut config = kube::Config::infer().await?;
        config.connect_timeout = Some(Duration::from_secs(5));
        // A watch is silent while nothing changes, so it has no read timeout. Other requests have their own deadline.
        config.read_timeout = None;
        // The API server answers an eviction that a budget forbids with 429. The caller handles that response, so the
        // client must not retry it.
        config.default_retry = false;
        Ok(Api(kube::Client::try_from(config)?))
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        kind: &str,
        body: Option<&Value>,
    ) -> Result<Value, Failed> {
        let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::CONTENT_TYPE, kind)
            .header(header::ACCEPT, "application/json")
            .body(body)
            .map_err(Failed::silent)?;
        let answer = timeout(DEADLINE, self.0.request_text(request)).await;
        let text = answer.map_err(|_| Failed::silent("no answer in time"))??;
        if text.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_str(&text).map_err(Failed::silent)
    }

    /// Returns an object.
    ///
    /// # Errors
    /// Returns [`Failed`] if the operation fails.
    pub async fn get(&self, path: &str) -> Result<Value, Failed> {
        self.ask(Method::GET, path, "application/json", None).await
    }

    /// Creates an object.
    ///
    /// # Errors
    /// Returns [`Failed`] if the operation fails.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Value, Failed> {
        self.ask(Method::POST, path, "application/json", Some(body)).await
    }

    /// Replaces an object.
    ///
    /// # Errors
    /// Returns [`Failed`] if the operation fails.
    pub async fn put(&self, path: &str, body: &Value) -> Result<Value, Failed> {
        self.ask(Method::PUT, path, "application/json", Some(body)).await
    }

    /// Changes an object.
    ///
    /// # Errors
    /// Returns [`Failed`] if the operation fails.
    pub async fn patch(&self, path: &str, patch: Patch, body: &Value) -> Result<Value, Failed> {
        let kind = match patch {
            Patch::Merge => "application/merge-patch+json",
            Patch::Strategic => "application/strategic-merge-patch+json",
        };
        self.ask(Method::PATCH, path, kind, Some(body)).await
    }

    /// Changes the object with this name, or creates `whole` in the collection `all` if it is missing.
    ///
    /// # Errors
    /// Returns [`Failed`] if the operation fails.
    pub async fn merge_or_make(
        &self,
        all: &str,
        name: &str,
        patch: &Value,
        whole: &Value,
    ) -> Result<(), Failed> {
        let changed = self.patch(&format!("{all}/{name}"), Patch::Merge, patch).await;
        match changed {
            Err(failed) if failed.is_missing() => self.post(all, whole).await.map(drop),
            other => other.map(drop),
        }
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// Returns [`Failed`] if the operation fails.
    pub async fn delete(&self, path: &str) -> Result<Value, Failed> {
        let body = serde_json::json!({ "propagationPolicy": "Background" });
        self.ask(Method::DELETE, path, "application/json", Some(&body))
            .await
    }

    /// Lists all objects page by page. `take` gets each object, and no object is kept. Returns the list's
    /// resourceVersion.
    ///
    /// # Errors
    /// Returns [`Failed`] if a request fails.
    pub async fn list(
        &self,
        path: &str,
        query: &str,
        mut take: impl FnMut(&Value),
    ) -> Result<String, Failed> {
        let mut next = String::new();
        loop {
            let page = self.get(&format!("{path}?limit={PAGE}{query}{next}")).await?;
            for item in page["items"].as_array().into_iter().flatten() {
                take(item);
            }
            match page["metadata"]["continue"].as_str() {
                Some(token) if !token.is_empty() => next = format!("&continue={}", sanitize::query(token)),
                _ => {
                    return Ok(page["metadata"]["resourceVersion"]
                        .as_str()
                        .unwrap_or_default()
                        .to_owned());
                }
            }
        }
    }

    /// Watches a list, starting from a resourceVersion.
    ///
    /// # Errors
    /// Returns [`Failed`] if the request fails.
    pub async fn watch(
        &self,
        path: &str,
        version: &str,
    ) -> Result<impl Stream<Item = Result<WatchEvent<Value>, Failed>> + use<>, Failed> {
        let uri = format!(
            "{path}?watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_S}&resourceVersion={}",
            sanitize::query(version)
        );
        let request = Request::get(uri).body(Vec::new()).map_err(Failed::silent)?;
        let begun = timeout(DEADLINE, self.0.request_events::<Value>(request)).await;
        let events = begun.map_err(|_| Failed::silent("no answer in time"))??;
        // If the API server's machine fails, the server neither closes the watch nor sends anything. The client
        // therefore ends the watch itself.
        let late = Box::pin(sleep(Duration::from_secs(WATCH_S) + DEADLINE));
        let events = events.map(|event| event.map_err(Failed::from));
        Ok(events.take_until(late))
    }
}
