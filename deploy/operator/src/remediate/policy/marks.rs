//! How a node should look, and the patches that make it so. Pure: nodes as JSON in, patches out.
//!
//! What is ours has names of our own; the one thing that has no owner, `spec.unschedulable`, is ours only where our annotation
//! stands beside it, and both are written at once.

use serde_json::{Map, Value, json};

use super::health::{Health, State};
use super::rules::Rung;
use crate::timestamp;

/// The taint's key.
pub const TAINT: &str = "paceline.dev/unhealthy";
/// The label's key.
pub const LABEL: &str = "paceline.dev/health";
/// The condition's type: True is bad, as in node-problem-detector's.
pub const CONDITION: &str = "PacelineFault";
/// Says that the cordon is ours.
pub const MARK: &str = "paceline.dev/cordoned-by";
/// A person's word: the node is left as it is.
pub const HOLD: &str = "paceline.dev/hold";
/// A person's word: the node was repaired.
pub const REPAIRED: &str = "paceline.dev/repaired";
/// A person's word: pods that did not leave in time are asked once more.
pub const DRAIN: &str = "paceline.dev/drain";
/// Longest message of a condition.
const WORDS: usize = 512;

/// What we look at of a node; the rest of it is not kept.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeView {
    /// Its name.
    pub name: String,
    /// Which of that name.
    pub uid: String,
    /// Its resourceVersion.
    pub version: String,
    /// Its boot.
    pub boot: String,
    /// Takes no new pods.
    pub unschedulable: bool,
    /// Our mark beside that.
    pub mark: Option<String>,
    /// A person's word.
    pub hold: bool,
    /// A person's word.
    pub repaired: Option<String>,
    /// A person's word.
    pub drain: Option<String>,
    /// Our label.
    pub label: Option<String>,
    /// All of its taints, others' too.
    pub taints: Vec<Value>,
    /// Its conditions: type and status.
    pub conditions: Vec<(String, String)>,
    /// Our condition's reason and message.
    pub fault: Option<(String, String)>,
    /// GPUs that it has, those that pods cannot be given now too: of NVIDIA's device plugin, which keeps its word there as 0 when
    /// they are gone. `None`: it never had any.
    pub gpus: Option<u32>,
    /// It has GPUs of whatever vendor, as far as device plugins say.
    pub has_gpus: bool,
    /// Some of them are cut (MIG) and given out by other names than `nvidia.com/gpu`.
    pub has_slices: bool,
}

impl NodeView {
    /// Of an object of the API; `None`: it has no name.
    pub fn of(node: &Value) -> Option<NodeView> {
        let meta = &node["metadata"];
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let annotation = |name: &str| text(&meta["annotations"][name]);
        let conditions = node["status"]["conditions"].as_array();
        let conditions = || conditions.into_iter().flatten();
        let capacity = || node["status"]["capacity"].as_object().into_iter().flatten();
        let ours = conditions().find(|condition| condition["type"] == CONDITION);
        Some(NodeView {
            name: text(&meta["name"])?,
            uid: text(&meta["uid"]).unwrap_or_default(),
            version: text(&meta["resourceVersion"]).unwrap_or_default(),
            boot: text(&node["status"]["nodeInfo"]["bootID"]).unwrap_or_default(),
            unschedulable: node["spec"]["unschedulable"] == true,
            mark: annotation(MARK),
            hold: annotation(HOLD).is_some_and(|word| word != "false"),
            repaired: annotation(REPAIRED),
            drain: annotation(DRAIN),
            label: text(&meta["labels"][LABEL]),
            taints: node["spec"]["taints"].as_array().cloned().unwrap_or_default(),
            conditions: conditions()
                .filter_map(|condition| Some((text(&condition["type"])?, text(&condition["status"])?)))
                .collect(),
            fault: ours
                .and_then(|condition| Some((text(&condition["reason"])?, text(&condition["message"])?))),
            has_gpus: capacity().any(|(name, _)| is_gpu(name)),
            has_slices: capacity().any(|(name, count)| name.starts_with("nvidia.com/mig-") && count != "0"),
            gpus: text(&node["status"]["capacity"]["nvidia.com/gpu"]).map(|count| count.parse().unwrap_or(0)),
        })
    }

    /// Somebody else cordoned it.
    pub fn is_cordoned_by_another(&self) -> bool {
        self.unschedulable && self.mark.is_none()
    }

    /// A condition's status.
    pub fn condition(&self, kind: &str) -> Option<&str> {
        let found = self.conditions.iter().find(|(of, _)| of == kind);
        found.map(|(_, status)| status.as_str())
    }

    fn our_taint(&self) -> Option<&str> {
        let found = self.taints.iter().find(|taint| taint["key"] == TAINT);
        found.map(|taint| taint["value"].as_str().unwrap_or_default())
    }

    /// How far it was taken, by what it bears of ours.
    pub fn bears(&self) -> Rung {
        if self.unschedulable && self.mark.is_some() {
            Rung::Cordon
        } else if self.our_taint().is_some() {
            Rung::Taint
        } else if self.label.is_some() {
            Rung::Label
        } else {
            Rung::None
        }
    }

    /// It bears something that only we put there.
    pub fn bears_ours(&self) -> bool {
        self.mark.is_some() || self.our_taint().is_some() || self.label.is_some()
    }
}

/// `nvidia.com/gpu`, `nvidia.com/mig-1g.5gb`, `amd.com/gpu`, `gpu.intel.com/i915`.
fn is_gpu(resource: &str) -> bool {
    resource.contains('/') && (resource.contains("gpu") || resource.starts_with("nvidia.com/"))
}

/// How a node should look, as far as it is ours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// The condition's reason and message; `None`: it is False, where there is one at all.
    pub condition: Option<(String, String)>,
    /// The label's value.
    pub label: Option<String>,
    /// The taint's value.
    pub taint: Option<String>,
    /// By what our cordon is known.
    pub cordon: Option<String>,
}

impl Marks {
    /// What a node's health asks for.
    pub fn of(health: &Health) -> Marks {
        let rung = health.rung;
        let finding = health
            .worst()
            .map_or("recovering", |incident| incident.finding.name());
        Marks {
            condition: (rung >= Rung::Condition).then(|| {
                let says: String = health.reason.chars().take(WORDS).collect();
                (camel(finding), says)
            }),
            label: (rung >= Rung::Label).then(|| {
                let word = if health.state == State::Held {
                    "held"
                } else {
                    "unhealthy"
                };
                word.to_owned()
            }),
            taint: rung.is_out().then(|| finding.to_owned()),
            cordon: health.mark.clone().filter(|_| rung >= Rung::Cordon),
        }
    }

    /// The merge patch that brings the node there; `None`: it is there. Bound to the version that was looked at, so that nothing
    /// which others write meanwhile is lost.
    pub fn patch(&self, node: &NodeView) -> Option<Value> {
        let (mut annotations, mut labels, mut spec) = (Map::new(), Map::new(), Map::new());
        if node.label != self.label {
            labels.insert(LABEL.to_owned(), json!(self.label));
        }
        if node.our_taint() != self.taint.as_deref() {
            let others = node.taints.iter().filter(|taint| taint["key"] != TAINT).cloned();
            let ours = self
                .taint
                .iter()
                .map(|value| json!({ "key": TAINT, "value": value, "effect": "NoSchedule" }));
            let all: Vec<Value> = others.chain(ours).collect();
            spec.insert(
                "taints".to_owned(),
                if all.is_empty() { Value::Null } else { json!(all) },
            );
        }
        match (&self.cordon, &node.mark) {
            (Some(mark), theirs) if !node.unschedulable && theirs.as_ref() != Some(mark) => {
                spec.insert("unschedulable".to_owned(), json!(true));
                annotations.insert(MARK.to_owned(), json!(mark));
            }
            (None, Some(_)) => {
                annotations.insert(MARK.to_owned(), Value::Null);
                if node.unschedulable {
                    spec.insert("unschedulable".to_owned(), Value::Null);
                }
            }
            _ => {}
        }
        for (word, name) in [(&node.repaired, REPAIRED), (&node.drain, DRAIN)] {
            if word.is_some() {
                annotations.insert(name.to_owned(), Value::Null);
            }
        }
        if annotations.is_empty() && labels.is_empty() && spec.is_empty() {
            return None;
        }
        let mut metadata = json!({ "resourceVersion": node.version });
        if !annotations.is_empty() {
            metadata["annotations"] = Value::from(annotations);
        }
        if !labels.is_empty() {
            metadata["labels"] = Value::from(labels);
        }
        let mut patch = json!({ "metadata": metadata });
        if !spec.is_empty() {
            patch["spec"] = Value::from(spec);
        }
        Some(patch)
    }

    /// The strategic merge patch of the node's status; `None`: it is so.
    pub fn status_patch(&self, node: &NodeView, now: u64) -> Option<Value> {
        let is_bad = node.condition(CONDITION) == Some("True");
        let (status, reason, message) = match &self.condition {
            Some(fault) if !is_bad || node.fault.as_ref() != Some(fault) => {
                ("True", fault.0.as_str(), fault.1.as_str())
            }
            None if is_bad => (
                "False",
                "NoFault",
                "there are no findings about this node any more",
            ),
            _ => return None,
        };
        let at = timestamp::write(now);
        // Seconds: Kubernetes' Time has no more.
        let at = format!("{}Z", at.split('.').next().unwrap_or_default());
        let mut condition = json!({
            "type": CONDITION,
            "status": status,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": at,
        });
        // That of what it was before stays, where it says another thing now.
        if (status == "True") != is_bad {
            condition["lastTransitionTime"] = json!(at);
        }
        Some(json!({ "status": { "conditions": [condition] } }))
    }
}

/// `gpu-lost` as `GpuLost`, as reasons are written.
pub fn camel(name: &str) -> String {
    let capital = |word: &str| {
        let mut letters = word.chars();
        let first = letters.next().map(|first| first.to_ascii_uppercase());
        first.into_iter().chain(letters).collect::<String>()
    };
    name.split('-').map(capital).collect()
}
