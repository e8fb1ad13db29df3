//! A Kubernetes API server for tests. It keeps objects of any kind in memory and answers as the real one does where it matters to
//! clients: versions and conflicts, watches that expire, four ways to patch, finalizers and owners, evictions with their budgets,
//! webhooks that are called by HTTPS, tokens, and rights by the Roles that are there. Objects of CustomResourceDefinitions are pruned and
//! checked by their schemas; of Kubernetes' own kinds it knows none (what it takes is not proof that the real server would). It has no scheduler, no controllers but the garbage collector, and of the kubelet only that it ends pods.
//!
//! Webhooks' matchConditions are not evaluated: all of their pods are asked about.
//!
//! Lists come as tables where kubectl asks for them and a CustomResourceDefinition says what to show; of Kubernetes' own kinds they do not.
//! With `--keep FILE` it can be killed and started again: objects, tokens and its certificate are there, older changes are not.
//!
//! A Service's address is one of its Endpoints in turn, which a test writes itself. What only tests ask for, as the administrator:
//!
//! - `POST /_test/trouble` with any of `{"away_ms": 60000, "slow_ms": 5, "kubelet_ms": 50, "conflicts": {"nodes": 1},
//!   "dead_nodes": ["n1"], "drop_watches": true, "compact": true, "crowded": {"pods/eviction": 2},
//!   "meanwhile": {"POD": "gone" or "another"}}`: crowded is what priority and fairness turn away; meanwhile is what happens to a pod just
//!   before it is evicted
//! - `GET /_test/audit`: who asked what, how often, with which answer
//! - `GET /_test/webhooks`: how often webhooks were called, how often in vain and why, and how long each call took

#![recursion_limit = "256"]

pub mod access;
pub mod admission;
pub mod certificate;
pub mod client;
pub mod cluster;
pub mod door;
pub mod failure;
pub mod keep;
pub mod kinds;
pub mod leaving;
pub mod objects;
pub mod patch;
pub mod pods;
pub mod request;
mod room;
pub mod schema;
pub mod select;
pub mod serve;
pub mod stamp;
pub mod store;
pub mod table;
pub mod watching;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use certificate::Identity;
use cluster::Cluster;

/// A server that runs until it is dropped.
#[derive(Debug)]
pub struct Server {
    /// What it knows: a test may look, and make trouble.
    pub cluster: Arc<Cluster>,
    /// Where it listens.
    pub address: SocketAddr,
    /// The CA that its certificate is of (PEM).
    pub ca: String,
    /// The administrator's bearer token.
    pub token: String,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    /// Listens there; port 0 is any. What it holds goes with it.
    ///
    /// # Errors
    /// When the address cannot be had, or no certificate made.
    pub async fn start(address: SocketAddr) -> anyhow::Result<Server> {
        let identity = Identity::new()?;
        let cluster = Cluster::new(&identity.token);
        Server::serve(address, cluster, identity).await
    }

    /// The same with all that it holds in a file, from which it goes on after its end: objects, tokens, certificate.
    ///
    /// # Errors
    /// As [`Server::start`], and when the file cannot be read or written, or is another's.
    pub async fn start_keeping(address: SocketAddr, file: &Path) -> anyhow::Result<Server> {
        let (keep, lines) = keep::Keep::open(file)?;
        let identity = match lines.first() {
            Some(line) => Identity::read(line)?,
            None => Identity::new()?,
        };
        let mut cluster = Cluster::new(&identity.token);
        if lines.is_empty() {
            keep.write(&identity.line());
        } else {
            cluster.restore(&lines[1..])?;
        }
        cluster.store().keep_in(keep, lines.is_empty());
        Server::serve(address, cluster, identity).await
    }

    async fn serve(address: SocketAddr, cluster: Cluster, identity: Identity) -> anyhow::Result<Server> {
        let Identity { ca, token, .. } = &identity;
        let (ca, token) = (ca.clone(), token.clone());
        let config = identity.config()?;
        let cluster = Arc::new(cluster);
        leaving::resume(&cluster);
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let door = door::Door::of(
            listener,
            TlsAcceptor::from(Arc::new(config)),
            Arc::clone(&cluster),
        )?;
        let pages = serve::pages(&cluster);
        let task = tokio::spawn(async move {
            // It never ends by itself.
            let _ = axum::serve(door, pages).await;
        });
        Ok(Server {
            cluster,
            address,
            ca,
            token,
            task,
        })
    }

    /// A kubeconfig (JSON is YAML) for whoever has this token.
    pub fn kubeconfig(&self, token: &str) -> Value {
        use base64::Engine as _;
        let ca = base64::engine::general_purpose::STANDARD.encode(&self.ca);
        let server = format!("https://{}", self.address);
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{ "name": "test", "cluster": { "server": server, "certificate-authority-data": ca } }],
            "users": [{ "name": "test", "user": { "token": token } }],
            "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "test", "namespace": "default" } }],
        })
    }
}
