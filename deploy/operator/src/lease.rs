//! Leader election. The leader is the replica that holds the Lease, and it stays the leader only while it can renew the
//! Lease.
//!
//! No replica relies on another's clock. A replica considers a Lease free when the Lease has not changed for its
//! duration, measured with the replica's own clock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::select_all;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::api::{Api, Failed};
use crate::timestamp;

/// The time until which this replica is the leader, or `None` if it is not.
pub type Lead = watch::Receiver<Option<Instant>>;

/// Returns true if this replica is the leader now.
pub fn leads(lead: &Lead) -> bool {
    lead.borrow().is_some_and(|until| until > Instant::now())
}

/// Waits until one of the tasks ends. The tasks run forever, so a task that ends has panicked, and the panic was
/// already logged.
pub(crate) async fn first_end(tasks: &mut [JoinHandle<()>]) -> anyhow::Error {
    if tasks.is_empty() {
        std::future::pending().await
    }
    match select_all(tasks).await.0 {
        Ok(()) => anyhow::anyhow!("a permanent task has ended"),
        Err(problem) => anyhow::anyhow!("a task has ended, and this process with it: {problem}"),
    }
}

/// The client of one Lease; see the module documentation.
pub struct Lease {
    api: Api,
    namespace: String,
    name: String,
    me: String,
    lasts: Duration,
    /// The last seen state of another replica's Lease, and the time since when it has been unchanged.
    seen: Option<(String, Instant)>,
}

impl Lease {
    /// Creates the client. `me` must be unique for each process, so that a restarted process does not mistake its
    /// predecessor's Lease for its own.
    pub fn of(api: Api, namespace: &str, name: &str, me: &str, lasts: Duration) -> Lease {
        Lease {
            api,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            me: me.to_owned(),
            lasts,
            seen: None,
        }
    }

    fn path(&self) -> String {
        format!(
            "/apis/coordination.k8s.io/v1/namespaces/{}/leases",
            self.namespace
        )
    }

    /// Runs forever, and publishes in `until` the time until which this replica is the leader, or `None` if it is not
    /// the leader.
    pub async fn hold(mut self, until: Arc<watch::Sender<Option<Instant>>>) {
        loop {
            let asked = Instant::now();
            let taken = self.take().await;
            match taken {
                // This replica counts from before the request, so it stops leading before the Lease expires for other
                // replicas, which count from a later time.
                Ok(true) => drop(until.send_replace(Some(asked + self.lasts * 2 / 3))),
                Ok(false) => drop(until.send_replace(None)),
                // If the Lease cannot be renewed, this replica remains the leader only until the published time.
                Err(_) => {
                    until.send_if_modified(|until| until.take_if(|until| *until <= Instant::now()).is_some());
                }
            }
            sleep(self.lasts / 5).await;
        }
    }

    /// Takes the Lease from its holder, which notices this at its next renewal. Returns true if the Lease had a holder.
    /// If there is no Lease, no replica is acting.
    ///
    /// # Errors
    /// Returns [`Failed`] if a request fails.
    pub async fn seize(&self) -> Result<bool, Failed> {
        let one = format!("{}/{}", self.path(), self.name);
        loop {
            let mut lease = match self.api.get(&one).await {
                Ok(lease) => lease,
                Err(failed) if failed.is_missing() => return Ok(false),
                Err(failed) => return Err(failed),
            };
            let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
            let was_held = !holder.is_empty();
            let changes = lease["spec"]["leaseTransitions"].as_u64().unwrap_or(0);
            lease["spec"] = self.spec(changes + 1, true, &Value::Null);
            match self.api.put(&one, &lease).await {
                Ok(_) => return Ok(was_held),
                // The holder has renewed the Lease in the meantime, so try again.
                Err(failed) if failed.is_conflict() => {}
                Err(failed) => return Err(failed),
            }
        }
    }

    /// Releases the Lease, so that the next leader need not wait for its expiry.
    ///
    /// # Errors
    /// Returns [`Failed`] if a request fails.
    pub async fn release(api: &Api, namespace: &str, name: &str, me: &str) -> Result<(), Failed> {
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}");
        let mut lease = api.get(&path).await?;
        if lease["spec"]["holderIdentity"] == me {
            lease["spec"]["holderIdentity"] = json!("");
            lease["spec"]["leaseDurationSeconds"] = json!(1);
            api.put(&path, &lease).await?;
        }
        Ok(())
    }

    async fn take(&mut self) -> Result<bool, Failed> {
        let one = format!("{}/{}", self.path(), self.name);
        let mut lease = match self.api.get(&one).await {
            Ok(lease) => lease,
            Err(failed) if failed.is_missing() => {
                let lease = json!({
                    "apiVersion": "coordination.k8s.io/v1",
                    "kind": "Lease",
                    "metadata": { "name": self.name, "namespace": self.namespace },
                    "spec": self.spec(0, true, &Value::Null),
                });
                return match self.api.post(&self.path(), &lease).await {
                    Ok(_) => Ok(true),
                    Err(failed) if failed.is_conflict() => Ok(false),
                    Err(failed) => Err(failed),
                };
            }
            Err(failed) => return Err(failed),
        };
        let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
        let is_mine = holder == self.me;
        if !is_mine && !holder.is_empty() && !self.is_stale(&lease) {
            return Ok(false);
        }
        let changes = lease["spec"]["leaseTransitions"].as_u64().unwrap_or(0);
        lease["spec"] = self.spec(
            changes + u64::from(!is_mine),
            !is_mine,
            &lease["spec"]["acquireTime"],
        );
        match self.api.put(&one, &lease).await {
            Ok(_) => Ok(true),
            Err(failed) if failed.is_conflict() => Ok(false),
            Err(failed) => Err(failed),
        }
    }

    fn is_stale(&mut self, lease: &Value) -> bool {
        let version = lease["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        let lasts = lease["spec"]["leaseDurationSeconds"].as_u64().unwrap_or(15);
        match &self.seen {
            Some((seen, since)) if seen == version => since.elapsed() >= Duration::from_secs(lasts),
            _ => {
                self.seen = Some((version.to_owned(), Instant::now()));
                false
            }
        }
    }

    fn spec(&self, changes: u64, is_new: bool, acquired: &Value) -> Value {
        // MicroTime has six digits after the second, so three zeros are appended.
        let now = timestamp::write(timestamp::now_ms()).replace('Z', "000Z");
        let acquired = if is_new { json!(now) } else { acquired.clone() };
        json!({
            "holderIdentity": self.me,
            "leaseDurationSeconds": self.lasts.as_secs().max(1),
            "acquireTime": acquired,
            "renewTime": now,
            "leaseTransitions": changes,
        })
    }
}
