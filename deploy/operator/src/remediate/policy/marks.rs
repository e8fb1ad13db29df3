//! The operator's marks on a node (label, taint, annotation, cordon and condition), and the patches that set them. This
//! module does no I/O. It takes nodes as JSON and returns patches.
//!
//! The marks have names that belong to the operator. The exception is `spec.unschedulable`, which has no owner. It
//! counts as the operator's only together with the operator's annotation, and both are written at the same time.

use serde_json::{Map, Value, json};

use super::health::{Health, State};
use super::rules::Rung;
use crate::timestamp;

/// The taint's key.
pub const TAINT: &str = "paceline.dev/unhealthy";
/// The label's key.
pub const LABEL: &str = "paceline.dev/health";
/// The condition's type. The status True means that the node has a fault, as with node-problem-detector.
pub const CONDITION: &str = "PacelineFault";
/// Annotation that marks the cordon as the operator's.
pub const MARK: &str = "paceline.dev/cordoned-by";
/// An administrator's annotation. The operator leaves the node unchanged while it is set.
pub const HOLD: &str = "paceline.dev/hold";
/// An administrator's annotation which says that the node was repaired.
pub const REPAIRED: &str = "paceline.dev/repaired";
/// An administrator's annotation which requests that the remaining pods are evicted again.
pub const DRAIN: &str = "paceline.dev/drain";
/// Size limit of a condition's message.
const WORDS: usize = 512;

/// The parts of a Node that this program uses. The other parts are not kept.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeView {
    /// The node's name.
    pub name: String,
    /// The node's uid.
    pub uid: String,
    /// The node's resourceVersion.
    pub version: String,
    /// The node's boot ID.
    pub boot: String,
    /// True if the node is cordoned.
    pub unschedulable: bool,
    /// The value of the annotation that marks the cordon as the operator's.
    pub mark: Option<String>,
    /// True if the hold annotation is set.
    pub hold: bool,
    /// The value of the repair annotation.
    pub repaired: Option<String>,
    /// The value of the drain annotation.
    pub drain: Option<String>,
    /// The value of the operator's label.
    pub label: Option<String>,
    /// All taints of the node.
    pub taints: Vec<Value>,
    /// The node's conditions, each with type and status.
    pub conditions: Vec<(String, String)>,
    /// Reason and message of the operator's condition.
    pub fault: Option<(String, String)>,
    /// The capacity of NVIDIA's device plugin, or `None` if the node never had any. It includes GPUs that cannot be
    /// allocated now, and it stays in the Node as 0 when the GPUs have been removed.
    pub gpus: Option<u32>,
    /// True if the node has GPUs of any vendor, according to device plugins.
    pub has_gpus: bool,
    /// True if some GPUs are partitioned (MIG) and allocated under names other than `nvidia.com/gpu`.
    pub has_slices: bool,
}

impl NodeView {
    /// Parses an API object. Returns `None` if it has no name.
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

    /// Returns true if the node was cordoned by someone other than the operator.
    pub fn is_cordoned_by_another(&self) -> bool {
        self.unschedulable && self.mark.is_none()
    }

    /// Returns a condition's status.
    pub fn condition(&self, kind: &str) -> Option<&str> {
        let found = self.conditions.iter().find(|(of, _)| of == kind);
        found.map(|(_, status)| status.as_str())
    }

    fn our_taint(&self) -> Option<&str> {
        let found = self.taints.iter().find(|taint| taint["key"] == TAINT);
        found.map(|taint| taint["value"].as_str().unwrap_or_default())
    }

    /// Returns the action level that the node has reached, according to its marks.
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

    /// Returns true if the node has a mark that only the operator sets.
    pub fn bears_ours(&self) -> bool {
        self.mark.is_some() || self.our_taint().is_some() || self.label.is_some()
    }
}

/// Returns true if a resource is a GPU, for example `nvidia.com/gpu`, `nvidia.com/mig-1g.5gb`, `amd.com/gpu` or
/// `gpu.intel.com/i915`.
fn is_gpu(resource: &str) -> bool {
    resource.contains('/') && (resource.contains("gpu") || resource.starts_with("nvidia.com/"))
}

/// The operator's marks that a node should have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// The condition's reason and message, or `None` if the condition is False or does not exist.
    pub condition: Option<(String, String)>,
    /// The label's value.
    pub label: Option<String>,
    /// The taint's value.
    pub taint: Option<String>,
    /// The ID of the operator's cordon.
    pub cordon: Option<String>,
}

impl Marks {
    /// Returns the marks for a node's state.
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

    /// Returns the merge patch that sets the marks, or `None` if they are already set. The patch is bound to the
    /// version that was read, so that no concurrent write is lost.
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

    /// Returns the strategic merge patch for the node's status, or `None` if the status is up to date.
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
        // Kubernetes' Time has whole seconds, so the fraction is cut off.
        let at = format!("{}Z", at.split('.').next().unwrap_or_default());
        let mut condition = json!({
            "type": CONDITION,
            "status": status,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": at,
        });
        // The transition time changes only with the status, not with the reason.
        if (status == "True") != is_bad {
            condition["lastTransitionTime"] = json!(at);
        }
        Some(json!({ "status": { "conditions": [condition] } }))
    }
}

/// Converts `gpu-lost` to `GpuLost`, the format of reasons.
pub fn camel(name: &str) -> String {
    let capital = |word: &str| {
        let mut letters = word.chars();
        let first = letters.next().map(|first| first.to_ascii_uppercase());
        first.into_iter().chain(letters).collect::<String>()
    };
    name.split('-').map(capital).collect()
}
