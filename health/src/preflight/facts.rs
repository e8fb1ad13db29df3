//! Judges facts from the nodes' snapshots. Reports values that should be equal and are not, and values that are always
//! bad.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::table::{FactRow, Rule};
use super::{Judged, Noted, Place, PreflightTable};
use crate::id::{GpuId, NodeId};
use crate::verdict::Severity;

/// One fact about a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fact {
    /// The node.
    pub node: NodeId,
    /// The GPU, if it is about one.
    #[serde(default)]
    pub gpu: Option<GpuId>,
    /// The port, if it is about one.
    #[serde(default)]
    pub port: Option<Arc<str>>,
    /// Its name in `policy/preflight.toml`.
    pub name: Arc<str>,
    /// Its value, or `None` if it could not be read.
    pub value: Option<Arc<str>>,
}

impl Fact {
    fn place(&self) -> Place {
        let node = self.node.clone();
        match (&self.gpu, &self.port) {
            (Some(gpu), _) => Place::Gpu {
                node,
                gpu: gpu.clone(),
            },
            (None, Some(port)) => Place::Port {
                node,
                port: port.clone(),
            },
            (None, None) => Place::Node { node },
        }
    }
}

/// Judges all facts.
pub(super) fn judge(table: &PreflightTable, facts: &[Fact], judged: &mut Judged) {
    let fallen_back = fallen_back(facts);
    // Ports are compared with ports of the same name. All GPUs are compared with each other.
    let mut alike: BTreeMap<(&str, Option<&str>), Vec<&Fact>> = BTreeMap::new();
    for fact in facts
        .iter()
        .chain(&fallen_back)
        .filter(|fact| fact.value.is_some())
    {
        alike
            .entry((&fact.name, fact.port.as_deref()))
            .or_default()
            .push(fact);
    }
    for ((name, _), group) in alike {
        let Some(row) = table.fact(name) else { continue };
        match row.rule {
            Rule::None => {
                judged.comparisons += group.len();
                let bad = group.iter().filter(|fact| !is_nothing(text(fact)));
                let told = bad.map(|fact| note(row, fact, text(fact).to_owned()));
                judged.findings.extend(told);
            }
            Rule::Same => same(row, &group, judged),
        }
    }
}

/// Returns a fact for each node on which NCCL uses sockets although the node has a faster port.
fn fallen_back(facts: &[Fact]) -> Vec<Fact> {
    let of = |name: &str, value: &str| {
        let is_of = |fact: &&Fact| &*fact.name == name && fact.value.as_deref() == Some(value);
        facts.iter().filter(is_of).collect::<Vec<_>>()
    };
    let ports = of("nic_state", "ACTIVE");
    let mut found = Vec::new();
    for socket in of("nccl_network", "Socket") {
        let port = ports.iter().find(|port| port.node == socket.node);
        let port = port.and_then(|port| port.port.as_deref());
        found.extend(port.map(|port| Fact {
            name: "socket_fallback".into(),
            value: Some(format!("NCCL reports that it uses sockets, although {port} is active").into()),
            ..socket.clone()
        }));
    }
    found
}

fn text(fact: &Fact) -> &str {
    fact.value.as_deref().unwrap_or("")
}

fn is_nothing(text: &str) -> bool {
    matches!(text.trim(), "" | "0" | "no" | "false" | "none")
}

fn same(row: &FactRow, group: &[&Fact], judged: &mut Judged) {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for fact in group {
        *counts.entry(text(fact)).or_default() += 1;
    }
    if group.len() > 1 {
        judged.comparisons += 1;
    }
    if counts.len() < 2 {
        return;
    }
    if let Some((usual, _)) = counts.iter().find(|(_, count)| **count * 2 > group.len()) {
        let off = group.iter().filter(|fact| text(fact) != *usual);
        let told = off.map(|fact| note(row, fact, format!("{} instead of {usual}", text(fact))));
        judged.findings.extend(told);
        return;
    }
    // Without a majority, as between two nodes, the lower values are at fault if lower is worse. Otherwise, no single
    // one is at fault.
    let number = |fact: &Fact| text(fact).parse::<f64>().ok();
    let most = group
        .iter()
        .filter_map(|fact| number(fact))
        .max_by(f64::total_cmp);
    let lesser = |fact: &Fact| number(fact).zip(most).is_some_and(|(own, most)| own < most);
    if row.less_is_bad && group.iter().any(|fact| lesser(fact)) {
        let most = most.unwrap_or_default();
        let off = group.iter().filter(|fact| lesser(fact));
        judged
            .findings
            .extend(off.map(|fact| note(row, fact, format!("{} instead of {most}", text(fact)))));
        return;
    }
    let kinds: Vec<String> = counts
        .iter()
        .map(|(value, count)| format!("{value} ({count}×)"))
        .collect();
    let mut noted = note(row, group[0], kinds.join(", "));
    noted.place = Place::Job;
    noted.severity = noted.severity.min(Severity::Warning);
    judged.findings.push(noted);
}

fn note(row: &FactRow, fact: &Fact, what: String) -> Noted {
    Noted {
        place: fact.place(),
        or: Vec::new(),
        what: fact.name.clone(),
        severity: row.severity,
        value: None,
        unit: "".into(),
        comparisons: Vec::new(),
        sure: true,
        says: format!("{}: {what}", row.says).into(),
        cause: "".into(),
        advice: "".into(),
    }
}

/// Adds the facts that explain findings about metrics.
pub(super) fn explain(table: &PreflightTable, judged: &mut Judged) {
    let facts: Vec<(Place, Arc<str>, Arc<str>)> = judged
        .findings
        .iter()
        .filter(|noted| noted.metric().is_none())
        .map(|noted| (noted.place.clone(), noted.what.clone(), noted.says.clone()))
        .collect();
    for noted in &mut judged.findings {
        let Some(metric) = noted.metric() else { continue };
        let causes = &table.metric(metric).causes;
        let fits = |place: &Place| match (&noted.place, place) {
            (Place::Gpu { gpu: own, .. }, Place::Gpu { gpu, .. }) => own == gpu,
            (own, other) => own.node().is_some() && own.node() == other.node(),
        };
        let found = causes
            .iter()
            .find_map(|cause| facts.iter().find(|(place, name, _)| name == cause && fits(place)));
        if let Some((place, _, says)) = found {
            noted.cause = match place {
                Place::Port { port, .. } => format!("{port}: {says}").into(),
                _ => says.clone(),
            };
        }
    }
}
