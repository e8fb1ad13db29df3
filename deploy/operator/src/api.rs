//! The API server as we speak to it: JSON by path, each question with a deadline, each refusal with its code.

use std::time::Duration;

use axum::http::{Method, Request, header};
use futures_util::{Stream, StreamExt as _};
use kube::core::WatchEvent;
use paceline_health::text::sanitize;
use serde_json::Value;
use tokio::time::{sleep, timeout};

/// A question may take so long.
const DEADLINE: Duration = Duration::from_secs(15);
/// Objects of one page of a list: what is parsed at a time is what memory is needed for.
const PAGE: usize = 100;
/// A watch is begun anew after this, so that one whose other end is gone is not waited at for ever.
const WATCH_S: u64 = 240;

/// Why there is no answer, or not the one that was hoped for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failed {
    /// HTTP's code; 0: nobody answered.
    pub code: u16,
    /// In words.
    pub says: String,
    /// What the API server names as causes: reason and message.
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

    /// Somebody else wrote meanwhile.
    pub fn is_conflict(&self) -> bool {
        self.code == 409
    }

    /// There is one of this name still, and it is on its way out (registry/generic/registry/store.go of the API server).
    pub fn is_of_one_that_goes(&self) -> bool {
        self.is_conflict() && self.says.starts_with("object is being deleted")
    }

    /// There is no such object.
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

/// Which kind of patch a body is.
#[derive(Clone, Copy, Debug)]
pub enum Patch {
    /// RFC 7386.
    Merge,
    /// Kubernetes' own: lists by their keys.
    Strategic,
}

/// See the module.
#[derive(Clone)]
pub struct Api(kube::Client);

impl Api {
    /// By the pod's own ServiceAccount, or a kubeconfig where there is one.
    ///
    /// # Errors
    /// When neither is there.
    pub async fn open() -> anyhow::Result<Api> {
        let mut config = kube::Config::infer().await?;
        config.connect_timeout = Some(Duration::from_secs(5));
        // A watch is silent as long as nothing happens; questions have a deadline of their own.
        config.read_timeout = None;
        // An eviction that a budget forbids is answered with 429: that is the answer, and no reason to ask on.
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

    /// One object.
    ///
    /// # Errors
    /// [`Failed`]
    pub async fn get(&self, path: &str) -> Result<Value, Failed> {
        self.ask(Method::GET, path, "application/json", None).await
    }

    /// Makes one.
    ///
    /// # Errors
    /// [`Failed`]
    pub async fn post(&self, path: &str, body: &Value) -> Result<Value, Failed> {
        self.ask(Method::POST, path, "application/json", Some(body)).await
    }

    /// Writes one as a whole.
    ///
    /// # Errors
    /// [`Failed`]
    pub async fn put(&self, path: &str, body: &Value) -> Result<Value, Failed> {
        self.ask(Method::PUT, path, "application/json", Some(body)).await
    }

    /// Changes one.
    ///
    /// # Errors
    /// [`Failed`]
    pub async fn patch(&self, path: &str, patch: Patch, body: &Value) -> Result<Value, Failed> {
        let kind = match patch {
            Patch::Merge => "application/merge-patch+json",
            Patch::Strategic => "application/strategic-merge-patch+json",
        };
        self.ask(Method::PATCH, path, kind, Some(body)).await
    }

    /// Changes the one of this name; where there is none, makes it: `whole`, of the collection `all`.
    ///
    /// # Errors
    /// [`Failed`]
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

    /// Takes one away.
    ///
    /// # Errors
    /// [`Failed`]
    pub async fn delete(&self, path: &str) -> Result<Value, Failed> {
        let body = serde_json::json!({ "propagationPolicy": "Background" });
        self.ask(Method::DELETE, path, "application/json", Some(&body))
            .await
    }

    /// All of a list, a page at a time; each object goes to `take` and is not kept. Its resourceVersion.
    ///
    /// # Errors
    /// [`Failed`]
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

    /// What happens to a list after a resourceVersion.
    ///
    /// # Errors
    /// [`Failed`]
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
        // An API server whose machine is gone ends nothing, and says nothing.
        let late = Box::pin(sleep(Duration::from_secs(WATCH_S) + DEADLINE));
        let events = events.map(|event| event.map_err(Failed::from));
        Ok(events.take_until(late))
    }
}
