//! Preflight results as evidence for findings of the job.
//!
//! A preflight does not measure steps. Its figures are therefore no baseline for steps, and they raise no finding here.
//! A preflight finding on a GPU, a node or a path is added as evidence to a verdict on the same subject if it can
//! explain the verdict.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::detect::claim::{Body, Claim};
use crate::event::{Bench, Event, Preflight};
use crate::frame::{Frame, Provenance};
use crate::id::NodeId;
use crate::preflight::{Against, Metric, NodeRow, Noted, Place, Problem, Section};
use crate::verdict::{Cause, Evidence, Finding, Subject};

/// Maximum number of nodes kept. No job has more.
const MAX_NODES: usize = 1 << 17;
/// Maximum findings and problems kept.
const MAX_NOTES: usize = 1 << 14;
/// Maximum pieces of evidence per verdict.
const MAX_PIECES: usize = 3;
/// A slowdown that began within this many steps is treated as having existed from the start, because warm-up steps hide
/// a slowdown and a small one is dated a few steps late.
const FROM_BIRTH: u64 = 20;
/// Maximum nodes and notes in the report.
const SHOWN: usize = 64;

const COMPUTE: &[Metric] = &[
    Metric::Gemm,
    Metric::GpuMemory,
    Metric::CpuGemm,
    Metric::CpuMemory,
];
const COPIES: &[Metric] = &[Metric::HostToDevice, Metric::DeviceToHost];
const HOST: &[Metric] = &[Metric::CpuGemm, Metric::CpuMemory];
const WAYS: &[Metric] = &[Metric::PairBusbw, Metric::PairLatency, Metric::PairLoss];
const INSIDE: &[Metric] = &[Metric::LocalBusbw, Metric::LocalBusbwHost];

/// Results of the latest preflight, by node and by place.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct PreflightEvidence {
    header: Option<Preflight>,
    nodes: BTreeMap<NodeId, Bench>,
    /// Findings by place and by metric or fact, each with its journal entry.
    findings: BTreeMap<(Place, Arc<str>), (Noted, u64)>,
    problems: Vec<Problem>,
    provenance: Provenance,
}

impl PreflightEvidence {
    /// Takes a node's preflight results. A new header replaces all earlier results; new figures of a node replace that
    /// node's.
    pub fn observe(&mut self, entry: u64, frame: &Frame) {
        self.provenance = self.provenance.max(frame.provenance);
        match &frame.event {
            // Every node sends the same header, so only a different header starts a new preflight.
            Event::Preflight(header) if self.header.as_ref() != Some(header) => {
                self.forget(None);
                self.header = Some(header.clone());
            }
            Event::Bench(bench) => {
                self.forget(Some(&bench.node));
                if self.nodes.len() < MAX_NODES || self.nodes.contains_key(&bench.node) {
                    self.nodes.insert(bench.node.clone(), bench.clone());
                }
            }
            Event::PreflightFinding(noted) if self.findings.len() < MAX_NOTES => {
                let key = (noted.place.clone(), Arc::clone(&noted.what));
                self.findings.insert(key, (noted.clone(), entry));
            }
            Event::PreflightProblem(problem)
                if self.problems.len() < MAX_NOTES && !self.problems.contains(problem) =>
            {
                self.problems.push(problem.clone());
            }
            _ => {}
        }
    }

    /// Drops the results for a node. If `node` is `None`, drops the results that belong to no single node.
    fn forget(&mut self, node: Option<&NodeId>) {
        self.findings.retain(|(place, _), _| place.node() != node);
        self.problems.retain(|problem| problem.node.as_ref() != node);
    }

    /// Adds preflight findings on the same subject as evidence if they can explain the claim. `first` is the first step
    /// of the epoch. If the subject kept pace at first and slowed down later, nothing is added, because an earlier
    /// problem is then not the reason.
    pub fn support(&self, claim: &mut Claim, first: Option<u64>) {
        let Body::Holds(detail) = &mut claim.body else {
            return;
        };
        let is_later = |since: u64| first.is_some_and(|first| since > first + FROM_BIRTH);
        if self.findings.is_empty() || detail.since_step.is_some_and(is_later) {
            return;
        }
        let metrics = metrics(claim.finding, &claim.subject, detail.cause);
        let mut fitting: Vec<&(Noted, u64)> = self
            .findings
            .values()
            .filter(|(noted, _)| {
                noted.sure
                    && noted.metric().is_some_and(|metric| metrics.contains(&metric))
                    && std::iter::once(&noted.place)
                        .chain(&noted.or)
                        .any(|place| is_of(place, &claim.subject))
            })
            .collect();
        fitting.sort_by_key(|(noted, _)| std::cmp::Reverse(noted.severity));
        for (noted, entry) in fitting.into_iter().take(MAX_PIECES) {
            detail.evidence.extend(pieces(noted, *entry));
            detail.provenance = detail.provenance.max(self.provenance);
        }
    }

    /// Returns the section of the report, or `None` if no preflight was reported.
    pub fn section(&self) -> Option<Section> {
        if self.header.is_none() && self.nodes.is_empty() && self.problems.is_empty() {
            return None;
        }
        let mut findings: Vec<&Noted> = self.findings.values().map(|(noted, _)| noted).collect();
        findings.sort_by_key(|noted| std::cmp::Reverse((noted.severity, noted.sure)));
        let named = |node: &NodeId| findings.iter().any(|noted| noted.place.node() == Some(node));
        // List all nodes if they are few, or else only the notable ones.
        let many = self.nodes.len() > SHOWN;
        let rows = self
            .nodes
            .iter()
            .filter(|(node, bench)| !many || !bench.there || named(node));
        let nobody = || Preflight {
            nodes: self.nodes.len() as u32,
            ..Preflight::default()
        };
        Some(Section {
            told: self.header.clone().unwrap_or_else(nobody),
            simulated: self.provenance == Provenance::Sim,
            rows: rows
                .take(SHOWN)
                .map(|(node, bench)| (node.clone(), row(bench)))
                .collect(),
            findings: findings.into_iter().take(SHOWN).cloned().collect(),
            problems: self.problems.iter().take(SHOWN).cloned().collect(),
        })
    }

    /// Returns the limits of the verdicts as text.
    pub fn note(&self) -> Option<String> {
        let out = self.header.iter().flat_map(|header| &header.left_out);
        let out: Vec<&NodeId> = out.map(|out| &out.node).collect();
        // Leave out excluded nodes, because results are not expected from them.
        let takes_part = |problem: &&Problem| problem.node.as_ref().is_none_or(|node| !out.contains(&node));
        let failed = self
            .problems
            .iter()
            .filter(|problem| problem.lost)
            .find(takes_part)?;
        let node = failed.node.as_ref().map_or("a node", NodeId::as_str);
        Some(format!("the preflight did not see {node}: {}", failed.what))
    }
}

fn row(bench: &Bench) -> NodeRow {
    NodeRow {
        there: bench.there,
        model: Arc::clone(&bench.model),
        gpus: bench.gpus,
        values: bench.values.clone(),
        address: "".into(),
    }
}

/// Returns the metrics that can explain a finding with this cause. Copies can explain data loading, and a throttled GPU
/// can explain slow compute. No hardware metric explains garbage collection or slowness in the work itself.
fn metrics(finding: Finding, subject: &Subject, cause: Cause) -> &'static [Metric] {
    match (finding, subject) {
        (Finding::SlowLink, Subject::Node { .. }) => INSIDE,
        (Finding::SlowLink, _) => WAYS,
        (Finding::CommunicationBound, _) => &[Metric::AllBusbw],
        (Finding::StepRegression | Finding::SlowFromBirth, Subject::Job { .. }) => &[Metric::AllBusbw],
        (Finding::Straggler | Finding::StragglerNode | Finding::SlowFromBirth, _) => match cause {
            Cause::Unknown | Cause::Thermal | Cause::Power | Cause::ClockStuck | Cause::Ecc => COMPUTE,
            Cause::Pcie | Cause::DataLoading => COPIES,
            Cause::CpuContention => HOST,
            Cause::Nvlink => INSIDE,
            Cause::Network => WAYS,
            _ => &[],
        },
        _ => &[],
    }
}

/// Returns true if a measurement at `place` applies to the subject.
fn is_of(place: &Place, subject: &Subject) -> bool {
    match (subject, place) {
        (
            Subject::Rank {
                gpu_uuid: Some(own), ..
            },
            Place::Gpu { gpu, .. },
        ) => own == gpu,
        // A rank uses its node's CPU and ports, but none of the node's other GPUs.
        (Subject::Rank { node: own, .. }, Place::Node { node } | Place::Port { node, .. }) => own == node,
        (Subject::Node { node: own }, place) => place.node() == Some(own),
        (
            Subject::Link {
                node,
                peer: Some(peer),
            },
            Place::Pair { .. },
        ) => *place == Place::pair(node, peer),
        (Subject::Link { node: own, peer }, Place::Node { node } | Place::Port { node, .. }) => {
            own == node || peer.as_ref() == Some(node)
        }
        (Subject::Job { .. }, Place::Job) => true,
        _ => false,
    }
}

/// Returns the measured value and the expected ones (the peers', the subject's own past, published values, or the
/// user's minimum).
fn pieces(noted: &Noted, entry: u64) -> Vec<Evidence> {
    let (Some(metric), Some(value)) = (noted.metric(), noted.value) else {
        return Vec::new();
    };
    let (unit, scale) = metric.base_unit();
    let piece = |what: String, value: f64, peers: Option<f64>| Evidence {
        what: what.into(),
        value: value * scale,
        peers: peers.map(|peers| peers * scale),
        entries: Some((entry, entry)),
    };
    let expected = |wanted| {
        let mut found = noted.comparisons.iter();
        Some(found.find(|found| found.against == wanted)?.expected)
    };
    let mut pieces = vec![piece(
        format!("preflight_{metric}_{unit}"),
        value,
        expected(Against::Fleet),
    )];
    let others = [
        (Against::History, "past"),
        (Against::Reference, "published"),
        (Against::Floor, "asked"),
    ];
    pieces.extend(others.into_iter().filter_map(|(against, word)| {
        let value = expected(against)?;
        Some(piece(format!("preflight_{metric}_{word}_{unit}"), value, None))
    }));
    pieces
}
