//! The actual faults of a world, which are recorded in addition to the frames. Verdicts are checked against them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Fault;
use crate::id::{GpuId, JobId, NodeId, Rank};
use crate::sim::spec::WorldSpec;
use crate::sim::spec::shape::Target;
use crate::verdict::{Cause, Finding, Subject};

/// A fault counts as begun when it multiplies the duration of its rank's step by more than this factor.
const FELT: f64 = 1.01;

/// The actual state of one fault so far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Truth {
    /// The fault.
    pub fault: Fault,
    /// The expected verdict. `None` if no verdict is expected, or if that depends on the duration.
    pub expected: Option<Expected>,
    /// The affected rank. `None` if several ranks, all or none are affected.
    pub rank: Option<Rank>,
    /// The GPU of the affected rank.
    pub gpu: Option<GpuId>,
    /// The node of the affected rank, or the node whose telemetry is affected.
    pub node: Option<NodeId>,
    /// All ranks whose own work it has made at least 1 % slower, in order.
    pub ranks: Vec<Rank>,
    /// The first affected step, in which a rank or a transfer was at least 1 % slower.
    pub since_step: Option<u64>,
    /// The last affected step.
    pub last_step: Option<u64>,
    /// GPU-seconds that the whole job lost to the fault. This is the excess of each step over the same step without
    /// this one fault, times the number of ranks. If there are several faults at once, their losses need not add up to
    /// the total.
    pub lost_gpu_s: f64,
}

/// An expected verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Expected {
    /// The finding.
    pub finding: Finding,
    /// Its subject. For a fault that moves, this is the first target.
    pub subject: Subject,
    /// Its cause.
    pub cause: Cause,
}

/// A cost of the job itself, which exists without any fault. It is measured by comparison with the same steps without
/// this imbalance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OwnCost {
    /// The expected verdict.
    pub expected: Expected,
    /// GPU-seconds that the whole job lost to it.
    pub lost_gpu_s: f64,
    /// GPU-seconds of all steps so far, for comparison.
    pub of_gpu_s: f64,
}

impl Truth {
    /// Creates the state of a fault that has had no effect yet.
    pub(crate) fn untold(fault: Fault, spec: &WorldSpec, places: &Places<'_>) -> Truth {
        let named = fault.names();
        let rank = named
            .filter(|(what, _)| matches!(*what, "rank" | "gpu"))
            .map(|(_, number)| number);
        let node = named.and_then(|(what, number)| match what {
            "node" => Some(number),
            "rack" => None,
            _ => Some(number / spec.gpus_per_node),
        });
        Truth {
            expected: expected(&fault, spec, places),
            fault,
            rank: rank.map(Rank),
            gpu: rank.map(|rank| (places.gpu)(rank)),
            node: node.map(|node| places.names[node as usize].clone()),
            ranks: Vec::new(),
            since_step: None,
            last_step: None,
            lost_gpu_s: 0.0,
        }
    }

    /// Records a step of a rank, whose work took `work` seconds instead of `without`.
    pub(super) fn feel(&mut self, step: u64, rank: u32, work: f64, without: f64) {
        if work > without * FELT {
            self.feel_step(step);
            if let Err(place) = self.ranks.binary_search(&Rank(rank)) {
                self.ranks.insert(place, Rank(rank));
            }
        }
    }

    /// Records an affected step.
    pub(super) fn feel_step(&mut self, step: u64) {
        self.since_step.get_or_insert(step);
        self.last_step = Some(step);
    }
}

/// Names of nodes and GPUs.
pub(crate) struct Places<'a> {
    pub names: &'a [NodeId],
    pub gpu: &'a dyn Fn(u32) -> GpuId,
}

/// Returns the name of a rack.
pub(crate) fn rack_name(rack: u32) -> Arc<str> {
    Arc::from(format!("rack{rack}"))
}

/// Returns the expected verdict of a fault. Each row of `docs/findings.md` occurs once. Delayed or lost frames have no
/// expected verdict.
fn expected(fault: &Fault, spec: &WorldSpec, places: &Places<'_>) -> Option<Expected> {
    let node = |node: u32| places.names[node as usize].clone();
    let node_of = |rank: u32| node(rank / spec.gpus_per_node);
    let rank = |rank: u32| Subject::Rank {
        rank: Rank(rank),
        node: node_of(rank),
        gpu_uuid: Some((places.gpu)(rank)),
    };
    let job = || job(spec);
    let link = |end: u32, peer: Option<u32>| Subject::Link {
        node: node(end),
        peer: peer.map(node),
    };
    let (finding, subject, cause) = match *fault {
        Fault::Slow { on, when, cause, .. } => {
            // A fault that moves between targets or affects all ranks is attributed to the job.
            let everywhere = on == Target::All || when.moves.is_some();
            match (cause, on) {
                (Cause::DataLoading, _) if everywhere => (Finding::DataLoading, job(), cause),
                (Cause::CpuContention, _) if everywhere => (Finding::CpuContention, job(), cause),
                (Cause::GcPause, _) if everywhere => (Finding::GcPause, job(), cause),
                (Cause::Nvlink | Cause::Network, Target::Rank(rank)) => {
                    (Finding::SlowLink, link(rank / spec.gpus_per_node, None), cause)
                }
                (Cause::Nvlink | Cause::Network, Target::Node(end)) => {
                    (Finding::SlowLink, link(end, None), cause)
                }
                (_, Target::All) => (Finding::AllRanksSlow, job(), cause),
                (_, Target::Rank(whom)) => (Finding::Straggler, rank(whom), cause),
                (_, Target::Node(whom)) => {
                    (Finding::StragglerNode, Subject::Node { node: node(whom) }, cause)
                }
                (_, Target::Rack(rack)) => {
                    let rack = rack_name(rack);
                    (Finding::StragglerNode, Subject::Rack { rack }, cause)
                }
            }
        }
        Fault::Heat { gpu, .. } => (Finding::Straggler, rank(gpu), Cause::Thermal),
        Fault::Silent { rank: Some(whom), .. } => (Finding::RankSilent, rank(whom), Cause::Unknown),
        Fault::Silent { rank: None, .. } => (Finding::JobHang, job(), Cause::Unknown),
        Fault::Link { node, peer, .. } => (Finding::SlowLink, link(node, peer), Cause::Network),
        Fault::CheckpointSlow { rank: whom, .. } => (Finding::SlowCheckpoint, rank(whom), Cause::Unknown),
        Fault::WarmUpSlow { rank: Some(whom), .. } => (Finding::SlowWarmUp, rank(whom), Cause::Unknown),
        Fault::WarmUpSlow { rank: None, .. } => (Finding::SlowWarmUp, job(), Cause::Unknown),
        Fault::Regress { from, .. } => {
            let restarted = spec.restarts.iter().any(|last| last + 1 == from);
            let finding = if restarted {
                Finding::StepRegression
            } else {
                Finding::AllRanksSlow
            };
            (finding, job(), Cause::Unknown)
        }
        Fault::Birth { .. } => (Finding::SlowFromBirth, job(), Cause::Unknown),
        Fault::Skew { node: whom } => (
            Finding::VersionSkew,
            Subject::Node { node: node(whom) },
            Cause::Unknown,
        ),
        Fault::Gap { node: whom, .. } => (
            Finding::TelemetryBlind,
            Subject::Node { node: node(whom) },
            Cause::Unknown,
        ),
        Fault::Spikes { .. }
        | Fault::Warm { .. }
        | Fault::Hold { .. }
        | Fault::Late { .. }
        | Fault::Loss { .. }
        | Fault::Reorder { .. }
        | Fault::Repeat { .. } => return None,
    };
    Some(Expected {
        finding,
        subject,
        cause,
    })
}

/// Returns the job of a spec, as a subject.
pub(crate) fn job(spec: &WorldSpec) -> Subject {
    Subject::Job {
        job: JobId(Arc::clone(&spec.job)),
    }
}
