//! Watches the cluster's pods while this replica is the leader. Each pod is checked when it appears or changes, and is
//! not kept in memory.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::StreamExt as _;
use kube::core::WatchEvent;
use paceline_inject::is_wanted;
use ring::rand::{SecureRandom as _, SystemRandom};
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::counts::Counts;
use super::debts::{Debts, Due, LATER, NOBODY, SOON};
use super::jobs::{self, Call};
use super::trust::{self, Trust};
use crate::api::{Api, Failed};
use crate::lease::{Lead, leads};
use crate::webhook::review::Rules;
use crate::{say, timestamp};

const PODS: &str = "/api/v1/pods";
/// Pause between checks for due writes, after the end of a watch, and while another replica is the leader.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest pause after a failed list. The pause doubles with each failure until it reaches this limit.
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// Number of concurrent writes. With several, a write that hangs does not delay the others.
const AT_ONCE: usize = 8;

/// The result of a write, with the CA at the time of the write.
type Written = (Due, String, Result<(), Failed>);

/// The watcher of pods; see the module documentation.
pub(super) struct Watcher {
    api: Api,
    rules: Rules,
    counts: Arc<Counts>,
    /// True if jobs get Secrets and owners get Events. Otherwise only the remediator's CA is distributed.
    is_for_jobs: bool,
    trust: Option<Trust>,
    debts: Debts,
    writes: JoinSet<Written>,
    /// Pods without Paceline. The key is the pod's uid and the value is the reason.
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
            debts: Debts::default(),
            writes: JoinSet::new(),
            missing: HashMap::new(),
        }
    }

    pub(super) async fn run(mut self, mut lead: Lead) {
        let (mut problem, mut pause) = (String::new(), PAUSE);
        loop {
            if !leads(&lead) {
                self.forget();
                let _ = tokio::time::timeout(PAUSE, lead.changed()).await;
                continue;
            }
            match self.follow(&lead).await {
                Ok(()) => (problem, pause) = (String::new(), PAUSE),
                Err(error) => {
                    let now = format!("{error:#}");
                    if now != problem {
                        say(format_args!("pods: {now}"));
                        problem = now;
                    }
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
            // Pause after a normal end of the watch too, because an API server that is shutting down ends each watch
            // immediately.
            sleep(pause).await;
        }
    }

    fn forget(&mut self) {
        self.debts = Debts::default();
        self.writes = JoinSet::new();
        self.missing.clear();
        if let Some(trust) = &mut self.trust {
            trust.forget();
        }
        self.counts.missing(std::iter::empty());
    }

    /// Lists the pods, then watches them until the watch ends or another replica becomes the leader.
    async fn follow(&mut self, lead: &Lead) -> anyhow::Result<()> {
        let mut calls: Vec<(String, Call)> = Vec::new();
        let (rules, mut waiting) = (&self.rules, HashSet::new());
        let version = self
            .api
            .list(PODS, "", |pod| {
                let call = jobs::look(pod, rules);
                if call != Call::default() {
                    if pod["spec"]["nodeName"].is_null() {
                        waiting.insert(uid(pod));
                    }
                    calls.push((uid(pod), call));
                }
            })
            .await
            .context("the list")?;
        self.missing.clear();
        if let Some(trust) = &mut self.trust {
            trust.forget();
        }
        self.debts.ask_again(&waiting);
        self.debts
            .only(&calls.iter().map(|(uid, _)| uid.clone()).collect::<HashSet<_>>());
        for (uid, call) in calls {
            self.answer(uid, call);
        }
        self.counts.missing(self.missing.values().copied());
        let mut events = Box::pin(self.api.watch(PODS, &version).await.context("the watch")?);
        while leads(lead) {
            self.write();
            tokio::select! {
                Some(written) = self.writes.join_next() => if let Ok((due, ca, came)) = written {
                    self.settle(&due, ca, came);
                },
                event = events.next() => match event {
                    None => return Ok(()),
                    Some(Err(failed)) => return Err(failed).context("the watch"),
                    Some(Ok(WatchEvent::Added(pod) | WatchEvent::Modified(pod))) => self.changed(&pod),
                    Some(Ok(WatchEvent::Deleted(pod))) => {
                        self.missing.remove(&uid(&pod));
                        self.debts.over(&uid(&pod));
                    }
                    Some(Ok(WatchEvent::Bookmark(_))) => continue,
                    // The usual cause is that the version is too old. The caller continues with a new list.
                    Some(Ok(WatchEvent::Error(_))) => return Ok(()),
                },
                () = sleep(PAUSE) => continue,
            }
            self.counts.missing(self.missing.values().copied());
        }
        Ok(())
    }

    fn changed(&mut self, pod: &Value) {
        // Pods that do not request injection are not relevant.
        if is_wanted(pod) != Some(true) {
            return;
        }
        let (uid, call) = (uid(pod), jobs::look(pod, &self.rules));
        self.missing.remove(&uid);
        if call == Call::default() {
            self.debts.over(&uid);
        } else {
            self.answer(uid, call);
        }
    }

    fn answer(&mut self, uid: String, call: Call) {
        if let (Some(trust), Some(namespace)) = (&mut self.trust, &call.authority) {
            trust.wants(namespace);
        }
        if !self.is_for_jobs {
            return;
        }
        let missing = call.missing();
        let (key, words) = (call.key.map(Due::Secret), call.words.into_iter().map(Due::Event));
        for due in key.into_iter().chain(words) {
            self.debts.owe(due, &uid, Instant::now());
        }
        if let Some(reason) = missing {
            self.missing.insert(uid, reason);
        }
    }

    /// Starts the writes that are due.
    fn write(&mut self) {
        let now = Instant::now();
        let (mut ca, mut without) = (String::new(), Vec::new());
        if let Some(trust) = &mut self.trust {
            (ca, without) = trust.look();
        }
        for namespace in without {
            self.debts.owe(Due::Authority(namespace), NOBODY, now);
        }
        while self.writes.len() < AT_ONCE
            && let Some(due) = self.debts.next(now)
        {
            let (api, ca) = (self.api.clone(), ca.clone());
            self.writes.spawn(async move {
                let came = put(&api, &due, &ca).await;
                (due, ca, came)
            });
        }
    }

    /// Handles the result of a write. A failure of the API server is retried. A rejection is also retried, with longer
    /// pauses, because a Secret with this name from an older job may soon be deleted, or a quota may get room. The
    /// owner of an existing Secret is not checked, because that would require permission to read Secrets.
    fn settle(&mut self, due: &Due, ca: String, came: Result<(), Failed>) {
        let failed = match came {
            Ok(()) => {
                match due {
                    Due::Secret(_) => self.counts.secret("made"),
                    Due::Event(word) => self.counts.event(word.code),
                    Due::Authority(_) => self.counts.authority("written"),
                }
                return self.paid(due, ca);
            }
            Err(failed) => failed,
        };
        let has_failed = failed.code == 0 || failed.code >= 500 || failed.code == 429;
        let pause = if has_failed || failed.is_of_one_that_goes() {
            SOON
        } else {
            LATER
        };
        match due {
            // A new pod of the job has requested a Secret that this process created before.
            Due::Secret(_) if failed.is_conflict() && self.debts.is_made(due) => self.paid(due, ca),
            // Either the previous leader has written the Event, or Events are forbidden. The metric reports the problem
            // in both cases.
            Due::Event(_) if !has_failed => self.paid(due, ca),
            Due::Authority(namespace) if !has_failed => {
                self.counts.authority("failed");
                say(format_args!(
                    "the ConfigMap {namespace}/{} could not be written, so pods there cannot report to the \
                     remediator: {failed}",
                    paceline_inject::remediator::AUTHORITY
                ));
                self.paid(due, ca);
            }
            _ if !self.debts.again(due, pause, Instant::now()) => {}
            Due::Secret(_) if failed.is_conflict() => self.counts.secret("exists"),
            Due::Secret(key) => {
                self.counts.secret("failed");
                say(format_args!(
                    "the Secret {}/{} could not be created; retrying: {failed}",
                    key.namespace, key.name
                ));
            }
            _ => say(format_args!("{} failed; retrying: {failed}", due.mark())),
        }
    }

    fn paid(&mut self, due: &Due, ca: String) {
        if let (Due::Authority(namespace), Some(trust)) = (due, &mut self.trust) {
            trust.given(namespace, ca);
        }
        self.debts.paid(due, !matches!(due, Due::Authority(_)));
    }
}

async fn put(api: &Api, due: &Due, ca: &str) -> Result<(), Failed> {
    let (namespace, all, object) = match due {
        Due::Secret(key) => (&key.namespace, "secrets", key.secret(&random()?)),
        Due::Event(word) => (&word.namespace, "events", word.event(timestamp::now_ms())),
        Due::Authority(namespace) => return trust::give(api, namespace, ca).await,
    };
    let path = format!("/api/v1/namespaces/{namespace}/{all}");
    api.post(&path, &object).await.map(drop)
}

fn uid(pod: &Value) -> String {
    pod["metadata"]["uid"].as_str().unwrap_or("").to_owned()
}

/// Returns a random key in the format of `head -c 32 /dev/urandom | base64`.
fn random() -> Result<String, Failed> {
    let mut bytes = [0; 32];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| Failed::silent("the system provides no random numbers"))?;
    Ok(format!("{}\n", STANDARD.encode(bytes)))
}
