//! A Kubernetes API server for tests. It keeps objects of any kind in memory and responds like the real one where that
//! matters to clients: versions and conflicts, watches that expire, four kinds of patches, finalizers and owners,
//! evictions with budgets, webhooks over HTTPS, tokens, and authorization by the existing Roles. Objects of
//! CustomResourceDefinitions are pruned and validated by their schemas; built-in kinds are not (so the real server may
//! reject what this one accepts). It has no scheduler, no controllers except the garbage collector, and of the kubelet
//! only the end of pods.
//!
//! Webhooks' matchConditions are not evaluated. A webhook is called for all pods that its rules match.
//!
//! Lists are returned as tables if kubectl requests them and a CustomResourceDefinition defines columns. Built-in kinds
//! have no tables. With `--keep FILE` the server can be killed and restarted. Objects, tokens and its certificate
//! persist, but older changes do not.
//!
//! A Service resolves to each of its Endpoints in turn; the test must write these. The administrator can also send
//! requests that only tests use:
//!
//! - `POST /_test/trouble` with any of `{"away_ms": 60000, "slow_ms": 5, "kubelet_ms": 50, "conflicts": {"nodes": 1},
//!   "dead_nodes": ["n1"], "drop_watches": true, "compact": true, "crowded": {"pods/eviction": 2},
//!   "meanwhile": {"POD": "gone" or "another"}}`: crowded requests are rejected by priority and fairness; meanwhile is
//!   what happens to a pod just before it is evicted
//! - `GET /_test/audit`: user, request, count and response code
//! - `GET /_test/webhooks`: how often webhooks were called, failed calls and the last failure, and the duration of each
//!   call

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
    /// The server's state. A test can inspect it and set faults.
    pub cluster: Arc<Cluster>,
    /// The server's address.
    pub address: SocketAddr,
    /// The CA of its certificate (PEM).
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
    /// Starts a server on an address; port 0 selects a free one. Its state is lost when it is dropped.
    ///
    /// # Errors
    /// Fails if the address cannot be bound or no certificate can be created.
    pub async fn start(address: SocketAddr) -> anyhow::Result<Server> {
        let identity = Identity::new()?;
        let cluster = Cluster::new(&identity.token);
        Server::serve(address, cluster, identity).await
    }

    /// Starts a server with its state in a file. A new server continues from that file with its objects, tokens and
    /// certificate.
    ///
    /// # Errors
    /// The same as for [`Server::start`]. Also fails if the file cannot be read or written, or has another format.
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
            // The server never ends by itself.
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

    /// Returns a kubeconfig with this token, in JSON, which is valid YAML.
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
