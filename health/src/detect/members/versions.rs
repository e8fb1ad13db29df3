//! Versions that should be equal on all nodes but are not. The version on most nodes is taken as the intended one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::detect::claim::{Body, Claim, Detail, Outcome, over, piece};

use crate::event::{Agent, Attach};
use crate::frame::Provenance;
use crate::id::{JobId, NodeId};
use crate::report::Installed;
use crate::time::Time;
use crate::verdict::{Cause, Evidence, Finding, Severity, Subject};

/// Maximum number of nodes kept, and maximum number of names on each. No job has more.
const MAX_NODES: usize = 1 << 17;
const MAX_NAMES: usize = 32;
/// If more nodes than this differ, they are not listed individually.
const MAX_NAMED: usize = 16;
/// Versions that affect the speed or the correctness of training. A difference in other versions is only informative.
const DECISIVE: [&str; 6] = ["driver", "cuda", "nccl", "cudnn", "torch", "framework"];

type Versions = BTreeMap<Arc<str>, Arc<str>>;

/// The versions of all nodes, and the open findings about them.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct VersionRule {
    nodes: BTreeMap<NodeId, Versions>,
    /// Nodes with ranks.
    #[serde(default)]
    trainers: BTreeSet<NodeId>,
    /// Time at which the first sidecar started, by its own wall clock. It is only displayed.
    began_unix_ms: Option<u64>,
    provenance: Provenance,
    changed: bool,
    open: BTreeMap<Subject, Said>,
    out: VecDeque<Claim>,
}

/// The open finding on one subject, as it was reported.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Said {
    severity: Severity,
    evidence: Vec<Evidence>,
}

impl VersionRule {
    /// Takes the versions that a node's sidecar reports.
    pub fn agent(&mut self, node: &NodeId, provenance: Provenance, agent: &Agent) {
        if agent.unix_ms > 0 {
            self.began_unix_ms.get_or_insert(agent.unix_ms);
        }
        self.set(node, provenance, "paceline", &agent.paceline);
        for (name, version) in agent.versions.iter().take(MAX_NAMES) {
            self.set(node, provenance, name, version);
        }
    }

    /// Takes the versions that a rank reports.
    pub fn attach(&mut self, node: &NodeId, provenance: Provenance, attach: &Attach) {
        if self.trainers.len() < MAX_NODES && !self.trainers.contains(node) {
            self.trainers.insert(node.clone());
            self.changed = true;
        }
        self.set(node, provenance, "framework", &attach.framework);
    }

    /// Compares the versions. Call it when ranks have completed steps, because all expected nodes have arrived by then.
    pub fn judge(&mut self, at: Time, job: &JobId) {
        if !std::mem::take(&mut self.changed) {
            return;
        }
        let now = self.differences(job);
        let gone: Vec<Subject> = self
            .open
            .keys()
            .filter(|subject| !now.contains_key(*subject))
            .cloned()
            .collect();
        for subject in gone {
            self.open.remove(&subject);
            let outcome = Outcome::default();
            self.out
                .push_back(over(at, Finding::VersionSkew, subject, outcome));
        }
        for (subject, said) in now {
            if self.open.get(&subject) != Some(&said) {
                self.out.push_back(self.claim(at, subject.clone(), &said));
                self.open.insert(subject, said);
            }
        }
    }

    /// Returns the next claim.
    pub fn poll(&mut self) -> Option<Claim> {
        self.out.pop_front()
    }

    /// Returns when the first sidecar started, by its own clock, in milliseconds since 1970.
    pub fn began_unix_ms(&self) -> Option<u64> {
        self.began_unix_ms
    }

    /// Returns the installed versions by name, those on most nodes first, each with its number of nodes.
    pub fn told(&self) -> BTreeMap<Arc<str>, Vec<Installed>> {
        let mut told: BTreeMap<Arc<str>, Vec<Installed>> = BTreeMap::new();
        let mut counts: BTreeMap<(&Arc<str>, &Arc<str>), u32> = BTreeMap::new();
        for (_, name, version) in self.compared() {
            *counts.entry((name, version)).or_default() += 1;
        }
        for ((name, version), nodes) in counts {
            let version = version.clone();
            told.entry(name.clone())
                .or_default()
                .push(Installed { version, nodes });
        }
        for all in told.values_mut() {
            all.sort_by(|a, b| b.nodes.cmp(&a.nodes).then(a.version.cmp(&b.version)));
            all.truncate(MAX_NAMED);
        }
        told
    }

    fn set(&mut self, node: &NodeId, provenance: Provenance, name: &str, version: &Arc<str>) {
        let known = self.nodes.contains_key(node);
        if version.is_empty() || !known && self.nodes.len() >= MAX_NODES {
            return;
        }
        let versions = self.nodes.entry(node.clone()).or_default();
        if versions.get(name) == Some(version) || versions.len() >= MAX_NAMES && !versions.contains_key(name)
        {
            return;
        }
        versions.insert(Arc::from(name), version.clone());
        self.provenance = self.provenance.max(provenance);
        self.changed = true;
    }

    /// Returns the versions of each node that should equal the others'. A node with neither ranks nor NVIDIA's driver,
    /// such as one with only the aggregator, has just our own version.
    fn compared(&self) -> impl Iterator<Item = (&NodeId, &Arc<str>, &Arc<str>)> {
        self.nodes.iter().flat_map(|(node, versions)| {
            let trains =
                self.trainers.is_empty() || self.trainers.contains(node) || versions.contains_key("driver");
            let kept = versions
                .iter()
                .filter(move |(name, _)| trains || &***name == "paceline");
            kept.map(move |(name, version)| (node, name, version))
        })
    }

    /// Returns the nodes that differ from most others, and in what. If it is unclear which version is right, it returns
    /// the job.
    fn differences(&self, job: &JobId) -> BTreeMap<Subject, Said> {
        let mut found: BTreeMap<Subject, Said> = BTreeMap::new();
        let mut by_name: BTreeMap<&Arc<str>, BTreeMap<&Arc<str>, Vec<&NodeId>>> = BTreeMap::new();
        for (node, name, version) in self.compared() {
            let holders = by_name.entry(name).or_default();
            holders.entry(version).or_default().push(node);
        }
        for (name, holders) in by_name {
            if holders.len() < 2 {
                continue;
            }
            let stated: usize = holders.values().map(Vec::len).sum();
            let (usual, most) = holders
                .iter()
                .max_by_key(|(_, nodes)| nodes.len())
                .map_or((name, 0), |(version, nodes)| (*version, nodes.len()));
            let clear = most * 2 > stated && stated - most <= MAX_NAMED;
            let severity = if DECISIVE.contains(&&**name) {
                Severity::Warning
            } else {
                Severity::Info
            };
            for (version, nodes) in &holders {
                if clear && *version == usual {
                    continue;
                }
                let what = if clear {
                    format!("{name} {version}, others {usual}")
                } else {
                    format!("{name} {version} on {}", some(nodes))
                };
                let evidence = piece(&what, nodes.len() as f64, clear.then_some(most as f64));
                let subjects: Vec<Subject> = if clear {
                    let node = |node: &&NodeId| Subject::Node {
                        node: (*node).clone(),
                    };
                    nodes.iter().map(node).collect()
                } else {
                    vec![Subject::Job { job: job.clone() }]
                };
                for subject in subjects {
                    let said = found.entry(subject).or_insert(Said {
                        severity,
                        evidence: Vec::new(),
                    });
                    said.severity = said.severity.max(severity);
                    said.evidence.push(evidence.clone());
                }
            }
        }
        found
    }

    fn claim(&self, at: Time, subject: Subject, said: &Said) -> Claim {
        let detail = Detail {
            severity: said.severity,
            since: at,
            since_step: None,
            step: None,
            cause: Cause::Unknown,
            signals: Vec::new(),
            provenance: self.provenance,
            slowdown_ratio: None,
            impact_ratio: None,
            lost_rank_s: 0.0,
            evidence: said.evidence.clone(),
            says: None,
        };
        Claim {
            finding: Finding::VersionSkew,
            subject,
            at,
            body: Body::Holds(Box::new(detail)),
        }
    }
}

/// Returns the first few node names.
fn some(nodes: &[&NodeId]) -> String {
    let mut told: Vec<&str> = nodes.iter().take(4).map(|node| node.as_str()).collect();
    if nodes.len() > told.len() {
        told.push("and more");
    }
    told.join(", ")
}
