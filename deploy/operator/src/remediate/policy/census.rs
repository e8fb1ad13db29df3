//! Counts the nodes out of service in the cluster. Decides how many more may be taken out, and opens the breaker if so
//! many nodes have findings at the same time that none may be taken out.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::health::Health;
use super::marks::NodeView;
use super::rules::{Mode, Rules};
use crate::timestamp;

/// The open breaker. It opens when too many nodes have findings at the same time, and only an administrator closes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Breaker {
    /// When the breaker opened.
    #[serde(with = "timestamp")]
    pub since: u64,
    /// Number of nodes with findings at that time.
    pub nodes: u32,
    /// Total number of nodes at that time.
    pub of: u32,
}

/// Nodes out of service. Act mode and shadow mode are counted separately.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Out {
    nodes: BTreeSet<String>,
    by_job: BTreeMap<String, u32>,
}

/// The counts; see the module documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Number of the cluster's nodes on which percentages are based.
    pub nodes: u32,
    meant: Out,
    shadow: Out,
    alarming: BTreeSet<String>,
    /// The breaker, if it is open.
    pub breaker: Option<Breaker>,
}

/// Why a node is not taken out of service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The limit of nodes out of service is reached.
    MostOut(u32),
    /// The limit of the cluster's nodes, as a percentage, is reached.
    Cluster(u32, u32),
    /// The limit of a job's nodes, as a percentage, is reached.
    Job(String, u32, u32),
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::MostOut(out) => write!(f, "most-out: {out} nodes are out of service by paceline"),
            Refusal::Cluster(out, nodes) => {
                write!(f, "blast-radius: {out} of the cluster's {nodes} nodes are out")
            }
            Refusal::Job(job, out, nodes) => {
                write!(f, "blast-radius: {out} of the {nodes} nodes of job {job} are out")
            }
        }
    }
}

impl Census {
    /// Counts all nodes with a state. `fleet` has the nodes on which percentages are based. Other nodes can be out of
    /// service too, but do not count for the breaker.
    pub fn of<'a>(
        all: impl IntoIterator<Item = (&'a String, &'a Health)>,
        fleet: &BTreeSet<String>,
        breaker: Option<Breaker>,
        rules: &Rules,
        now: u64,
    ) -> Census {
        let mut census = Census {
            nodes: u32::try_from(fleet.len()).unwrap_or(u32::MAX),
            breaker,
            ..Census::default()
        };
        for (name, health) in all {
            census.count(name, health);
            if fleet.contains(name) && is_alarming(health, rules, now) {
                census.alarming.insert(name.clone());
            }
        }
        census.trip(rules, now);
        census
    }

    /// Counts a node after its decision.
    pub fn count(&mut self, name: &str, health: &Health) {
        for (out, is_out) in [
            (&mut self.meant, health.rung.is_out()),
            (&mut self.shadow, health.shadow.is_out()),
        ] {
            if is_out && out.nodes.insert(name.to_owned()) {
                for job in &health.jobs {
                    *out.by_job.entry(job.clone()).or_default() += 1;
                }
            }
        }
    }

    /// Returns true if any action on a node is allowed.
    pub fn lets_act(&self, node: &NodeView, rules: &Rules) -> bool {
        rules.mode == Mode::Act && !node.hold && self.breaker.is_none()
    }

    /// Checks whether one more node may be taken out. `jobs` has the jobs that report the node, with their number of
    /// nodes.
    ///
    /// # Errors
    /// Returns the reason if the node may not be taken out.
    pub fn admits(&self, mode: Mode, jobs: &BTreeMap<String, u32>, rules: &Rules) -> Result<(), Refusal> {
        let out = if mode == Mode::Act {
            &self.meant
        } else {
            &self.shadow
        };
        let guard = &rules.guard;
        let count = u32::try_from(out.nodes.len()).unwrap_or(u32::MAX);
        if count >= guard.most_out {
            return Err(Refusal::MostOut(count));
        }
        if count >= Rules::share(guard.cluster_percent, self.nodes) {
            return Err(Refusal::Cluster(count, self.nodes));
        }
        for (job, nodes) in jobs {
            let of_job = out.by_job.get(job).copied().unwrap_or(0);
            if of_job >= Rules::share(guard.job_percent, *nodes) {
                return Err(Refusal::Job(job.clone(), of_job, *nodes));
            }
        }
        Ok(())
    }

    /// Returns the number of nodes that are out of service in act mode.
    pub fn out(&self) -> u32 {
        u32::try_from(self.meant.nodes.len()).unwrap_or(u32::MAX)
    }

    /// Returns the number of nodes with new findings within the window.
    pub fn alarming(&self) -> u32 {
        u32::try_from(self.alarming.len()).unwrap_or(u32::MAX)
    }

    fn trip(&mut self, rules: &Rules, now: u64) {
        let (alarming, guard) = (self.alarming(), &rules.guard);
        let many = u64::from(alarming) * 100 >= u64::from(self.nodes) * u64::from(guard.breaker_percent);
        if many && alarming >= guard.breaker_least && self.breaker.is_none() {
            self.breaker = Some(Breaker {
                since: now,
                nodes: alarming,
                of: self.nodes,
            });
        }
    }
}

/// Returns true if a finding that can cause an action was raised within the window.
fn is_alarming(health: &Health, rules: &Rules, now: u64) -> bool {
    let window_ms = rules.guard.breaker_window_s * 1000;
    health.incidents.values().any(|incident| {
        let counts = rules
            .finding(incident.finding)
            .is_some_and(|rule| incident.severity >= rule.severity);
        let is_new = now.saturating_sub(incident.since) < window_ms;
        counts && is_new && incident.provenance == paceline_health::Provenance::Live
    })
}
