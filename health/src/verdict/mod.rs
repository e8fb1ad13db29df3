//! Verdicts of the detector. A verdict is a finding that was raised or cleared on a subject, with its evidence, cost
//! and action.

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
            /// All values, in the order of the tables.
            pub const ALL: &'static [$list] = &[$($list::$variant),*];

            /// Returns its name in JSON, metrics and docs.
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
    /// Kinds of problems. Each has a row in `docs/findings.md` and in `policy/findings.toml`.
    Finding {
        /// A rank is persistently slower than its peers.
        Straggler = "straggler",
        /// A rank is stalled while its peers have arrived.
        RankSilent = "rank-silent",
        /// No rank makes progress, and none is behind.
        JobHang = "job-hang",
        /// The process of a rank ended while its peers were alive.
        RankDied = "rank-died",
        /// Ranks never arrived at the first barrier, and their peers wait for them.
        RanksMissing = "ranks-missing",
        /// A node's telemetry is missing: its state is unknown.
        TelemetryBlind = "telemetry-blind",
        /// The ranks of a node, or of a rack, are slow together.
        StragglerNode = "straggler-node",
        /// Transfers over a link take longer than before, or than on other links.
        SlowLink = "slow-link",
        /// Many ranks became slow together, and no node or rack explains it.
        AllRanksSlow = "all-ranks-slow",
        /// Slower than its own baseline from the first step on.
        SlowFromBirth = "slow-from-birth",
        /// Pipeline stages differ in work: all wait for the slowest.
        StageImbalance = "stage-imbalance",
        /// Sequences differ in length: the rank with the longest delays its peers.
        SequenceImbalance = "sequence-imbalance",
        /// Experts differ in load: the rank with the busiest one delays its peers.
        ExpertImbalance = "expert-imbalance",
        /// Training waits for its data.
        DataLoading = "data-loading",
        /// Ranks lack CPU time, changing between ranks.
        CpuContention = "cpu-contention",
        /// Ranks pause for garbage collection, changing between ranks.
        GcPause = "gc-pause",
        /// A single rank evaluates, saves or pauses at regular intervals, and its peers wait for it.
        SingleRankPause = "single-rank-pause",
        /// Slow only when checkpoints are written.
        SlowCheckpoint = "slow-checkpoint",
        /// Warm-up takes much of the run, or much longer on one rank.
        SlowWarmUp = "slow-warm-up",
        /// Steps take longer than before a restart, or than in an earlier run.
        StepRegression = "step-regression",
        /// Transfer, not compute, takes much of the step.
        CommunicationBound = "communication-bound",
        /// Versions that should be the same differ between nodes.
        VersionSkew = "version-skew",
        /// A GPU has fallen off the bus.
        GpuLost = "gpu-lost",
        /// A GPU reported a fault that requires a reset, a reboot or an inspection.
        GpuFault = "gpu-fault",
        /// The application faulted on a GPU; the GPU itself continues.
        ApplicationFault = "application-fault",
        /// XIDs that need no action.
        XidRecorded = "xid-recorded",
        /// A GPU counted uncorrectable memory errors.
        EccUncorrectable = "ecc-uncorrectable",
        /// A GPU corrects memory errors at a high rate.
        EccCorrected = "ecc-corrected",
        /// Memory rows of a GPU were, will be, or could not be remapped.
        RowRemap = "row-remap",
        /// A GPU throttles.
        GpuThrottled = "gpu-throttled",
        /// A GPU's PCIe link is narrower or slower than possible, or replays.
        PcieDegraded = "pcie-degraded",
        /// NVLinks of a GPU count errors, or are down.
        NvlinkErrors = "nvlink-errors",
        /// Results since the last clean checkpoint may be wrong.
        ResultsSuspect = "results-suspect",
        /// A GPU, or all GPUs of a node, cannot be read.
        GpuUnreadable = "gpu-unreadable",
        /// A GPU's configuration differs from its peers', or from the recommended one.
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

/// The subject of a verdict: what the finding is about.
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
    /// One rank with its location.
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
    /// The network between two nodes, or between one node and all others.
    Link {
        /// The first node.
        node: NodeId,
        /// The second node, or `None` for all other nodes.
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

/// Severity of a verdict. Info sends no alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// For information only. No alert is sent.
    Info,
    /// A ticket should be opened.
    Warning,
    /// The person on call should be paged.
    Critical,
}

impl Severity {
    /// Returns its name in JSON, metrics and docs.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Critical => "critical",
        }
    }
}

/// Whether a verdict's incident is raised or cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The incident is active.
    Raised,
    /// The incident has ended.
    Cleared,
}

/// One piece of evidence: a measurement of the subject, and the same measurement of its peers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// The measurement, with the unit in its name, for example `self_time_s` or `sm_clock_mhz`.
    pub what: Arc<str>,
    /// The subject's value.
    pub value: f64,
    /// Median of its peers, if it has any.
    pub peers: Option<f64>,
    /// The first and last journal entry with the data.
    pub entries: Option<(u64, u64)>,
}

/// Name of evidence on the job: the number of unreachable nodes. The value of the peers is the number of all nodes.
pub const UNHEARD_NODES: &str = "unheard_nodes";

/// Name of evidence on a [card](crate::text::cards) of several GPUs of a node: the number of these GPUs.
pub const ALIKE_GPUS: &str = "alike_gpus";

/// The current state of one incident. A later verdict with the same `id` replaces it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Number of the incident in this job, from 1.
    pub id: u64,
    /// The finding.
    pub finding: Finding,
    /// Its subject.
    pub subject: Subject,
    /// Its severity.
    pub severity: Severity,
    /// Whether the incident is raised or cleared.
    pub state: State,
    /// When the problem began, seconds since the first frame.
    pub since_s: f64,
    /// The step in which the problem began.
    pub since_step: Option<u64>,
    /// When the incident was raised, seconds since the first frame.
    pub raised_s: f64,
    /// The step after which the incident was raised.
    pub raised_step: Option<u64>,
    /// When the incident cleared, seconds since the first frame.
    pub cleared_s: Option<f64>,
    /// The signals that it is based on.
    pub signals: Vec<Signal>,
    /// The least trusted source among its evidence.
    pub provenance: Provenance,
    /// Self-time divided by the median of the peers, since the problem began. Only for stragglers.
    pub slowdown_ratio: Option<f64>,
    /// The cause that the counters show.
    pub cause: Cause,
    /// The evidence.
    pub evidence: Vec<Evidence>,
    /// Share of step time that would be saved if the subject ran like its peers. Only for stragglers.
    pub impact_ratio: Option<f64>,
    /// GPU-hours (rank-hours without GPUs) that the whole job lost to it so far.
    pub lost_gpu_hours: f64,
    /// The cost of these hours in the currency of the price, or `None` if no price is configured.
    #[serde(default)]
    pub lost_cost: Option<f64>,
    /// The recommended action, from the policy table.
    pub action: Arc<str>,
    /// True if the policy only observes this finding (`observe.<finding>`). Its severity is then always info, and no
    /// action follows.
    #[serde(default)]
    pub observe_only: bool,
    /// The action in a form for programs, if a table of faults defines it. `None` if the action is only for people.
    #[serde(default)]
    pub order: Option<Order>,
    /// Evidence as text, for example the exception that ended a rank. `None` if all evidence is numeric.
    #[serde(default)]
    pub says: Option<Arc<str>>,
    /// True if the job failed while the incident was active. It is set only in the report of a job that has ended.
    #[serde(default)]
    pub unresolved_at_exit: bool,
}

impl Verdict {
    /// Returns the key by which findings are ordered wherever they are displayed, most important first. Active findings
    /// that end or stop the job or invalidate its results ([`Verdict::is_urgent`]) come first. Then come those that
    /// cost the job time, those without a measured cost, and findings without an alert. Each group is ordered by
    /// severity, share of the step, and certainty of the cause. Cleared findings come last, ordered by cost and then by
    /// severity.
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

    /// Returns true if the finding stops or ends the job, or invalidates its results. A hang that is only suspected
    /// counts as urgent too.
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

    /// Describes the subject in words. For a job with many unreachable nodes, or for many GPUs of a node, the
    /// description includes their number.
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
