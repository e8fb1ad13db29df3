//! Handles LIST and WATCH.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::stream;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::cluster::Cluster;
use crate::failure::{Answer, Failure};
use crate::request::Ask;
use crate::select::Selector;
use crate::store::{Change, Place, Resource};

/// The interval of bookmarks.
const BOOKMARK: Duration = Duration::from_secs(5);
/// The default timeout of a watch. The real server's is at most an hour.
const LONGEST: Duration = Duration::from_secs(1800);

fn selector(ask: &Ask) -> Answer<Selector> {
    let mut fields = ask.query("fieldSelector").to_owned();
    if !ask.name.is_empty() {
        fields = format!("metadata.name={},{fields}", ask.name);
    }
    Selector::parse(&ask.kind.plural, ask.query("labelSelector"), &fields)
}

fn namespace(ask: &Ask) -> Option<&str> {
    (!ask.namespace.is_empty()).then_some(ask.namespace.as_str())
}

/// Returns the object in the requested version of its kind.
pub fn shown(ask: &Ask, object: &Value) -> Value {
    let mut object = object.clone();
    if !ask.kind.is_own {
        object["apiVersion"] = json!(ask.kind.api_version(&ask.version));
    }
    object
}

/// Returns a page of a list.
///
/// # Errors
/// Returns BadRequest, or Expired if the list started before the changes that are kept.
pub fn list(cluster: &Cluster, ask: &Ask) -> Answer<Value> {
    let selector = selector(ask)?;
    let limit = ask.query("limit").parse().unwrap_or(0);
    let store = cluster.store();
    let token = ask.query("continue");
    let (mut revision, mut after) = (store.revision(), None);
    if !token.is_empty() {
        let broken = || Failure::new("BadRequest", "continue key is not valid");
        let text = URL_SAFE_NO_PAD.decode(token).map_err(|_| broken())?;
        let token: Value = serde_json::from_slice(&text).map_err(|_| broken())?;
        revision = token["rv"].as_u64().ok_or_else(broken)?;
        let text = |word: &str| token[word].as_str().unwrap_or("").to_owned();
        after = Some((text("namespace"), text("name")));
        if store.since(revision).is_err() {
            let message = "The provided continue parameter is too old to display a consistent list result.";
            return Err(Failure::new("Expired", message));
        }
    }
    let resource = (ask.kind.group.clone(), ask.kind.plural.clone());
    let mut items = Vec::new();
    let mut meta = json!({ "resourceVersion": revision.to_string() });
    let mut last = None;
    let (space, name) = after.unwrap_or_default();
    let space = if space.is_empty() {
        ask.namespace.clone()
    } else {
        space
    };
    let before = Place::new(&resource.0, &resource.1, &space, &name);
    let is_within = |place: &Place| namespace(ask).is_none_or(|namespace| place.namespace == namespace);
    for (place, object) in store.after(&before).take_while(|(place, _)| is_within(place)) {
        if !selector.matches(object) {
            continue;
        }
        if limit > 0 && items.len() == limit {
            let (namespace, name) = last.map_or(("", ""), |last: &Place| (&last.namespace, &last.name));
            let token = json!({ "rv": revision, "namespace": namespace, "name": name }).to_string();
            meta["continue"] = json!(URL_SAFE_NO_PAD.encode(token));
            break;
        }
        let mut object = shown(ask, object);
        // Removes both, because the real server omits them in lists of built-in kinds.
        if ask.kind.is_own
            && let Some(object) = object.as_object_mut()
        {
            object.remove("kind");
            object.remove("apiVersion");
        }
        items.push(object);
        last = Some(place);
    }
    let version = ask.kind.api_version(&ask.version);
    Ok(
        json!({ "kind": format!("{}List", ask.kind.kind), "apiVersion": version, "metadata": meta, "items": items }),
    )
}

struct Watch {
    cluster: Arc<Cluster>,
    ask: Ask,
    selector: Selector,
    resource: Resource,
    revision: u64,
    ready: VecDeque<Value>,
    news: watch::Receiver<u64>,
    until: Instant,
    bookmark: Instant,
    drops: u64,
    is_over: bool,
}

/// Returns a stream of changes.
///
/// # Errors
/// Returns BadRequest if a parameter is invalid.
pub fn watch(cluster: &Arc<Cluster>, ask: Ask) -> Answer<Response> {
    let selector = selector(&ask)?;
    let drops = cluster.trouble().drops;
    let from = ask.query("resourceVersion");
    let wants_all = ask.query("sendInitialEvents") == "true";
    let store = cluster.store();
    let mut ready = VecDeque::new();
    let resource = (ask.kind.group.clone(), ask.kind.plural.clone());
    let revision = if from.is_empty() || from == "0" || wants_all {
        for (_, object) in store.all(&resource, namespace(&ask)) {
            if selector.matches(object) {
                ready.push_back(json!({ "type": "ADDED", "object": shown(&ask, object) }));
            }
        }
        if wants_all {
            let mut end = bookmark(&ask, store.revision());
            end["object"]["metadata"]["annotations"] = json!({ "k8s.io/initial-events-end": "true" });
            ready.push_back(end);
        }
        store.revision()
    } else {
        from.parse()
            .map_err(|_| Failure::new("BadRequest", format!("invalid resource version: {from}")))?
    };
    let news = store.listen();
    drop(store);
    let seconds = ask.query("timeoutSeconds").parse().map(Duration::from_secs);
    let watch = Watch {
        cluster: Arc::clone(cluster),
        selector,
        resource,
        revision,
        ready,
        news,
        until: Instant::now() + seconds.unwrap_or(LONGEST).min(LONGEST),
        bookmark: Instant::now() + BOOKMARK,
        drops,
        is_over: false,
        ask,
    };
    let lines = stream::unfold(watch, async |mut watch| {
        let line = watch.next().await?;
        Some((Ok::<_, Infallible>(Bytes::from(format!("{line}\n"))), watch))
    });
    let kind = [(header::CONTENT_TYPE, "application/json")];
    Ok((kind, Body::from_stream(lines)).into_response())
}

fn bookmark(ask: &Ask, revision: u64) -> Value {
    json!({ "type": "BOOKMARK", "object": {
        "kind": ask.kind.kind, "apiVersion": ask.kind.api_version(&ask.version),
        "metadata": { "resourceVersion": revision.to_string(), "creationTimestamp": null },
    } })
}

impl Watch {
    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.is_over || Instant::now() >= self.until || self.cluster.trouble().drops != self.drops {
                return None;
            }
            self.news.mark_unchanged();
            if let Err(failure) = self.read() {
                self.is_over = true;
                return Some(json!({ "type": "ERROR", "object": failure.status() }));
            }
            if !self.ready.is_empty() {
                continue;
            }
            if Instant::now() >= self.bookmark {
                self.bookmark = Instant::now() + BOOKMARK;
                if self.ask.query("allowWatchBookmarks") == "true" {
                    return Some(bookmark(&self.ask, self.revision));
                }
            }
            // The interval at which a requested end of watches is checked.
            let soon = Duration::from_millis(50);
            let _ = tokio::time::timeout(soon, self.news.changed()).await;
        }
    }

    fn read(&mut self) -> Answer<()> {
        let store = self.cluster.store();
        let changes = store.since(self.revision)?;
        self.revision = store.revision();
        drop(store);
        for change in changes {
            if change.place.resource == self.resource
                && namespace(&self.ask).is_none_or(|namespace| change.place.namespace == namespace)
                && let Some(word) = self.word(&change)
            {
                self.ready
                    .push_back(json!({ "type": word, "object": shown(&self.ask, &change.object) }));
            }
        }
        Ok(())
    }

    /// Returns the type of a change for this watch. An object that the selector no longer matches counts as deleted,
    /// and one that it matches from now on counts as new.
    fn word(&self, change: &Change) -> Option<&'static str> {
        let was = change
            .before
            .as_ref()
            .is_some_and(|before| self.selector.matches(before));
        let is = !change.is_gone && self.selector.matches(&change.object);
        match (was, is) {
            (false, true) => Some("ADDED"),
            (true, true) => Some("MODIFIED"),
            (true, false) => Some("DELETED"),
            (false, false) => None,
        }
    }
}
