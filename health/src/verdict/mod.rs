//! What the detector says: a finding raised or cleared on a subject, with its evidence, cost and action.

use std::cmp::Reverse;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::event::Signal;
use crate::fault::Order;
use crate::frame::Provenance;
use crate::id::{GpuId, JobId, NodeId, Rank};

/// Declares a closed list with its names, in the order of the tables.
macro_rules! closed {
    ($(#[$doc:meta])* $list:ident { $($(#[$row:meta])* $variant:ident = $name:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum $list {
            $($(#[$row])* $variant,)*
        }

        impl $list {
            /// All, in the order of the tables.
            pub const ALL: &'static [$list] = &[$($list::$variant),*];

            /// Its name in JSON, metrics and docs.
            pub fn name(self) -> &'static str {
                match self {
                    $($list::$variant => $name,)*
                }
            }
        }
    };
}

mod cause;

pub use cause::Cause;

closed! {
    /// The kind of trouble. Each has a row in `docs/findings.md` and in `policy/findings.toml`.
    Finding {
        /// A rank is persistently slower than its peers.
        Straggler = "straggler",
        /// A rank does not move while others have arrived.
        RankSilent = "rank-silent",
        /// No rank makes progress, and none is behind.
        JobHang = "job-hang",
        /// The process of a rank ended while its peers were alive.
        RankDied = "rank-died",
        /// Ranks never arrived at the first barrier, and the others wait for them.
        RanksMissing = "ranks-missing",
        /// A node's telemetry is missing: nothing can be said of it.
        TelemetryBlind = "telemetry-blind",
        /// The ranks of a node, or of a rack, are slow together.
        StragglerNode = "straggler-node",
        /// Transfers across a link take longer than they did, or than elsewhere.
        SlowLink = "slow-link",
        /// Many ranks became slow together, and no node or rack explains it.
        AllRanksSlow = "all-ranks-slow",
        /// Slower than its own baseline from the first step on.
        SlowFromBirth = "slow-from-birth",
        /// Pipeline stages differ in work: all wait for the heaviest.
        StageImbalance = "stage-imbalance",
        /// Sequences differ in length: who draws the longest holds up the others.
        SequenceImbalance = "sequence-imbalance",
        /// Experts differ in load: who holds the busiest holds up the others.
        ExpertImbalance = "expert-imbalance",
        /// Training waits for its data.
        DataLoading = "data-loading",
        /// Ranks are starved of CPU, now one and now another.
        CpuContention = "cpu-contention",
        /// Ranks pause to collect garbage, now one and now another.
        GcPause = "gc-pause",
        /// One rank alone evaluates, saves or pauses every so many steps, and the others wait for it.
        SingleRankPause = "single-rank-pause",
        /// Slow only when checkpoints are written.
        SlowCheckpoint = "slow-checkpoint",
        /// Warm-up takes much of the run, or much longer on one rank.
        SlowWarmUp = "slow-warm-up",
        /// Steps take longer than before a restart, or than in an earlier run.
        StepRegression = "step-regression",
        /// Transfer, not compute, takes much of the step.
        CommunicationBound = "communication-bound",
        /// Versions that should be alike differ between nodes.
        VersionSkew = "version-skew",
        /// A GPU has fallen off the bus.
        GpuLost = "gpu-lost",
        /// A GPU reported a fault that only a reset, a reboot or an inspection ends.
        GpuFault = "gpu-fault",
        /// The application faulted on a GPU; the GPU itself goes on.
        ApplicationFault = "application-fault",
        /// XIDs that need no action.
        XidRecorded = "xid-recorded",
        /// A GPU counted memory errors that it could not correct.
        EccUncorrectable = "ecc-uncorrectable",
        /// A GPU corrects memory errors at a high rate.
        EccCorrected = "ecc-corrected",
        /// Memory rows of a GPU were, will be, or could not be remapped.
        RowRemap = "row-remap",
        /// A GPU slows itself down.
        GpuThrottled = "gpu-throttled",
        /// A GPU's PCIe link is narrower or slower than it could be, or repeats itself.
        PcieDegraded = "pcie-degraded",
        /// NVLinks of a GPU count errors, or are down.
        NvlinkErrors = "nvlink-errors",
        /// Results since the last clean checkpoint may be wrong.
        ResultsSuspect = "results-suspect",
        /// A GPU, or those of a node, cannot be read.
        GpuUnreadable = "gpu-unreadable",
        /// A GPU is set up in another way than its peers, or than it should be.
        GpuConfig = "gpu-config",
        /// A GPU's memory is nearly full.
        GpuMemoryFull = "gpu-memory-full",
        /// A GPU is allocated but idle.
        GpuIdle = "gpu-idle",
        /// A network port of a node is down, loses its link, runs below its rate or counts errors.
        NetworkPort = "network-port",
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whom a verdict is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Subject {
    /// The whole job.
    Job {
        /// Its name.
        job: JobId,
    },
    /// One node.
    Node {
        /// Its name.
        node: NodeId,
    },
    /// One rank, and where it runs.
    Rank {
        /// Global rank.
        rank: Rank,
        /// Its node.
        node: NodeId,
        /// Its GPU, if it trains on one.
        gpu_uuid: Option<GpuId>,
    },
    /// One GPU.
    Gpu {
        /// UUID.
        gpu_uuid: GpuId,
        /// Its node.
        node: NodeId,
    },
    /// The nodes under one switch or in one rack.
    Rack {
        /// Its name.
        rack: Arc<str>,
    },
    /// The network between two nodes, or between one and all others.
    Link {
        /// One end.
        node: NodeId,
        /// The other end; `None`: wherever it leads.
        peer: Option<NodeId>,
    },
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Job { job } => write!(f, "job {job}"),
            Subject::Node { node } => write!(f, "node {node}"),
            Subject::Rank {
                rank,
                node,
                gpu_uuid: None,
            } => write!(f, "rank {rank} on {node}"),
            Subject::Rank {
                rank,
                node,
                gpu_uuid: Some(gpu),
            } => write!(f, "rank {rank} on {node} ({gpu})"),
            Subject::Gpu { gpu_uuid, node } => write!(f, "gpu {gpu_uuid} on {node}"),
            Subject::Rack { rack } => write!(f, "rack {rack}"),
            Subject::Link { node, peer: None } => write!(f, "link of {node}"),
            Subject::Link {
                node,
                peer: Some(peer),
            } => write!(f, "link {node} to {peer}"),
        }
    }
}

/// How bad. Info alerts nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Worth knowing.
    Info,
    /// A ticket.
    Warning,
    /// A page.
    Critical,
}

impl Severity {
    /// Its name in JSON, metrics and docs.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Critical => "critical",
        }
    }
}

/// Raised or cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It holds.
    Raised,
    /// It held.
    Cleared,
}

/// One piece of evidence: what was measured, and the same on the peers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// What was measured, unit in its name: `self_time_s`, `sm_clock_mhz`.
    pub what: Arc<str>,
    /// On the subject.
    pub value: f64,
    /// Median of its peers, if it has any.
    pub peers: Option<f64>,
    /// Journal entries it was read from: first and last.
    pub entries: Option<(u64, u64)>,
}

/// Evidence of the job: how many nodes nothing is heard from; its peers are all nodes.
pub const UNHEARD_NODES: &str = "unheard_nodes";

/// Evidence of a [card](crate::text::cards) of several GPUs of a node: how many they are.
pub const ALIKE_GPUS: &str = "alike_gpus";

/// One incident in its present state. A later verdict of the same `id` replaces it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Number of the incident in this job, from 1.
    pub id: u64,
    /// The kind of trouble.
    pub finding: Finding,
    /// Whom it is about.
    pub subject: Subject,
    /// How bad.
    pub severity: Severity,
    /// Raised or cleared.
    pub state: State,
    /// When the trouble began, seconds since the first frame.
    pub since_s: f64,
    /// The step in which it began.
    pub since_step: Option<u64>,
    /// When the detector was sure, seconds since the first frame.
    pub raised_s: f64,
    /// The step after which the detector was sure.
    pub raised_step: Option<u64>,
    /// When it ended, seconds since the first frame.
    pub cleared_s: Option<f64>,
    /// The signals that it rests on.
    pub signals: Vec<Signal>,
    /// The least trusted source among its evidence.
    pub provenance: Provenance,
    /// Self-time over the median of the peers, since it began; stragglers only.
    pub slowdown_ratio: Option<f64>,
    /// The joined cause.
    pub cause: Cause,
    /// What it rests on.
    pub evidence: Vec<Evidence>,
    /// Share of the step's time that would be won if the subject ran like its peers; stragglers only.
    pub impact_ratio: Option<f64>,
    /// GPU-hours (rank-hours without GPUs) that the whole job lost to it so far.
    pub lost_gpu_hours: f64,
    /// The same in money, in the currency of the price; `None`: no price was given.
    #[serde(default)]
    pub lost_cost: Option<f64>,
    /// What the policy table asks for.
    pub action: Arc<str>,
    /// Policy only observes this finding (`observe.<finding>`): severity is info whatever was found, and nothing acts.
    #[serde(default)]
    pub observe_only: bool,
    /// The same as `action` for programs, where a table of faults says it; `None`: only for people.
    #[serde(default)]
    pub order: Option<Order>,
    /// Evidence that is text and not a number: the exception that a rank died of; `None`: numbers are all there is.
    #[serde(default)]
    pub says: Option<Arc<str>>,
    /// The job ended while this held, and not in order. Set in the report only: a running job has no end yet.
    #[serde(default)]
    pub unresolved_at_exit: bool,
}

impl Verdict {
    /// The one order of findings, for every surface: what comes first sorts first. Of what holds: first what ends or
    /// stops the job or makes its results wrong ([`Verdict::is_urgent`]), then what costs the job time, then what costs
    /// nothing that was measured, then findings without an alert; within each the worse severity, the larger share of
    /// the step, the surer cause. Of what is over: what cost most, then what was worst.
    pub fn weight(&self) -> impl Ord + use<> {
        let millionths = |amount: f64| (amount * 1e6) as u64;
        let share = self.impact_ratio.unwrap_or(0.0);
        let is_over = self.state == State::Cleared;
        let class = match self.severity {
            _ if is_over => 0,
            _ if self.is_urgent() => 0,
            Severity::Info => 3,
            _ if share > 0.0 => 1,
            _ => 2,
        };
        let (first, second) = if is_over {
            (millionths(self.lost_gpu_hours), self.severity as u64)
        } else {
            (self.severity as u64, millionths(share))
        };
        (
            is_over,
            class,
            Reverse(first),
            Reverse(second),
            self.cause == Cause::Unknown,
            self.id,
        )
    }

    /// Whether it stops or ends the job, or spoils its results. A standstill that is only suspected is urgent already.
    pub fn is_urgent(&self) -> bool {
        match self.finding {
            Finding::RankSilent | Finding::JobHang => true,
            Finding::RankDied
            | Finding::RanksMissing
            | Finding::GpuLost
            | Finding::GpuFault
            | Finding::EccUncorrectable
            | Finding::ResultsSuspect => self.severity == Severity::Critical,
            _ => false,
        }
    }

    /// Whom it is about, in words; of a job that has lost sight of many nodes, and of many GPUs of a node, how many.
    pub fn subject_text(&self) -> String {
        let shown = |name: &str| self.evidence.iter().find(|piece| &*piece.what == name);
        if let (Some(gpus), Subject::Node { node }) = (shown(ALIKE_GPUS), &self.subject) {
            return format!("{} GPUs on {node}", gpus.value);
        }
        match shown(UNHEARD_NODES).map(|piece| (piece.value, piece.peers)) {
            Some((nodes, Some(all))) => format!("{nodes} of {all} nodes of {}", self.subject),
            _ => self.subject.to_string(),
        }
    }
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
