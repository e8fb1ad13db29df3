//! Policy changes while the job runs. Every change is a journal entry, so that a replay applies it too.

use std::collections::BTreeMap;
use std::sync::Arc;

use paceline_health::event::{Event, PolicyChange};
use paceline_health::frame::AGGREGATOR;
use paceline_health::policy::PolicyError;
use paceline_health::{Frame, Policy, Provenance};
use serde::{Deserialize, Serialize};

use super::Aggregator;
use crate::aggregator::Plan;
use crate::aggregator::control::{Changed, RELOAD};
use crate::aggregator::inject::Injection;
use crate::warn;

/// The source of a value that was set when the aggregator started.
const START: &str = "start";

impl Aggregator {
    /// Changes values. Either all of them change or none. Unchanged values are not recorded again.
    ///
    /// # Errors
    /// If a key is unknown, or a value is invalid or contradicts another.
    pub fn change(
        &mut self,
        changes: &[(String, f64)],
        by: &str,
        now_ns: u64,
    ) -> Result<Vec<Changed>, PolicyError> {
        let before = self.detector.policy().clone();
        let mut after = before.clone();
        after.set_all(changes.iter().map(|(key, value)| (key.as_str(), *value)))?;
        let by: Arc<str> = Arc::from(by);
        let mut changed: Vec<Changed> = Vec::new();
        for (key, _) in changes {
            let (was, now) = (before.get(key), after.get(key));
            // If a key occurs twice, the last value applies.
            if let (Some(was), Some(now)) = (was, now)
                && was != now
                && !changed.iter().any(|done| done.key == *key)
            {
                let key = key.clone();
                changed.push(Changed { key, was, now });
            }
        }
        let events = changed.iter().map(|change| {
            Event::Policy(PolicyChange {
                key: Arc::from(change.key.as_str()),
                value: change.now,
                by: by.clone(),
            })
        });
        let frames: Vec<Frame> = events.map(|event| self.own_frame(event)).collect();
        self.record(frames, now_ns);
        Ok(changed)
    }

    /// Starts manual fault injection.
    ///
    /// # Errors
    /// The reason if the injection is refused. In that case nothing is injected.
    pub fn inject(&mut self, faults: &[Injection], force: bool, now_ns: u64) -> Result<(), String> {
        let lines = self.injector.begin(faults, force, now_ns)?;
        let frames = lines.into_iter().map(|(node, fault)| Frame {
            node,
            provenance: Provenance::Injected,
            ..self.own_frame(Event::GpuFault(fault))
        });
        let frames = frames.collect();
        self.record(frames, now_ns);
        Ok(())
    }

    /// Applies the values from the flags and files of this start. An aggregator that was restarted by the same launcher
    /// gets the same values as before; in that case, changes made since then stay.
    pub(super) fn start_policy(&mut self, now_ns: u64) {
        let started = &self.said.started;
        let shipped = Policy::default();
        let said: BTreeMap<&str, f64> = self
            .plan
            .policy
            .iter()
            .map(|(key, value)| (key.as_str(), *value))
            .collect();
        let dropped = started.iter().filter_map(|(key, value)| {
            let default = shipped.get(key)?;
            (!said.contains_key(&**key) && *value != default).then(|| (key.to_string(), default))
        });
        let new = said
            .iter()
            .filter(|(key, value)| started.get(**key) != Some(*value))
            .map(|(key, value)| ((*key).to_owned(), *value));
        let changes: Vec<(String, f64)> = dropped.chain(new).collect();
        if let Err(error) = self.change(&changes, START, now_ns) {
            warn::once("policy", error);
        }
    }
}

impl Aggregator {
    /// Returns the values in the configuration files when the policy in force was read from them.
    pub fn known_of_files(&self) -> Vec<(String, f64)> {
        self.known_of_files.clone()
    }
}

/// The sources of policy values, from a journal.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Said {
    /// The values of flags and files at the latest start.
    started: BTreeMap<Arc<str>, f64>,
    /// The values that had changed when the files were reread.
    reloaded: BTreeMap<Arc<str>, f64>,
}

impl Said {
    /// Records the changes made at a start and by a reload. Journals of the first version name no source for changes
    /// made at a start.
    pub(super) fn learn(&mut self, frame: &Frame) {
        let Event::Policy(change) = &frame.event else {
            return;
        };
        if frame.agent != AGGREGATOR {
            return;
        }
        if change.by.is_empty() || &*change.by == START {
            self.started.insert(change.key.clone(), change.value);
            self.reloaded.remove(&change.key);
        } else if &*change.by == RELOAD {
            self.reloaded.insert(change.key.clone(), change.value);
        }
    }

    /// Returns the values for [`Aggregator::known_of_files`]. The plan has the values from before the job began. The
    /// journal has reloaded values, which take precedence unless this start's value differs from the last start's.
    pub(super) fn known_of_files(&self, plan: &Plan) -> Vec<(String, f64)> {
        let Some(reload) = &plan.reload else {
            return Vec::new();
        };
        let said: BTreeMap<&str, f64> = plan
            .policy
            .iter()
            .map(|(key, value)| (key.as_str(), *value))
            .collect();
        let at_start = reload.of_files(&plan.policy);
        let mut known: BTreeMap<String, f64> = at_start.into_iter().collect();
        for (key, value) in &self.reloaded {
            if self.started.get(key) == said.get(&**key) {
                known.insert(key.to_string(), *value);
            }
        }
        known.into_iter().collect()
    }
}
