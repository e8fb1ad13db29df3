//! The leader's loop. It checks each known node, records what is decided, and then applies it.
//!
//! A failure is retried at the next check, which is possible because all state that matters is in the cluster.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{interval, timeout_at};

use super::chores::Setting;
use super::known::{self, Known};
use super::nodes::{self, Nodes};
use super::policy::{Breaker, Census, Health, Marks, NodeView, Report, Rung, Scene, State, step};
use super::retry::Retry;
use super::{chores, objects};
use crate::api::{Failed, Patch};
use crate::say;
use crate::timestamp::now_ms;

/// The interval of checks.
const LOOK: Duration = Duration::from_millis(500);
/// Limit of reports processed per check.
const MOST_AT_ONCE: usize = 1024;

/// A report whose sender waits for the decision.
pub struct Said {
    /// The node that the report is about.
    pub node: String,
    /// The report.
    pub report: Report,
    /// Channel on which the decision is sent.
    pub answer: oneshot::Sender<String>,
}

/// One term as the leader.
pub struct Term<'a> {
    setting: &'a Setting,
    nodes: Nodes,
    known: BTreeMap<String, Known>,
    breaker: Option<Breaker>,
    /// Whether the breaker's ConfigMap is up to date. If it is, only an administrator's reset can have removed it.
    is_breaker_written: bool,
    started: u64,
    until: watch::Receiver<Option<Instant>>,
    /// Retries for the breaker's ConfigMap.
    place: Retry,
}

impl Term<'_> {
    /// Leads until the term ends. It first reads the state in the cluster and continues from there.
    ///
    /// # Errors
    /// Returns an error if the state in the cluster cannot be read.
    pub async fn serve(
        setting: &Setting,
        until: watch::Receiver<Option<Instant>>,
        reports: &mut mpsc::Receiver<Said>,
    ) -> Result<(), Failed> {
        let mut term = Term {
            setting,
            nodes: Nodes::default(),
            known: BTreeMap::new(),
            breaker: chores::read_breaker(setting).await?,
            is_breaker_written: true,
            started: now_ms(),
            until,
            place: Retry::default(),
        };
        term.known = known::read(&setting.api).await?;
        let version = term.nodes.read(&setting.api).await?;
        let left = known::adopt(&mut term.known, &term.nodes, &setting.rules, term.started);
        if !left.is_empty() {
            let left = left.join(", ");
            say(format_args!(
                "more nodes have marks of paceline than the limit allows, left unchanged: {left}"
            ));
        }
        let follow = tokio::spawn(term.nodes.clone().follow(
            setting.api.clone(),
            Arc::clone(&setting.counts),
            version,
        ));
        say(format_args!(
            "leader, responsible for {} nodes",
            term.nodes.fleet().len()
        ));
        let mut ticks = interval(LOOK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while term.is_in_charge() {
            // Without a watch, decisions would be based on stale nodes, so the process must end.
            assert!(!follow.is_finished(), "the watch of nodes ended");
            ticks.tick().await;
            term.look(reports).await;
        }
        follow.abort();
        say("no longer the leader");
        Ok(())
    }

    /// Returns true if this replica is certainly the leader. In doubt, the replica must not act.
    fn is_in_charge(&self) -> bool {
        self.until.borrow().is_some_and(|until| until > Instant::now())
    }

    async fn look(&mut self, reports: &mut mpsc::Receiver<Said>) {
        let asked = self.hear(reports);
        let now = now_ms();
        self.heed_reset().await;
        let all = self
            .known
            .iter()
            .filter(|(_, known)| known.health.state != State::Gone);
        let all = all.map(|(name, known)| (name, &known.health));
        let mut census = Census::of(
            all,
            &self.nodes.fleet(),
            self.breaker.clone(),
            &self.setting.rules,
            now,
        );
        if census.breaker != self.breaker {
            self.trip(&census);
        }
        self.write_breaker().await;
        let mut tally = BTreeMap::new();
        let names: Vec<String> = self.known.keys().cloned().collect();
        for name in names {
            if !self.is_in_charge() {
                return;
            }
            self.tend(&name, &mut census).await;
            if let Some(known) = self.known.get(&name) {
                *tally.entry(known.health.state).or_insert(0) += 1;
            }
        }
        self.setting.counts.stand(&tally, &census);
        for (name, answer) in asked {
            let known = self.known.get(&name);
            // Send no response, so that the sender retries. A report that is not yet recorded in the cluster would be
            // lost if this process ended.
            if known.is_some_and(|known| known.is_unwritten) {
                continue;
            }
            let says = known.map_or("no-node".to_owned(), |known| {
                format!("{:?}: {}", known.health.state, known.health.reason)
            });
            // A failed send means that the sender has disconnected, which is not an error.
            let _ = answer.send(says);
        }
    }

    fn hear(&mut self, reports: &mut mpsc::Receiver<Said>) -> Vec<(String, oneshot::Sender<String>)> {
        let mut asked = Vec::new();
        while asked.len() < MOST_AT_ONCE {
            let Ok(said) = reports.try_recv() else { break };
            let Said { node, report, answer } = said;
            // A report that a finding has cleared matters only for a node with a recorded state.
            if let Some(view) = self.nodes.one(&node)
                && (report.holds || self.known.contains_key(&node))
            {
                let known = self.known.entry(node.clone()).or_insert_with(|| Known {
                    health: Health {
                        // A repair recorded before this report does not count as a repair of this fault.
                        repaired: view.repaired.clone(),
                        ..Health::of(&view.uid, &view.boot, now_ms())
                    },
                    ..Known::default()
                });
                known.health.hear(report, now_ms());
            }
            asked.push((node, answer));
        }
        asked
    }

    /// Closes the breaker when an administrator has reset it.
    async fn heed_reset(&mut self) {
        let now = now_ms();
        if self.breaker.is_none() || !self.is_breaker_written || !self.place.is_due(now) {
            return;
        }
        let asked = chores::is_reset(self.setting).await;
        let asked = self.place.came(asked, "breaker", &self.setting.counts, now);
        if let Some(who) = asked.flatten() {
            say(format_args!("the breaker was reset: {who}"));
            self.breaker = None;
            // Backdate all findings so far, because the administrator has seen them.
            for known in self.known.values_mut() {
                for incident in known.health.incidents.values_mut() {
                    let long_ago =
                        now.saturating_sub((self.setting.rules.guard.breaker_window_s + 60) * 1000);
                    incident.since = incident.since.min(long_ago);
                }
                if known.health.refused.take().is_some() {
                    known
                        .health
                        .note(now, "breaker-reset", format!("a person reset the breaker: {who}"));
                }
            }
        }
    }

    fn trip(&mut self, census: &Census) {
        self.breaker.clone_from(&census.breaker);
        self.is_breaker_written = false;
        if let Some(breaker) = &self.breaker {
            say(format_args!(
                "the breaker opens: {} of {} nodes have findings at once",
                breaker.nodes, breaker.of
            ));
            self.setting.counts.trips.inc();
        }
    }

    /// Writes the breaker to its ConfigMap if that is due. A failed write is retried, and the breaker stays open.
    async fn write_breaker(&mut self) {
        let now = now_ms();
        let is_due = !self.is_breaker_written && self.place.is_due(now);
        let Some(breaker) = self.breaker.as_ref().filter(|_| is_due) else {
            return;
        };
        let written = chores::write_breaker(self.setting, breaker).await;
        let written = self.place.came(written, "breaker", &self.setting.counts, now);
        self.is_breaker_written = written.is_some();
    }

    /// Processes one node. It decides, records the decision, and applies it.
    async fn tend(&mut self, name: &str, census: &mut Census) {
        let Some(known) = self.known.get_mut(name) else {
            return;
        };
        let now = now_ms();
        let Some(node) = self.nodes.one(name) else {
            return self.gone(name, now).await;
        };
        let scene = Scene {
            now,
            started: self.started,
            rules: &self.setting.rules,
            census,
        };
        step(&mut known.health, &node, &scene);
        census.count(name, &known.health);
        if known.health.is_blank() && known.version.is_empty() {
            self.known.remove(name);
            return;
        }
        known.is_unwritten = known.version.is_empty() || known.is_worth_a_write(now);
        if known.is_unwritten {
            if !known.record.is_due(now) {
                return;
            }
            let written = self.write(name, &node, now).await;
            if self.came(name, |known| &mut known.record, written, now).is_none() {
                return;
            }
        }
        let is_due = |due: fn(&Known) -> &Retry, term: &Self| {
            let known = term.known.get(name);
            known.is_some_and(|known| due(known).is_due(now))
        };
        if census.lets_act(&node, &self.setting.rules) && is_due(|known| &known.deeds, self) {
            let done = self.act(name, &node, now).await;
            self.came(name, |known| &mut known.deeds, done, now);
        }
        if is_due(|known| &known.events, self) {
            let told = match self.known.get_mut(name) {
                Some(known) => chores::tell(self.setting, known, &node).await,
                None => Ok(()),
            };
            self.came(name, |known| &mut known.events, told, now);
        }
    }

    fn came<T>(
        &mut self,
        name: &str,
        which: fn(&mut Known) -> &mut Retry,
        came: Result<T, Failed>,
        now: u64,
    ) -> Option<T> {
        let known = self.known.get_mut(name)?;
        which(known).came(came, name, &self.setting.counts, now)
    }

    /// Writes the node's state to the cluster and then applies it. A decision is recorded before it is applied.
    async fn write(&mut self, name: &str, node: &NodeView, now: u64) -> Result<(), Failed> {
        let Some(known) = self.known.get_mut(name) else {
            return Ok(());
        };
        let api = &self.setting.api;
        if known.version.is_empty() {
            known.version = chores::make_health(api, node).await?;
        }
        let written = known.write(api, name, now).await;
        match &written {
            Err(failed) if failed.is_missing() => known.version.clear(),
            Err(failed) if failed.is_conflict() => {
                // Another client has changed the object. Overwrite its new version with the state in memory.
                let object = api.get(&format!("{}/{name}", objects::HEALTHS)).await?;
                known.version = objects::version(&object);
            }
            _ => {}
        }
        written
    }

    async fn act(&mut self, name: &str, node: &NodeView, now: u64) -> Result<(), Failed> {
        let Some(known) = self.known.get_mut(name) else {
            return Ok(());
        };
        let (api, marks) = (&self.setting.api, Marks::of(&known.health));
        let path = format!("{}/{name}", nodes::PATH);
        known.health.hindered = self.nodes.blind();
        if let Some(patch) = marks.patch(node) {
            // On a conflict, another client wrote first. Read the node again before the next attempt.
            let patched = match api.patch(&path, Patch::Merge, &patch).await {
                Err(failed) if failed.is_conflict() => {
                    let seen = api.get(&path).await;
                    let seen = seen.inspect_err(|failed| {
                        chores::hindered(&mut known.health, "the node cannot be read", failed)
                    });
                    self.nodes.saw(&seen?);
                    return Ok(());
                }
                other => other.inspect_err(|failed| {
                    chores::hindered(&mut known.health, "the node cannot be marked", failed)
                })?,
            };
            self.nodes.saw(&patched);
            self.setting.counts.patched();
        }
        // Pods are evicted only under this program's own cordon.
        let seen = self.nodes.one(name);
        let is_ours = seen.is_some_and(|node| node.bears() == Rung::Cordon);
        known.health.cordoned |= is_ours && known.health.rung >= Rung::Cordon;
        // A failed write of the condition must not block or delay taking the node out of service or returning it.
        if known.condition.is_due(now) {
            let told = chores::condition(api, &marks, node, now).await;
            let seen = known.condition.came(told, name, &self.setting.counts, now);
            seen.flatten().iter().for_each(|node| self.nodes.saw(node));
        }
        if is_ours {
            chores::drain(self.setting, name, &mut known.health, now).await?;
        }
        chores::preflight(self.setting, node, &mut known.health, now).await
    }

    /// Handles a node that no longer exists. Its NodeHealth shows this until it is deleted with its owner, the Node.
    async fn gone(&mut self, name: &str, now: u64) {
        let Some(known) = self.known.get_mut(name) else {
            return;
        };
        if known.health.state != State::Gone {
            known.health.stand(now, State::Gone, "the Node no longer exists");
            known.health.note(now, "gone", "the Node no longer exists");
        }
        if !known.version.is_empty() && known.health != known.written {
            if !known.record.is_due(now) {
                return;
            }
            let written = match known.write(&self.setting.api, name, now).await {
                Err(failed) if failed.is_missing() || failed.is_conflict() => Ok(()),
                other => other,
            };
            if self.came(name, |known| &mut known.record, written, now).is_none() {
                return;
            }
        }
        self.known.remove(name);
    }
}

/// Leads whenever this replica holds the Lease. `until` carries the lease state; returns when its sender is dropped.
pub async fn run(
    setting: Setting,
    mut until: watch::Receiver<Option<Instant>>,
    mut reports: mpsc::Receiver<Said>,
) {
    let mut retry = Retry::default();
    loop {
        if until.wait_for(Option::is_some).await.is_err() {
            return;
        }
        let served = Term::serve(&setting, until.clone(), &mut reports).await;
        retry.came(served, "cannot begin", &setting.counts, now_ms());
        // Drop the remaining reports, because their senders retry with the next leader.
        while reports.try_recv().is_ok() {}
        let pause = tokio::time::Instant::now() + Duration::from_secs(1);
        let _ = timeout_at(pause, until.wait_for(Option::is_none)).await;
    }
}
