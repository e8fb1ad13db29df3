//! Work on one node besides its marks, which consists of evictions and preflights. Also handles the breaker's
//! ConfigMap.

use std::sync::Arc;

use paceline_health::text::sanitize;
use serde_json::{Value, json};

use super::counts::Counts;
use super::known::Known;
use super::policy::drain::{Round, drained, is_due};
use super::policy::health::Check;
use super::policy::recovery::{checked, refused, unrun};
use super::policy::{Breaker, Health, Marks, NodeView, Rules};
use super::{nodes, objects};
use crate::api::{Api, Failed, Patch};
use crate::{say, timestamp};

/// Everything that the leader needs besides the state of the nodes.
pub struct Setting {
    /// The client of the cluster's API server.
    pub api: Api,
    /// The policy.
    pub rules: Rules,
    /// The operator's namespace.
    pub namespace: String,
    /// The image of preflights.
    pub image: String,
    /// The site's settings for preflight pods.
    pub preflight_pod: objects::PreflightPod,
    /// The metrics.
    pub counts: Arc<Counts>,
}

/// Name of the breaker's ConfigMap.
pub const PLACE: &str = "paceline-remediator";
/// Annotation by which an administrator resets the breaker.
const RESET: &str = "paceline.dev/reset-breaker";

/// Message for a node whose GPUs cannot be requested by number. A preflight without GPUs would pass without a
/// measurement.
const UNCOUNTED: &str = "the node has GPUs that its capacity does not count as nvidia.com/gpu (MIG, another vendor, DRA): a preflight cannot measure them; \
    if they are checked by other means, set preflight = \"none\" in the policy";

/// Creates a node's NodeHealth, or finds the existing one. Returns its resourceVersion.
///
/// # Errors
/// Returns [`Failed`] if the request fails.
pub async fn make_health(api: &Api, node: &NodeView) -> Result<String, Failed> {
    let object = match api.post(objects::HEALTHS, &objects::node_health(node)).await {
        Err(failed) if failed.is_conflict() => {
            api.get(&format!("{}/{}", objects::HEALTHS, node.name)).await?
        }
        other => other?,
    };
    Ok(objects::version(&object))
}

/// Updates the node's condition if it differs from the wanted one. Returns the updated Node, if it was updated.
///
/// # Errors
/// Returns [`Failed`] if the request fails.
pub async fn condition(api: &Api, marks: &Marks, node: &NodeView, now: u64) -> Result<Option<Value>, Failed> {
    let Some(patch) = marks.status_patch(node, now) else {
        return Ok(None);
    };
    let path = format!("{}/{}/status", nodes::PATH, node.name);
    api.patch(&path, Patch::Strategic, &patch).await.map(Some)
}

/// Records in the NodeHealth that the API server rejected a decision. A timeout, a conflict and a busy server do not
/// count as rejections.
pub fn hindered(health: &mut Health, what: &str, failed: &Failed) {
    if (400..500).contains(&failed.code) && !matches!(failed.code, 409 | 429) {
        health.hindered = Some(format!("{what}: {failed}"));
    }
}

/// Writes new entries of the history as Events.
///
/// # Errors
/// Returns [`Failed`] if a request fails.
pub async fn tell(setting: &Setting, known: &mut Known, node: &NodeView) -> Result<(), Failed> {
    let fresh = known
        .health
        .history
        .iter()
        .filter(|entry| entry.number > known.told);
    for entry in fresh.cloned().collect::<Vec<_>>() {
        match setting
            .api
            .post(objects::EVENTS, &objects::event(node, &entry))
            .await
        {
            Ok(_) => {
                setting.counts.decided(&entry.what);
                say(format_args!(
                    "{}",
                    json!({ "node": node.name, "at": entry.at, "what": entry.what, "says": entry.says })
                ));
            }
            // A conflict means that the Event exists already.
            Err(failed) if failed.is_conflict() => {}
            Err(failed) => return Err(failed),
        }
        known.told = entry.number;
    }
    Ok(())
}

/// Runs one round of a drain, if one is due.
///
/// # Errors
/// Returns an error if the pods cannot be listed.
pub async fn drain(setting: &Setting, name: &str, health: &mut Health, now: u64) -> Result<(), Failed> {
    if !is_due(health, now) {
        return Ok(());
    }
    let mut pods = Vec::new();
    let take = |pod: &Value| {
        health.claims |= objects::has_claims(pod);
        if objects::is_drained(pod, setting.rules.drain.pods) {
            let text = |key: &str| pod["metadata"][key].as_str().unwrap_or_default().to_owned();
            let is_leaving = pod["metadata"]["deletionTimestamp"].is_string();
            pods.push((text("namespace"), text("name"), text("uid"), is_leaving));
        }
    };
    let listed = pods_on(setting, name, take).await;
    listed.inspect_err(|failed| hindered(health, "its pods cannot be listed", failed))?;
    let mut round = Round {
        left: u32::try_from(pods.len()).unwrap_or(u32::MAX),
        blocked: None,
    };
    for (namespace, pod, uid, is_leaving) in pods {
        if is_leaving {
            continue;
        }
        match evict(setting, &namespace, &pod, &uid).await {
            Evicted::Asked => {}
            Evicted::Gone => round.left = round.left.saturating_sub(1),
            Evicted::Busy(why) => {
                round.blocked.get_or_insert(why);
                break;
            }
            Evicted::Blocked(why) => {
                round.blocked.get_or_insert(why);
            }
        }
    }
    drained(health, round, &setting.rules, now);
    Ok(())
}

async fn pods_on(setting: &Setting, node: &str, take: impl FnMut(&Value)) -> Result<(), Failed> {
    let query = sanitize::query(&format!("spec.nodeName={node}"));
    let query = format!("&fieldSelector={query}");
    setting.api.list("/api/v1/pods", &query, take).await.map(drop)
}

enum Evicted {
    Asked,
    Gone,
    Blocked(String),
    /// The API server asks for a retry later.
    Busy(String),
}

/// Evicts one pod. The eviction API defines the meaning of the responses,
/// <https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/>.
async fn evict(setting: &Setting, namespace: &str, pod: &str, uid: &str) -> Evicted {
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/eviction");
    let answer = setting
        .api
        .post(&path, &objects::eviction(namespace, pod, uid))
        .await;
    let blocked = |says: &str| Evicted::Blocked(format!("{namespace}/{pod}: {says}"));
    let (word, evicted) = match answer {
        Ok(_) => ("asked", Evicted::Asked),
        Err(failed) => {
            let mut causes = failed.causes.iter();
            let budget = causes.find(|(reason, _)| reason == "DisruptionBudget");
            match (failed.code, budget) {
                (404, _) => ("gone", Evicted::Gone),
                // Another pod has this name now. The next round shows whether that pod runs on this node.
                (409, _) => ("another", Evicted::Asked),
                (429, Some((_, says))) => ("budget", blocked(says)),
                // API priority and fairness has rejected the request. No budget is involved, and further evictions
                // would fail too.
                (429, None) => ("busy", Evicted::Busy(format!("the API server is busy: {failed}"))),
                // If two budgets apply to one pod, the server returns an internal error.
                (500, _) if failed.says.contains("PodDisruptionBudget") => ("budgets", blocked(&failed.says)),
                (403, _) => ("forbidden", blocked(&failed.to_string())),
                _ => ("failed", blocked(&failed.to_string())),
            }
        }
    };
    setting.counts.evicted(word);
    evicted
}

/// Starts, checks and ends a preflight that was decided.
///
/// # Errors
/// Returns an error if the API server does not answer. The caller then retries.
pub async fn preflight(
    setting: &Setting,
    node: &NodeView,
    health: &mut Health,
    now: u64,
) -> Result<(), Failed> {
    let check = health
        .recovery
        .as_ref()
        .and_then(|recovery| recovery.preflight.clone());
    let Some(check) = check else { return Ok(()) };
    let looked = look_at(setting, node, health, &check, now).await;
    // A missing permission or quota is reported, and the preflight is retried only for a limited time. A timeout and a
    // busy server do not count as rejections.
    if let Err(failed) = &looked
        && (400..500).contains(&failed.code)
        && failed.code != 429
    {
        refused(
            health,
            &format!("Job {}: {failed}", check.name),
            &setting.rules,
            now,
        );
    }
    looked
}

async fn look_at(
    setting: &Setting,
    node: &NodeView,
    health: &mut Health,
    check: &Check,
    now: u64,
) -> Result<(), Failed> {
    let (api, rules) = (&setting.api, &setting.rules);
    let jobs = format!("/apis/batch/v1/namespaces/{}/jobs", setting.namespace);
    let one = format!("{jobs}/{}", check.name);
    let job = match api.get(&one).await {
        Err(failed) if failed.is_missing() => {
            let has_counted = (node.gpus.is_some() || health.gpus > 0) && !health.sliced;
            if !has_counted {
                pods_on(setting, &node.name, |pod| {
                    health.claims |= objects::has_claims(pod)
                })
                .await?;
            }
            if !has_counted && (node.has_gpus || health.has_hidden_gpus()) {
                unrun(health, UNCOUNTED, rules, now);
                return Ok(());
            }
            let job = objects::Preflight {
                name: &check.name,
                namespace: &setting.namespace,
                gpus: has_counted.then_some(health.gpus.max(1)),
                image: &setting.image,
                pod: &setting.preflight_pod,
                deadline_s: check.until.saturating_sub(now) / 1000,
            };
            let job = api.post(&jobs, &objects::preflight(job, node)).await?;
            if let Some(recovery) = &mut health.recovery {
                // The obstacle that kept the last preflight from running no longer exists.
                recovery.unrun = None;
            }
            job
        }
        other => other?,
    };
    let (passed, says) = match objects::outcome(&job) {
        None if now < check.until => return Ok(()),
        None => (false, "it did not end in time".to_owned()),
        Some(ended) => ended,
    };
    let says = format!("Job {}: {says}", check.name);
    if passed {
        checked(health, true, &says, rules, now);
    } else {
        match objects::ran(&pods_of(setting, &check.name).await?) {
            // Keep the Job until its time to live ends, because its logs may be needed.
            Ok(said) => {
                checked(health, false, &format!("{says} {said}"), rules, now);
                return Ok(());
            }
            // Without deletion, the Job would stay pending and could occupy the GPUs later.
            Err(why) => unrun(health, &format!("Job {}: {why}", check.name), rules, now),
        }
    }
    match api.delete(&one).await {
        Err(failed) if !failed.is_missing() => Err(failed),
        _ => Ok(()),
    }
}

async fn pods_of(setting: &Setting, job: &str) -> Result<Vec<Value>, Failed> {
    let mut pods = Vec::new();
    let path = format!("/api/v1/namespaces/{}/pods", setting.namespace);
    let query = format!(
        "&labelSelector={}",
        sanitize::query(&format!("batch.kubernetes.io/job-name={job}"))
    );
    setting
        .api
        .list(&path, &query, |pod| pods.push(pod.clone()))
        .await?;
    Ok(pods)
}

fn place(setting: &Setting) -> String {
    format!("/api/v1/namespaces/{}/configmaps", setting.namespace)
}

/// Returns the breaker as recorded in the cluster.
///
/// # Errors
/// Returns [`Failed`] if the request fails.
pub async fn read_breaker(setting: &Setting) -> Result<Option<Breaker>, Failed> {
    match setting.api.get(&format!("{}/{PLACE}", place(setting))).await {
        Ok(map) => {
            let text = map["data"]["breaker"].as_str();
            Ok(text.and_then(|text| {
                // If the breaker cannot be parsed, it counts as open.
                let unknown = || Breaker {
                    since: timestamp::now_ms(),
                    nodes: 0,
                    of: 0,
                };
                (!text.is_empty()).then(|| serde_json::from_str(text).unwrap_or_else(|_| unknown()))
            }))
        }
        Err(failed) if failed.is_missing() => Ok(None),
        Err(failed) => Err(failed),
    }
}

/// Records the open breaker, for the next leader and for administrators.
///
/// # Errors
/// Returns [`Failed`] if the operation fails.
pub async fn write_breaker(setting: &Setting, breaker: &Breaker) -> Result<(), Failed> {
    let data = json!({ "breaker": serde_json::to_string(breaker).unwrap_or_default(), "since": timestamp::write(breaker.since) });
    // Remove the reset annotation, because a reset from before the breaker opened must not close it.
    let metadata = json!({ "annotations": { RESET: null } });
    let patch = json!({ "metadata": metadata, "data": data });
    let whole = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": PLACE, "namespace": setting.namespace },
        "data": data,
    });
    let all = place(setting);
    setting.api.merge_or_make(&all, PLACE, &patch, &whole).await
}

/// Returns the value of the reset annotation if an administrator has reset the breaker, and removes the annotation.
///
/// # Errors
/// Returns [`Failed`] if a request fails.
pub async fn is_reset(setting: &Setting) -> Result<Option<String>, Failed> {
    let one = format!("{}/{PLACE}", place(setting));
    let map = match setting.api.get(&one).await {
        // Deleting the ConfigMap also resets the breaker.
        Err(failed) if failed.is_missing() => return Ok(Some("the ConfigMap was deleted".to_owned())),
        other => other?,
    };
    let Some(who) = map["metadata"]["annotations"][RESET].as_str() else {
        return Ok(None);
    };
    let patch = json!({
        "metadata": { "annotations": { RESET: null }, "resourceVersion": map["metadata"]["resourceVersion"] },
        "data": { "breaker": null, "since": null },
    });
    setting.api.patch(&one, Patch::Merge, &patch).await?;
    Ok(Some(who.to_owned()))
}
