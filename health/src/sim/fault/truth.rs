//! What is really wrong in a world, kept beside the frames: what a verdict is measured against.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Fault;
use crate::id::{GpuId, JobId, NodeId, Rank};
use crate::sim::spec::WorldSpec;
use crate::sim::spec::shape::Target;
use crate::verdict::{Cause, Finding, Subject};

/// A fault has begun when it makes its rank's step this much longer.
const FELT: f64 = 1.01;

/// The truth about one fault, so far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Truth {
    /// The fault.
    pub fault: Fault,
    /// What a verdict should say of it; `None`: nothing, or it depends on how long it lasts.
    pub expected: Option<Expected>,
    /// The rank that suffers from it; `None`: several, all, or none at all.
    pub rank: Option<Rank>,
    /// Its GPU.
    pub gpu: Option<GpuId>,
    /// Its node, or the node whose telemetry suffers.
    pub node: Option<NodeId>,
    /// Every rank whose own work it has made at least 1 % slower, in their order.
    pub ranks: Vec<Rank>,
    /// The first step in which it was felt: a rank, or a transfer, was at least 1 % slower for it.
    pub since_step: Option<u64>,
    /// The last such step.
    pub last_step: Option<u64>,
    /// GPU-seconds that the whole job lost to it: what each step took beyond the same step without this one fault,
    /// times the ranks. With several faults at once the shares need not add up to the whole.
    pub lost_gpu_s: f64,
}

/// What a verdict should say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Expected {
    /// The kind of trouble.
    pub finding: Finding,
    /// Whom it is about; of a fault that moves, whom it struck first.
    pub subject: Subject,
    /// Why.
    pub cause: Cause,
}

/// What the job costs itself, with no fault at all: the same steps with this evened out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OwnCost {
    /// What a verdict should say of it.
    pub expected: Expected,
    /// GPU-seconds that the whole job lost to it.
    pub lost_gpu_s: f64,
    /// GPU-seconds of all steps so far, to compare with.
    pub of_gpu_s: f64,
}

impl Truth {
    /// A fault that has not been felt.
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

    /// The step was felt by a rank: it worked `work` seconds instead of `without`.
    pub(super) fn feel(&mut self, step: u64, rank: u32, work: f64, without: f64) {
        if work > without * FELT {
            self.feel_step(step);
            if let Err(place) = self.ranks.binary_search(&Rank(rank)) {
                self.ranks.insert(place, Rank(rank));
            }
        }
    }

    /// The step was felt.
    pub(super) fn feel_step(&mut self, step: u64) {
        self.since_step.get_or_insert(step);
        self.last_step = Some(step);
    }
}

/// What ranks and nodes are called.
pub(crate) struct Places<'a> {
    pub names: &'a [NodeId],
    pub gpu: &'a dyn Fn(u32) -> GpuId,
}

/// What a rack is called.
pub(crate) fn rack_name(rack: u32) -> Arc<str> {
    Arc::from(format!("rack{rack}"))
}

/// What should be said of a fault; of `docs/findings.md` each row once, and of silence about telemetry nothing.
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
            // What wanders between ranks, or is everywhere, is the job's own.
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

/// The job of a spec, as a subject.
pub(crate) fn job(spec: &WorldSpec) -> Subject {
    Subject::Job {
        job: JobId(Arc::clone(&spec.job)),
    }
}
