//! The pods of the cluster, as long as this replica is in charge: each is looked at once as it comes and as it changes, and not kept.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::StreamExt as _;
use kube::core::WatchEvent;
use ring::rand::{SecureRandom as _, SystemRandom};
use serde_json::Value;
use tokio::time::sleep;

use super::counts::Counts;
use super::jobs::{self, Call, Key, Word};
use super::trust::Trust;
use crate::api::Api;
use crate::lease::{Lead, leads};
use crate::review::Rules;
use crate::{say, stamp};

const PODS: &str = "/api/v1/pods";
/// After a failure, and when another is in charge.
const PAUSE: Duration = Duration::from_secs(1);
/// What was done is remembered for so many objects; then it is tried again, which changes nothing.
const REMEMBERED: usize = 10_000;

/// See the module.
pub(super) struct Watcher {
    api: Api,
    rules: Rules,
    counts: Arc<Counts>,
    /// Jobs get Secrets, and owners of pods are told; else the remediator's authority is all.
    is_for_jobs: bool,
    trust: Option<Trust>,
    /// Secrets and Events that are there.
    done: HashSet<String>,
    /// Pods without Paceline, by uid: why not.
    missing: HashMap<String, &'static str>,
}

impl Watcher {
    pub(super) fn new(
        api: Api,
        rules: Rules,
        counts: Arc<Counts>,
        is_for_jobs: bool,
        trust: Option<Trust>,
    ) -> Watcher {
        Watcher {
            api,
            rules,
            counts,
            is_for_jobs,
            trust,
            done: HashSet::new(),
            missing: HashMap::new(),
        }
    }

    pub(super) async fn run(mut self, mut lead: Lead) {
        let mut problem = String::new();
        loop {
            if !leads(&lead) {
                self.forget();
                let _ = tokio::time::timeout(PAUSE, lead.changed()).await;
                continue;
            }
            match self.follow(&lead).await {
                Ok(()) => problem.clear(),
                Err(error) => {
                    let now = format!("{error:#}");
                    if now != problem {
                        say(format_args!("pods: {now}"));
                        problem = now;
                    }
                }
            }
            // Also after a watch that ended in order: an API server that is about to end ends each at once.
            sleep(PAUSE).await;
        }
    }

    fn forget(&mut self) {
        self.done.clear();
        self.missing.clear();
        if let Some(trust) = &mut self.trust {
            trust.forget();
        }
        self.counts.missing(std::iter::empty());
    }

    /// From a list to the end of its watch, or of our time in charge.
    async fn follow(&mut self, lead: &Lead) -> anyhow::Result<()> {
        let mut calls: Vec<(String, Call)> = Vec::new();
        let rules = &self.rules;
        let version = self
            .api
            .list(PODS, "", |pod| {
                let call = jobs::look(pod, rules);
                if call != Call::default() {
                    calls.push((uid(pod), call));
                }
            })
            .await
            .context("the list")?;
        self.missing.clear();
        if let Some(trust) = &mut self.trust {
            trust.forget();
        }
        for (uid, call) in calls {
            self.answer(uid, call).await?;
        }
        self.spread().await?;
        self.show();
        let mut events = Box::pin(self.api.watch(PODS, &version).await.context("the watch")?);
        while leads(lead) {
            self.spread().await?;
            let Ok(event) = tokio::time::timeout(PAUSE, events.next()).await else {
                continue;
            };
            match event {
                None => return Ok(()),
                Some(Err(failed)) => return Err(failed).context("the watch"),
                Some(Ok(WatchEvent::Added(pod) | WatchEvent::Modified(pod))) => {
                    let call = jobs::look(&pod, &self.rules);
                    self.missing.remove(&uid(&pod));
                    self.answer(uid(&pod), call).await?;
                }
                Some(Ok(WatchEvent::Deleted(pod))) => {
                    self.missing.remove(&uid(&pod));
                }
                Some(Ok(WatchEvent::Bookmark(_))) => continue,
                // Most often that it is too old: from a new list on.
                Some(Ok(WatchEvent::Error(_))) => return Ok(()),
            }
            self.show();
        }
        Ok(())
    }

    /// The remediator's authority, where it is wanted.
    async fn spread(&mut self) -> anyhow::Result<()> {
        match &mut self.trust {
            Some(trust) => trust.follow(&self.api, &self.counts).await.context("a ConfigMap"),
            None => Ok(()),
        }
    }

    fn show(&self) {
        self.counts.missing(self.missing.values().copied());
    }

    /// Stops at an API server that does not answer: it comes again with the next list. A refusal is counted, and holds up nobody.
    async fn answer(&mut self, uid: String, call: Call) -> anyhow::Result<()> {
        if let (Some(trust), Some(namespace)) = (&mut self.trust, &call.authority) {
            trust.wants(namespace);
        }
        if !self.is_for_jobs {
            return Ok(());
        }
        if let Some(reason) = call.missing() {
            self.missing.insert(uid, reason);
        }
        if self.done.len() > REMEMBERED {
            self.done.clear();
        }
        if let Some(key) = call.key {
            self.make(&key).await?;
        }
        for word in call.words {
            self.tell(&word).await?;
        }
        Ok(())
    }

    async fn make(&mut self, key: &Key) -> anyhow::Result<()> {
        let mark = format!("{} {} {}", key.namespace, key.name, key.owner);
        if self.done.contains(&mark) {
            return Ok(());
        }
        let path = format!("/api/v1/namespaces/{}/secrets", key.namespace);
        match self.api.post(&path, &key.secret(&random()?)).await {
            Ok(_) => self.counts.secret("made"),
            Err(failed) if failed.is_conflict() => self.counts.secret("exists"),
            Err(failed) if failed.code == 0 || failed.code >= 500 || failed.code == 429 => {
                return Err(failed).context("a Secret");
            }
            Err(failed) => {
                self.counts.secret("failed");
                say(format_args!(
                    "the Secret {}/{} is not made: {failed}",
                    key.namespace, key.name
                ));
            }
        }
        self.done.insert(mark);
        Ok(())
    }

    async fn tell(&mut self, word: &Word) -> anyhow::Result<()> {
        let mark = format!("{} {}", word.namespace, word.name());
        if self.done.contains(&mark) {
            return Ok(());
        }
        let path = format!("/api/v1/namespaces/{}/events", word.namespace);
        match self.api.post(&path, &word.event(stamp::now_ms())).await {
            Ok(_) => self.counts.event(word.code),
            Err(failed) if failed.code == 0 || failed.code >= 500 || failed.code == 429 => {
                return Err(failed).context("an Event");
            }
            // It was said by the one before, or may not be said: the metric says it all the same.
            Err(_) => {}
        }
        self.done.insert(mark);
        Ok(())
    }
}

fn uid(pod: &Value) -> String {
    pod["metadata"]["uid"].as_str().unwrap_or("").to_owned()
}

/// As `head -c 32 /dev/urandom | base64` makes one.
fn random() -> anyhow::Result<String> {
    let mut bytes = [0; 32];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| anyhow::anyhow!("the system gives no randomness"))?;
    Ok(format!("{}\n", STANDARD.encode(bytes)))
}
