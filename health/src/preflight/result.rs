//! Findings of a preflight.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Metric, Place};
use crate::verdict::Severity;

/// What a value is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Against {
    /// The other places of this run.
    Fleet,
    /// The same place in earlier runs at this site.
    History,
    /// Published values of similar machines.
    Reference,
    /// The user's requirement.
    Floor,
}

impl Against {
    /// Describes the reference in words.
    pub fn words(self) -> &'static str {
        match self {
            Against::Fleet => "the other nodes and GPUs of this run",
            Against::History => "its own history",
            Against::Reference => "published values",
            Against::Floor => "the required value",
        }
    }
}

/// One comparison with a bad result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// What the value was compared with.
    pub against: Against,
    /// The expected value, in the metric's unit.
    pub expected: f64,
    /// The severity of the difference.
    pub severity: Severity,
    /// The source of the expected value, if it has one.
    #[serde(default)]
    pub source: Arc<str>,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Noted {
    /// The place at fault.
    pub place: Place,
    /// Other places that could not be ruled out. Empty if `place` is certainly at fault.
    #[serde(default)]
    pub or: Vec<Place>,
    /// The metric, or the name of the fact.
    pub what: Arc<str>,
    /// The severity.
    pub severity: Severity,
    /// The measured value in `unit`, or `None` for a fact.
    pub value: Option<f64>,
    /// Its unit.
    #[serde(default)]
    pub unit: Arc<str>,
    /// The comparisons.
    pub comparisons: Vec<Comparison>,
    /// True if the finding was confirmed by a second measurement or needs no confirmation.
    pub sure: bool,
    /// Summary in a sentence.
    pub says: Arc<str>,
    /// The cause, if a fact explains it.
    #[serde(default)]
    pub cause: Arc<str>,
    /// The advice.
    pub advice: Arc<str>,
}

impl Noted {
    /// Returns true if exactly this place is known to be bad.
    pub fn condemns(&self) -> bool {
        self.severity == Severity::Critical && self.sure && self.or.is_empty()
    }

    /// Returns true if the finding concerns the measurements at `place`, which means that it is about that place, or
    /// about its node or port. A GPU's fault does not concern the node's other GPUs.
    pub fn concerns(&self, place: &Place) -> bool {
        match (&self.place, place) {
            (Place::Node { node } | Place::Port { node, .. }, Place::Pair { a, b }) => a == node || b == node,
            (Place::Node { node } | Place::Port { node, .. }, Place::Node { node: of }) => node == of,
            (Place::Node { node }, part) => part.node() == Some(node),
            (own, place) => own == place,
        }
    }

    /// Returns the metric, if the finding is about one.
    pub fn metric(&self) -> Option<Metric> {
        Metric::ALL
            .into_iter()
            .find(|metric| metric.name() == &*self.what)
    }
}

/// All conclusions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Judged {
    /// Findings, worst first.
    pub findings: Vec<Noted>,
    /// Number of comparisons that were possible. If it is 0, there is no conclusion.
    pub comparisons: usize,
    /// Places and metrics too unsteady for a conclusion.
    pub unsteady: Vec<(Place, Metric)>,
}

impl Judged {
    /// Sorts the worst first, and places each cause next to the findings that it explains.
    pub(super) fn settle(&mut self) {
        self.findings.sort_by(|one, other| {
            let key = |noted: &Noted| {
                (
                    std::cmp::Reverse(noted.severity),
                    !noted.sure,
                    noted.place.clone(),
                )
            };
            key(one).cmp(&key(other)).then_with(|| one.what.cmp(&other.what))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{GpuId, NodeId};

    fn noted(place: Place) -> Noted {
        Noted {
            place,
            or: Vec::new(),
            what: "gpu_gemm".into(),
            severity: Severity::Critical,
            value: None,
            unit: "".into(),
            comparisons: Vec::new(),
            sure: true,
            says: "".into(),
            cause: "".into(),
            advice: "".into(),
        }
    }

    #[test]
    fn a_fault_is_none_of_its_siblings() {
        let node = |name: &str| Place::Node { node: name.into() };
        let gpu = |at: &str| Place::Gpu {
            node: "n1".into(),
            gpu: GpuId::from(at),
        };
        let port = |at: &str| Place::Port {
            node: "n1".into(),
            port: at.into(),
        };
        let pair = Place::pair(&NodeId::from("n1"), &NodeId::from("n2"));
        let concerns = |one: Place, other: &Place| noted(one).concerns(other);
        assert!(concerns(gpu("0"), &gpu("0")) && !concerns(gpu("0"), &gpu("1")));
        assert!(!concerns(gpu("0"), &node("n1")) && !concerns(gpu("0"), &pair));
        assert!(concerns(port("a"), &pair) && concerns(port("a"), &node("n1")));
        assert!(!concerns(port("a"), &port("b")) && !concerns(port("a"), &gpu("0")));
        assert!(concerns(node("n1"), &gpu("1")) && concerns(node("n2"), &pair));
        assert!(!concerns(node("n3"), &pair) && !concerns(node("n2"), &gpu("1")));
    }
}
