//! The last known state of the cluster's nodes, updated by a watch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use kube::core::WatchEvent;
use serde_json::Value;
use tokio::time::sleep;

use super::counts::Counts;
use super::policy::NodeView;
use super::retry::Retry;
use crate::api::{Api, Failed};
use crate::timestamp::now_ms;

/// The API path of nodes.
pub const PATH: &str = "/api/v1/nodes";
/// Pause after a failure.
const BREATH: Duration = Duration::from_secs(1);

/// The nodes; see the module documentation.
#[derive(Clone, Default)]
pub struct Nodes {
    all: Arc<Mutex<BTreeMap<String, NodeView>>>,
    /// Why the watch fails, or `None` if it works.
    blind: Arc<Mutex<Option<String>>>,
}

impl Nodes {
    /// Returns one node.
    pub fn one(&self, name: &str) -> Option<NodeView> {
        self.with(|all| all.get(name).cloned())
    }

    /// Returns why the watch fails, if the API server rejects it. Changes by administrators are not seen while it
    /// fails.
    pub fn blind(&self) -> Option<String> {
        self.blind.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn see(&self, blind: Option<String>) {
        *self.blind.lock().unwrap_or_else(PoisonError::into_inner) = blind;
    }

    /// Returns the names of the nodes on which percentages are based. These are the nodes with GPUs, or all nodes if
    /// none shows a GPU.
    pub fn fleet(&self) -> BTreeSet<String> {
        self.with(|all| {
            let is_any = all.values().any(|node| node.has_gpus);
            let fleet = all.values().filter(|node| node.has_gpus || !is_any);
            fleet.map(|node| node.name.clone()).collect()
        })
    }

    /// Returns the nodes with the operator's marks.
    pub fn ours(&self) -> Vec<NodeView> {
        self.with(|all| all.values().filter(|node| node.bears_ours()).cloned().collect())
    }

    /// Stores a node's state. A version that is older than the stored one is ignored.
    pub fn saw(&self, node: &Value) {
        let Some(view) = NodeView::of(node) else { return };
        self.with(|all| {
            let is_older = all
                .get(&view.name)
                .is_some_and(|known| known.uid == view.uid && is_older(&view, known));
            if !is_older {
                all.insert(view.name.clone(), view);
            }
        });
    }

    fn with<T>(&self, look: impl FnOnce(&mut BTreeMap<String, NodeView>) -> T) -> T {
        look(&mut self.all.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads all nodes. Returns the version of the list.
    ///
    /// # Errors
    /// Returns [`Failed`] if a request fails.
    pub async fn read(&self, api: &Api) -> Result<String, Failed> {
        let mut names = BTreeSet::new();
        let version = api
            .list(PATH, "", |node| {
                if let Some(name) = node["metadata"]["name"].as_str() {
                    names.insert(name.to_owned());
                }
                self.saw(node);
            })
            .await?;
        self.with(|all| all.retain(|name, _| names.contains(name)));
        Ok(version)
    }

    /// Watches nodes forever, starting from a version of the list.
    pub async fn follow(self, api: Api, counts: Arc<Counts>, mut version: String) {
        let mut retry = Retry::default();
        loop {
            let mut came = self.events(&api, &mut version).await;
            if came.is_err() {
                match self.read(&api).await {
                    Ok(now) => version = now,
                    Err(failed) => came = Err(failed),
                }
            }
            if let Err(failed) = came.as_ref()
                && failed.code == 403
            {
                self.see(Some(format!("nodes are not watched: {failed}")));
            }
            // Code 410 means that the version was too old. That is not a failure, because the list has just been read
            // again.
            if came.as_ref().map_or_else(|failed| failed.code != 410, |()| true) {
                retry.came(came, "nodes", &counts, now_ms());
            }
            // Pause after a normal end of the watch too, because an API server that is shutting down ends each watch
            // immediately.
            sleep(BREATH).await;
        }
    }

    async fn events(&self, api: &Api, version: &mut String) -> Result<(), Failed> {
        let mut events = std::pin::pin!(api.watch(PATH, version).await?);
        self.see(None);
        while let Some(event) = events.next().await {
            let node = match event? {
                WatchEvent::Added(node) | WatchEvent::Modified(node) => {
                    self.saw(&node);
                    node
                }
                WatchEvent::Deleted(node) => {
                    if let Some(name) = node["metadata"]["name"].as_str() {
                        self.with(|all| all.remove(name));
                    }
                    node
                }
                WatchEvent::Bookmark(mark) => {
                    *version = mark.metadata.resource_version;
                    continue;
                }
                WatchEvent::Error(status) => return Err(Failed::from(kube::Error::Api(status))),
            };
            if let Some(now) = node["metadata"]["resourceVersion"].as_str() {
                now.clone_into(version);
            }
        }
        Ok(())
    }
}

/// Returns true if `one` is older than `other`. A watch can still deliver the state from before this program's own
/// change.
fn is_older(one: &NodeView, other: &NodeView) -> bool {
    match (one.version.parse::<u64>(), other.version.parse::<u64>()) {
        (Ok(one), Ok(other)) => one < other,
        _ => false,
    }
}
