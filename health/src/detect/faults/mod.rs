//! Faults of GPUs and of network ports. This rule turns reports of the kernel log, NVML and the ports into findings
//! with an order, using the tables of `policy/`.
//!
//! Each kind of evidence has its own file: [`xids`] for reported faults, [`readings`] for counters and flags,
//! [`access`] for unreadable GPUs, [`ports`] for the network, [`suspect`] for results that may be wrong. All of them
//! put parts into one [`ledger`], whose active entries are reported. Deadlines of this rule fire with the next frame.
//! This is soon enough, because a frame arrives every second while anything is monitored, and a claim carries its
//! deadline anyway.

mod access;
mod hook;
mod ledger;
mod ports;
mod readings;
mod suspect;
mod window;
mod xids;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use self::access::Accesses;
use self::ledger::{FaultClaim, Ledger};
use self::ports::Ports;
use self::readings::fleet::Fleet;
use self::readings::gpu::Gpu;
use self::readings::nvlinks::Wiring;
use self::suspect::Suspect;
use self::xids::job::JobXids;

use super::members::cursor_map::CursorMap;
use super::members::roster::Roster;
use crate::event::{Event, KernelAccess, KernelWatch};
use crate::fault::{Branch, FaultTables, pci_id};
use crate::frame::{Frame, Provenance};
use crate::id::{GpuId, JobId, NodeId};
use crate::policy::{GpuThresholds, PortThresholds};
use crate::time::Time;
use crate::verdict::{Finding, Subject};

/// Maximum number of GPUs kept. No job has more.
const MAX_GPUS: usize = 1 << 17;

/// The data that the rule can read while it handles one frame.
#[derive(Clone, Copy)]
pub struct FaultContext<'a> {
    pub at: Time,
    /// Position of the frame in the journal.
    pub entry: u64,
    pub provenance: Provenance,
    pub node: &'a NodeId,
    pub job: &'a JobId,
    pub roster: &'a Roster,
    pub limits: &'a GpuThresholds,
    pub ports: &'a PortThresholds,
    pub tables: &'a FaultTables,
}

impl FaultContext<'_> {
    pub fn job_subject(&self) -> Subject {
        Subject::Job {
            job: self.job.clone(),
        }
    }

    pub fn node_subject(&self) -> Subject {
        Subject::Node {
            node: self.node.clone(),
        }
    }

    /// Returns the rank that trains on a GPU of this node, and its current step.
    pub fn rank_on(&self, gpu: &GpuId) -> Option<(crate::id::Rank, u64)> {
        let mut members = self.roster.members();
        let found = members.find(|(_, member)| member.node == *self.node && member.gpu.as_ref() == Some(gpu));
        found.map(|(rank, member)| (rank, member.last_step + 1))
    }
}

/// State of one node, without its GPUs.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Node {
    branch: Option<Branch>,
    kernel: Option<KernelWatch>,
}

/// The rule of GPU and port faults.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct FaultRule {
    gpus: CursorMap<(NodeId, GpuId), Gpu>,
    /// The GPU at each address. A GPU whose UUID is not known yet has its address as its name.
    at_pci: BTreeMap<(NodeId, String), GpuId>,
    nodes: BTreeMap<NodeId, Node>,
    ledger: Ledger,
    job_xids: JobXids,
    fleet: Fleet,
    #[serde(default)]
    wiring: Wiring,
    accesses: Accesses,
    ports: Ports,
    suspect: Suspect,
}

impl FaultRule {
    /// Takes a frame.
    pub fn observe(&mut self, context: &FaultContext<'_>, frame: &Frame) {
        self.fire(context);
        match &frame.event {
            Event::Agent(agent) => {
                let node = self.nodes.entry(context.node.clone()).or_default();
                node.branch = agent.versions.get("driver").and_then(|driver| Branch::of(driver));
            }
            Event::Kernel(watch) => self.kernel(context, watch),
            Event::GpuFault(fault) => self.fault(context, fault),
            Event::Gpu(reading) => self.reading(context, reading),
            Event::GpuAccess(access) => self.access(context, access),
            Event::Port(reading) => self.port(context, reading),
            Event::GpuHolders(holders) => {
                let id = self.resolve(context, Some(&holders.gpu), &holders.pci);
                if let Some(gpu) = id.and_then(|id| self.gpu(context, &id)) {
                    gpu.holders = holders.processes.clone();
                }
            }
            Event::Attach(attach) if attach.gpu.is_some() => {
                self.accesses.attached(context, &mut self.ledger)
            }
            Event::Step(step) => self.suspect.step(context, step, &mut self.ledger),
            Event::Mark(mark) => self.suspect.mark(context, mark),
            _ => {}
        }
    }

    /// Ends the faults of the application, because it was restarted.
    pub fn begins_epoch(&mut self, at: Time, job: &JobId) {
        self.job_xids.clear();
        let job = Subject::Job { job: job.clone() };
        for finding in [Finding::ApplicationFault, Finding::XidRecorded] {
            self.ledger.over(at, finding, &job);
        }
        self.suspect.restarted();
    }

    /// Returns the work that must be repeated because of a finding, in rank-seconds, or `None` if the finding implies
    /// none.
    pub fn retrain_s(&self, finding: Finding, subject: &Subject, now: Time, ranks: u32) -> Option<f64> {
        self.suspect.retrain_s(finding, subject, now, ranks)
    }

    /// Returns the next claim, with its order.
    pub fn poll(&mut self) -> Option<FaultClaim> {
        self.ledger.poll()
    }

    /// Returns the limits of these findings as text.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = self.accesses.notes();
        let unread: Vec<&NodeId> = self
            .nodes
            .iter()
            .filter(|(_, node)| {
                let kernel = node.kernel.as_ref();
                kernel.is_some_and(|kernel| kernel.state != KernelAccess::Readable)
            })
            .map(|(name, _)| name)
            .collect();
        if let Some(first) = unread.first() {
            notes.push(format!(
                "the kernel log of {} node{} cannot be read ({first} is the first): XIDs come from NVML only, \
                 which does not report 79, 119 and 120",
                unread.len(),
                if unread.len() == 1 { "" } else { "s" },
            ));
        }
        let lost: u64 = self
            .nodes
            .values()
            .filter_map(|node| node.kernel.as_ref())
            .map(|kernel| kernel.lost)
            .sum();
        if lost > 0 {
            notes.push(format!(
                "{lost} records of kernel logs were overwritten before they were read"
            ));
        }
        if let Some((asking, nodes)) = self.ledger.tripped() {
            notes.push(format!(
                "{asking} of {nodes} nodes need to be taken out of service at once: no more actions on nodes are \
                 ordered"
            ));
        }
        notes
    }

    /// Fires deadlines that have passed.
    fn fire(&mut self, context: &FaultContext<'_>) {
        self.ledger.tell_due(context.at);
        self.follow_alone(context);
        self.job_xids.quiet(context, &mut self.ledger);
    }

    /// Handles the report that a kernel log was opened or cannot be read. A new boot ends the findings that a reboot
    /// clears.
    fn kernel(&mut self, context: &FaultContext<'_>, watch: &KernelWatch) {
        let node = self.nodes.entry(context.node.clone()).or_default();
        let before = node.kernel.replace(watch.clone());
        let rebooted = before.is_some_and(|before| {
            !before.boot.is_empty() && !watch.boot.is_empty() && before.boot != watch.boot
        });
        if rebooted {
            self.rebooted(context);
        }
    }

    fn rebooted(&mut self, context: &FaultContext<'_>) {
        let keys = self.gpus.iter().map(|(key, _)| key);
        let of_node: Vec<_> = keys.filter(|(node, _)| node == context.node).cloned().collect();
        for key in of_node {
            let Some(gpu) = self.gpus.get_mut(&key) else {
                continue;
            };
            let (_, id) = key;
            let subject = Subject::Gpu {
                gpu_uuid: id.clone(),
                node: context.node.clone(),
            };
            let was_asked = self.ledger.is_open(Finding::GpuLost, &subject)
                || self.ledger.is_open(Finding::GpuFault, &subject);
            gpu.rebooted(was_asked);
            for finding in readings::gpu::ENDED_BY_RESET {
                self.ledger.over(context.at, finding, &subject);
            }
        }
        self.ledger
            .over(context.at, Finding::GpuLost, &context.node_subject());
    }

    /// Returns the state of a GPU of this node, or `None` if there are more GPUs than is plausible.
    fn gpu(&mut self, context: &FaultContext<'_>, id: &GpuId) -> Option<&mut Gpu> {
        let key = (context.node.clone(), id.clone());
        if self.gpus.len() >= MAX_GPUS && self.gpus.get(&key).is_none() {
            return None;
        }
        self.gpus.get_or_insert_with(&key, Gpu::default)
    }

    /// Returns the name of a GPU: its UUID if known, or else its address. Returns `None` if neither is known.
    fn resolve(&mut self, context: &FaultContext<'_>, uuid: Option<&GpuId>, pci: &str) -> Option<GpuId> {
        let Some(pci) = pci_id(pci) else {
            return uuid.cloned();
        };
        let place = (context.node.clone(), pci);
        match (uuid, self.at_pci.get(&place)) {
            (None, Some(known)) => Some(known.clone()),
            (None, None) => {
                let called = GpuId::from(place.1.as_str());
                self.remember(place, called.clone());
                Some(called)
            }
            (Some(uuid), known) => {
                // A MIG device has the address of its GPU, so its UUID must not become the name of the GPU at that
                // address.
                let is_whole = uuid.as_str().starts_with("GPU-");
                if known != Some(uuid) && (is_whole || known.is_none()) {
                    let nameless = known.filter(|known| known.as_str() == place.1).cloned();
                    self.remember(place, uuid.clone());
                    if let Some(nameless) = nameless {
                        self.named(context, &nameless, uuid);
                    }
                }
                Some(uuid.clone())
            }
        }
    }

    fn remember(&mut self, place: (NodeId, String), id: GpuId) {
        if self.at_pci.len() < MAX_GPUS || self.at_pci.contains_key(&place) {
            self.at_pci.insert(place, id);
        }
    }

    /// Renames a GPU from its address to its UUID, which has become known.
    fn named(&mut self, context: &FaultContext<'_>, from: &GpuId, to: &GpuId) {
        if let Some(state) = self.gpus.remove(&(context.node.clone(), from.clone())) {
            let key = (context.node.clone(), to.clone());
            self.gpus.get_or_insert_with(&key, || state);
        }
        let subject = |id: &GpuId| Subject::Gpu {
            gpu_uuid: id.clone(),
            node: context.node.clone(),
        };
        self.ledger.rename(context.at, &subject(from), &subject(to));
    }

    fn branch(&self, node: &NodeId) -> Option<Branch> {
        self.nodes.get(node).and_then(|node| node.branch)
    }
}

/// Returns the shared text of the evidence that counts one XID.
fn xid_name(xid: u32) -> Arc<str> {
    format!("xid_{xid}").into()
}
