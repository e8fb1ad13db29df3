//! The `release` command, which is run before the operator is uninstalled. It removes what the operator added to nodes
//! and namespaces: the nodes' label, taint, annotation and condition, the ConfigMaps in training namespaces, and
//! preflight Jobs. The leader would restore all of this, so the command takes the leader's Lease first.
//!
//! A node that is out of service stays cordoned, as by `kubectl cordon`, because an administrator must decide when to
//! trust it again. NodeHealths stay as well, because they contain the reason. Annotations set by users also stay.

use std::time::Duration;

use clap::Parser;
use paceline_health::text::sanitize;
use paceline_inject::remediator;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::api::{Api, Failed, Patch};
use crate::lease::Lease;
use crate::remediate::nodes;
use crate::remediate::policy::marks::CONDITION;
use crate::remediate::policy::{Marks, NodeView, Rung};
use crate::{control, remediate, say, timestamp};

/// Number of attempts for a node with frequent write conflicts.
const TRIES: u32 = 5;
/// How long the Leases are held. If the uninstallation is aborted, the operator resumes its work afterwards.
const HELD: Duration = Duration::from_secs(600);

/// Remove the operator's marks from nodes and its objects from namespaces, before it is uninstalled.
#[derive(Clone, Debug, Parser)]
pub struct Options {
    /// The operator's namespace.
    #[arg(long, env = "POD_NAMESPACE", default_value = "paceline", value_name = "NAME")]
    pub namespace: String,
    /// Uncordon nodes that are out of service, even if they have faults. By default they stay cordoned.
    #[arg(long)]
    pub uncordon: bool,
    /// Print what would be done, and exit.
    #[arg(long)]
    pub dry_run: bool,
    /// Lease duration of the operator's replicas: their --lease.
    #[arg(long, default_value_t = 15, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=300))]
    pub lease: u64,
}

struct Release<'a> {
    options: &'a Options,
    api: Api,
    failed: u32,
}

/// Removes everything and logs each change.
///
/// # Errors
/// Returns an error if the API server is unreachable or something could not be removed. The command can then be run
/// again.
pub async fn run(options: &Options) -> anyhow::Result<()> {
    let mut release = Release {
        options,
        api: Api::open().await?,
        failed: 0,
    };
    release.take_charge().await?;
    release.nodes().await?;
    release.authorities().await?;
    release.preflights().await?;
    let failed = release.failed;
    anyhow::ensure!(
        failed == 0,
        "{failed} items could not be removed: see above, and try again"
    );
    Ok(())
}

impl Release<'_> {
    /// Logs what is done, or in a dry run what would be done.
    fn says(&self, text: impl std::fmt::Display) {
        let would = if self.options.dry_run { "would: " } else { "" };
        say(format_args!("{would}{text}"));
    }

    fn came(&mut self, what: &str, came: Result<(), Failed>) {
        match came {
            Err(failed) if failed.is_missing() => {}
            Err(failed) => {
                self.failed += 1;
                say(format_args!("{what}: {failed}"));
            }
            Ok(()) => {}
        }
    }

    /// Takes the Leases, so that no replica restores what is removed.
    async fn take_charge(&self) -> anyhow::Result<()> {
        if self.options.dry_run {
            return Ok(());
        }
        let me = format!("release_{}", timestamp::now_ms());
        let mut was_held = false;
        for name in [control::LEASE, remediate::LEASE] {
            let lease = Lease::of(self.api.clone(), &self.options.namespace, name, &me, HELD);
            let taken = lease.seize().await;
            was_held |= taken.map_err(|failed| anyhow::anyhow!("the Lease {name}: {failed}"))?;
        }
        if was_held {
            say("takes the Lease: waits until the operator's replicas have noticed");
            sleep(Duration::from_secs(self.options.lease)).await;
        }
        Ok(())
    }

    async fn nodes(&mut self) -> anyhow::Result<()> {
        let mut marked = Vec::new();
        let take = |node: &Value| {
            let view = NodeView::of(node);
            marked.extend(view.filter(|view| view.bears_ours() || view.condition(CONDITION).is_some()));
        };
        let listed = self.api.list(nodes::PATH, "", take).await;
        listed.map_err(|failed| anyhow::anyhow!("nodes cannot be listed: {failed}"))?;
        for node in marked {
            let came = self.node(node.clone()).await;
            self.came(&format!("the node {}", node.name), came);
        }
        Ok(())
    }

    async fn node(&self, mut node: NodeView) -> Result<(), Failed> {
        let path = format!("{}/{}", nodes::PATH, node.name);
        let mut tried = 0;
        while let Some(patch) = patch(&node, self.options.uncordon) {
            if tried == 0 {
                let stays = patch["spec"]["unschedulable"] == true;
                let how = if stays {
                    "; it stays cordoned: kubectl uncordon"
                } else {
                    ""
                };
                self.says(format_args!(
                    "the node {} has no marks of paceline any more{how}",
                    node.name
                ));
            }
            if self.options.dry_run {
                break;
            }
            tried += 1;
            match self.api.patch(&path, Patch::Merge, &patch).await {
                Ok(_) => break,
                Err(failed) if failed.is_conflict() && tried < TRIES => {
                    let seen = NodeView::of(&self.api.get(&path).await?);
                    node = seen.ok_or_else(|| Failed::silent("a node without a name"))?;
                }
                Err(failed) => return Err(failed),
            }
        }
        if node.condition(CONDITION).is_none() || self.options.dry_run {
            return Ok(());
        }
        let gone = json!({ "status": { "conditions": [{ "type": CONDITION, "$patch": "delete" }] } });
        let status = format!("{path}/status");
        self.api.patch(&status, Patch::Strategic, &gone).await.map(drop)
    }

    /// Removes the copies of the remediator's CA, which injected pods trust. The copy in the operator's namespace is
    /// removed together with the Helm release.
    async fn authorities(&mut self) -> anyhow::Result<()> {
        let mut spaces = Vec::new();
        let take = |space: &Value| spaces.extend(space["metadata"]["name"].as_str().map(str::to_owned));
        let listed = self.api.list("/api/v1/namespaces", "", take).await;
        listed.map_err(|failed| anyhow::anyhow!("namespaces cannot be listed: {failed}"))?;
        for space in spaces.iter().filter(|space| **space != self.options.namespace) {
            let path = format!("/api/v1/namespaces/{space}/configmaps/{}", remediator::AUTHORITY);
            let came = self.authority(&path, space).await;
            self.came(&path, came);
        }
        Ok(())
    }

    async fn authority(&self, path: &str, space: &str) -> Result<(), Failed> {
        let map = self.api.get(path).await?;
        // A ConfigMap that was written by hand is not removed.
        if map["metadata"]["labels"] != remediator::authority(space, "")["metadata"]["labels"] {
            return Ok(());
        }
        self.says(format_args!(
            "the ConfigMap {space}/{} is deleted",
            remediator::AUTHORITY
        ));
        if self.options.dry_run {
            return Ok(());
        }
        self.api.delete(path).await.map(drop)
    }

    async fn preflights(&mut self) -> anyhow::Result<()> {
        let jobs = format!("/apis/batch/v1/namespaces/{}/jobs", self.options.namespace);
        let ours = sanitize::query("app.kubernetes.io/managed-by=paceline-remediator");
        let mut names = Vec::new();
        let take = |job: &Value| names.extend(job["metadata"]["name"].as_str().map(str::to_owned));
        let listed = self
            .api
            .list(&jobs, &format!("&labelSelector={ours}"), take)
            .await;
        listed.map_err(|failed| anyhow::anyhow!("Jobs cannot be listed: {failed}"))?;
        for name in names {
            self.says(format_args!("the Job {name} is deleted"));
            if !self.options.dry_run {
                let came = self.api.delete(&format!("{jobs}/{name}")).await.map(drop);
                self.came(&format!("the Job {name}"), came);
            }
        }
        Ok(())
    }
}

/// Returns the patch that removes the operator's marks from a node, or `None` if the node has none. A node that is out
/// of service, or on hold and cordoned, is left cordoned.
fn patch(node: &NodeView, uncordon: bool) -> Option<Value> {
    let mut patch = Marks::default().patch(node).filter(|_| node.bears_ours())?;
    let is_out = node.bears() >= Rung::Taint;
    let stays = (is_out && !uncordon) || (node.hold && node.unschedulable);
    if stays {
        patch["spec"]["unschedulable"] = json!(true);
    }
    Some(patch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remediate::policy::marks::{HOLD, LABEL, MARK, TAINT};

    fn node(mark: bool, hold: bool) -> NodeView {
        let mut node = json!({
            "metadata": { "name": "n1", "resourceVersion": "7", "labels": { LABEL: "unhealthy" }, "annotations": {} },
            "spec": { "taints": [{ "key": "example.org/own" }, { "key": TAINT, "value": "gpu-lost", "effect": "NoSchedule" }] },
        });
        if mark {
            node["metadata"]["annotations"][MARK] = json!("paceline-remediator/7");
            node["spec"]["unschedulable"] = json!(true);
        }
        if hold {
            node["metadata"]["annotations"][HOLD] = json!("ada");
        }
        NodeView::of(&node).unwrap()
    }

    #[test]
    fn what_is_out_stays_cordoned_and_bears_nothing_of_ours() {
        for (node, uncordon, wanted) in [
            (node(true, false), false, json!(true)),
            // A taint alone also keeps new pods away, so the node is left cordoned.
            (node(false, false), false, json!(true)),
            (node(true, false), true, json!(null)),
            (node(true, true), true, json!(true)),
        ] {
            let patch = patch(&node, uncordon).unwrap();
            assert_eq!(patch["spec"]["unschedulable"], wanted, "{node:?}");
            assert_eq!(patch["spec"]["taints"], json!([{ "key": "example.org/own" }]));
            assert_eq!(patch["metadata"]["labels"][LABEL], json!(null));
            assert_eq!(
                patch["metadata"]["annotations"].get(MARK).is_some(),
                node.mark.is_some()
            );
            assert_eq!(
                patch["metadata"]["annotations"].get(HOLD),
                None,
                "a person's annotation stays"
            );
            assert_eq!(patch["metadata"]["resourceVersion"], "7");
        }
    }

    #[test]
    fn a_node_of_others_is_left_as_it_is() {
        let mut other = NodeView {
            name: "n2".to_owned(),
            unschedulable: true,
            ..NodeView::default()
        };
        assert_eq!(patch(&other, true), None);
        // A label alone does not take a node out of service, so the node is not left cordoned.
        other.label = Some("unhealthy".to_owned());
        other.unschedulable = false;
        assert_eq!(patch(&other, false).unwrap().get("spec"), None);
    }
}
