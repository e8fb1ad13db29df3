//! What was found, and how it is told.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Metric, Place};
use crate::verdict::Severity;

/// What a value was compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Against {
    /// The others of this run.
    Fleet,
    /// The same place in earlier runs at this site.
    History,
    /// What others published of such machines.
    Reference,
    /// What the user asked for.
    Floor,
}

impl Against {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Against::Fleet => "the other nodes and GPUs of this run",
            Against::History => "its own history",
            Against::Reference => "published values",
            Against::Floor => "the required value",
        }
    }
}

/// One comparison that went badly.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// With what.
    pub against: Against,
    /// What was expected, in the metric's unit.
    pub expected: f64,
    /// How bad the difference is.
    pub severity: Severity,
    /// Where the expectation comes from, if it has a source to name.
    #[serde(default)]
    pub source: Arc<str>,
}

/// One thing found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Noted {
    /// What is at fault.
    pub place: Place,
    /// Others that it may be instead: what could not be told apart. Empty: it is this one.
    #[serde(default)]
    pub or: Vec<Place>,
    /// The metric, or the name of the fact.
    pub what: Arc<str>,
    /// How bad.
    pub severity: Severity,
    /// What was measured, in `unit`; of a fact, nothing.
    pub value: Option<f64>,
    /// Its unit.
    #[serde(default)]
    pub unit: Arc<str>,
    /// With what it was compared.
    pub comparisons: Vec<Comparison>,
    /// It was measured again before it was said, or needs no repeat.
    pub sure: bool,
    /// In a sentence.
    pub says: Arc<str>,
    /// Why, if a fact explains it.
    #[serde(default)]
    pub cause: Arc<str>,
    /// What to do.
    pub advice: Arc<str>,
}

impl Noted {
    /// Whether it says that something is sure to be bad, and which.
    pub fn condemns(&self) -> bool {
        self.severity == Severity::Critical && self.sure && self.or.is_empty()
    }

    /// Whether it is about what was measured at `place`: that very place, or the node or port that it is part of. A
    /// GPU's fault is none of its siblings'.
    pub fn concerns(&self, place: &Place) -> bool {
        match (&self.place, place) {
            (Place::Node { node } | Place::Port { node, .. }, Place::Pair { a, b }) => a == node || b == node,
            (Place::Node { node } | Place::Port { node, .. }, Place::Node { node: of }) => node == of,
            (Place::Node { node }, part) => part.node() == Some(node),
            (own, place) => own == place,
        }
    }

    /// The metric, if it is about one.
    pub fn metric(&self) -> Option<Metric> {
        Metric::ALL
            .into_iter()
            .find(|metric| metric.name() == &*self.what)
    }
}

/// What all of it comes to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Judged {
    /// What was found: the worst first.
    pub findings: Vec<Noted>,
    /// How many comparisons could be made. None: nothing can be told.
    pub comparisons: usize,
    /// Places and metrics so unsteady that nothing was concluded from them.
    pub unsteady: Vec<(Place, Metric)>,
}

impl Judged {
    /// Puts the worst first, and each cause with what it explains.
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
