//! Authenticates senders. A sender is a pod, identified by its ServiceAccount token. Also determines the job whose pods
//! the sender may report.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use paceline_health::text::sanitize;
use paceline_inject::identity::{Identity, kind_of};
use paceline_inject::remediator;
use ring::digest;
use serde_json::{Value, json};

use crate::api::{Api, Failed};

/// How long a token review is cached. A revoked token is therefore accepted for up to this time.
const REVIEW_LASTS: Duration = Duration::from_secs(60);
/// How long the pods of a job are cached.
const JOB_LASTS: Duration = Duration::from_secs(20);
/// Limit of cached tokens, jobs and pods.
const MOST: usize = 8192;
/// Number of requests that a pod may send in a burst, and per second on average.
const BURST: f64 = 20.0;
const PER_SECOND: f64 = 2.0;

/// An authenticated pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    uid: String,
}

/// A job, as its pods describe it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Job {
    /// The job's namespace and name.
    pub name: String,
    /// The machine of each pod, by the pod's name.
    pub pods: BTreeMap<String, String>,
}

impl Job {
    /// Returns the number of machines.
    pub fn nodes(&self) -> u32 {
        let nodes: BTreeSet<&String> = self.pods.values().collect();
        u32::try_from(nodes.len()).unwrap_or(u32::MAX)
    }
}

/// Why a request is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unheard {
    /// The request has no token, or an invalid one.
    Token,
    /// The token belongs to no pod, or to a deleted pod.
    NoPod(String),
    /// The pod sent too many requests. The value is the number of seconds to wait.
    TooOften(u64),
    /// The API server does not answer.
    Later(Failed),
}

impl From<Failed> for Unheard {
    fn from(failed: Failed) -> Unheard {
        Unheard::Later(failed)
    }
}

struct Bucket {
    left: f64,
    at: Instant,
}

/// The caches and rate limits of senders; see the module documentation.
#[derive(Default)]
pub struct Callers {
    /// Cached token reviews. The keys are digests, so that no token is stored.
    reviews: HashMap<Vec<u8>, (Instant, Caller)>,
    jobs: HashMap<(String, String), (Instant, Job)>,
    buckets: HashMap<String, Bucket>,
}

impl Callers {
    /// Returns the pod with this token, if it is cached.
    pub fn known(&mut self, token: &str) -> Option<Caller> {
        let (at, caller) = self.reviews.get(&hidden(token))?;
        (at.elapsed() < REVIEW_LASTS).then(|| caller.clone())
    }

    /// Caches an authenticated pod.
    pub fn knows(&mut self, token: &str, caller: &Caller) {
        if self.reviews.len() >= MOST {
            self.reviews.clear();
        }
        self.reviews
            .insert(hidden(token), (Instant::now(), caller.clone()));
    }

    /// Checks the rate limit of a pod.
    ///
    /// # Errors
    /// Returns [`Unheard::TooOften`] if the pod has exceeded its rate limit.
    pub fn admit(&mut self, caller: &Caller, now: Instant) -> Result<(), Unheard> {
        if self.buckets.len() >= MOST {
            // Drop the buckets that are full again, because those pods have sent no request for long.
            self.buckets
                .retain(|_, bucket| now.duration_since(bucket.at).as_secs_f64() * PER_SECOND < BURST);
        }
        let bucket = self
            .buckets
            .entry(caller.uid.clone())
            .or_insert(Bucket { left: BURST, at: now });
        bucket.left = (bucket.left + now.duration_since(bucket.at).as_secs_f64() * PER_SECOND).min(BURST);
        bucket.at = now;
        if bucket.left < 1.0 {
            return Err(Unheard::TooOften(2));
        }
        bucket.left -= 1.0;
        Ok(())
    }

    /// Returns the job of a pod, if the job is cached and contains these pods.
    pub fn job(&mut self, caller: &Caller, pods: &[&str]) -> Option<Job> {
        let (at, job) = self.jobs.get(&(caller.namespace.clone(), caller.uid.clone()))?;
        let has_all = pods.iter().all(|pod| job.pods.contains_key(*pod));
        (at.elapsed() < JOB_LASTS && has_all).then(|| job.clone())
    }

    /// Caches a pod's job.
    pub fn found(&mut self, caller: &Caller, job: &Job) {
        if self.jobs.len() >= MOST / 16 {
            self.jobs.retain(|_, (at, _)| at.elapsed() < JOB_LASTS);
        }
        if self.jobs.len() < MOST {
            self.jobs.insert(
                (caller.namespace.clone(), caller.uid.clone()),
                (Instant::now(), job.clone()),
            );
        }
    }
}

fn hidden(token: &str) -> Vec<u8> {
    digest::digest(&digest::SHA256, token.as_bytes())
        .as_ref()
        .to_vec()
}

/// Reviews a token with the API server. The token must be for `audience`. Without `audience`, it must be for the
/// remediator, as in injected pods, or for the API server itself.
///
/// # Errors
/// Returns [`Unheard`] if the request must be rejected.
pub async fn review(api: &Api, token: &str, audience: Option<&str>) -> Result<Caller, Unheard> {
    let first = audience.unwrap_or(remediator::AUDIENCE);
    match review_for(api, token, Some(first)).await {
        Err(Unheard::Token) if audience.is_none() => review_for(api, token, None).await,
        other => other,
    }
}

async fn review_for(api: &Api, token: &str, audience: Option<&str>) -> Result<Caller, Unheard> {
    let mut spec = json!({ "token": token });
    if let Some(audience) = audience {
        spec["audiences"] = json!([audience]);
    }
    let review = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec });
    let answer = api
        .post("/apis/authentication.k8s.io/v1/tokenreviews", &review)
        .await?;
    let status = &answer["status"];
    if status["authenticated"] != true {
        return Err(Unheard::Token);
    }
    if let Some(audience) = audience
        && !status["audiences"]
            .as_array()
            .is_some_and(|all| all.iter().any(|one| one == audience))
    {
        return Err(Unheard::Token);
    }
    let user = status["user"]["username"].as_str().unwrap_or_default();
    let namespace = user
        .strip_prefix("system:serviceaccount:")
        .and_then(|rest| rest.split(':').next());
    let extra =
        |key: &str| status["user"]["extra"][format!("authentication.kubernetes.io/{key}")][0].as_str();
    match (namespace, extra("pod-name"), extra("pod-uid")) {
        (Some(namespace), Some(pod), Some(uid)) => Ok(Caller {
            namespace: namespace.to_owned(),
            pod: pod.to_owned(),
            uid: uid.to_owned(),
        }),
        _ => Err(Unheard::NoPod(format!("the token of {user} is bound to no pod"))),
    }
}

/// Returns the job of the sending pod, with all of the job's pods.
///
/// # Errors
/// Returns [`Unheard`] if the request must be rejected.
pub async fn job_of(api: &Api, caller: &Caller) -> Result<Job, Unheard> {
    let pods = format!("/api/v1/namespaces/{}/pods", caller.namespace);
    let own = match api.get(&format!("{pods}/{}", caller.pod)).await {
        Err(failed) if failed.is_missing() => {
            return Err(Unheard::NoPod("the pod no longer exists".to_owned()));
        }
        other => other?,
    };
    if own["metadata"]["uid"] != caller.uid.as_str() {
        return Err(Unheard::NoPod("another pod has this name".to_owned()));
    }
    let job = name_of(&own);
    let mut found = Job {
        name: format!("{}/{job}", caller.namespace),
        pods: BTreeMap::new(),
    };
    let mut take = |pod: &Value| {
        let name = pod["metadata"]["name"].as_str();
        let machine = pod["spec"]["nodeName"].as_str();
        if let (Some(name), Some(machine)) = (name, machine)
            && kind_of(pod) == kind_of(&own)
            && name_of(pod) == job
        {
            found.pods.insert(name.to_owned(), machine.to_owned());
        }
    };
    take(&own);
    api.list(&pods, &selector(&own), take).await?;
    Ok(found)
}

/// Returns the job's name from the pod's metadata, which is Paceline's annotation or the labels of the pod's operator.
fn name_of(pod: &Value) -> String {
    let said = pod["metadata"]["annotations"]["paceline.dev/job"].as_str();
    said.map_or_else(|| Identity::of_pod(pod, &Value::Null).name, str::to_owned)
}

/// Returns a selector that narrows a list of pods roughly to the job's pods.
fn selector(pod: &Value) -> String {
    use paceline_inject::identity::Kind;
    let label = match kind_of(pod) {
        Kind::PyTorchJob => "training.kubeflow.org/job-name",
        Kind::TrainJob | Kind::JobSet => "jobset.sigs.k8s.io/jobset-name",
        Kind::LeaderWorkerSet => "leaderworkerset.sigs.k8s.io/name",
        Kind::Volcano => "volcano.sh/job-name",
        Kind::RayJob => "ray.io/cluster",
        Kind::Job => "batch.kubernetes.io/job-name",
        Kind::Pod => "",
    };
    match pod["metadata"]["labels"][label].as_str() {
        Some(value) => format!("&labelSelector={}", sanitize::query(&format!("{label}={value}"))),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_may_speak_often_and_not_for_ever() {
        let mut callers = Callers::default();
        let caller = Caller {
            namespace: "ml".to_owned(),
            pod: "p".to_owned(),
            uid: "u".to_owned(),
        };
        let now = Instant::now();
        for _ in 0..20 {
            assert_eq!(callers.admit(&caller, now), Ok(()));
        }
        assert_eq!(callers.admit(&caller, now), Err(Unheard::TooOften(2)));
        let other = Caller {
            uid: "v".to_owned(),
            ..caller.clone()
        };
        assert_eq!(callers.admit(&other, now), Ok(()), "each for itself");
        assert_eq!(callers.admit(&caller, now + Duration::from_secs(1)), Ok(()));
        for index in 0..3 * MOST {
            let stranger = Caller {
                uid: format!("s{index}"),
                ..caller.clone()
            };
            let later = now + Duration::from_secs(60 + index as u64);
            assert_eq!(callers.admit(&stranger, later), Ok(()));
        }
        assert!(callers.buckets.len() <= MOST);
    }

    #[test]
    fn a_jobs_name_is_its_annotation_or_its_labels() {
        let pod = |labels: Value, annotations: Value| json!({ "metadata": { "name": "p-0", "labels": labels, "annotations": annotations } });
        let labels = json!({ "batch.kubernetes.io/job-name": "train" });
        assert_eq!(name_of(&pod(labels.clone(), json!({}))), "train");
        assert_eq!(
            selector(&pod(labels.clone(), json!({}))),
            "&labelSelector=batch.kubernetes.io%2Fjob-name%3Dtrain"
        );
        assert_eq!(
            name_of(&pod(labels, json!({ "paceline.dev/job": "mine" }))),
            "mine"
        );
        assert_eq!(name_of(&pod(json!({}), json!({}))), "p-0");
        assert_eq!(selector(&pod(json!({}), json!({}))), "");
    }
}
