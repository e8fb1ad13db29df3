//! GPUs that cannot be read. Their state is unknown, and unknown must not be reported as healthy.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ledger::{Ledger, Part};
use super::xids::subject;
use super::{FaultContext, FaultRule};
use crate::event::{Access, GpuAccess};
use crate::fault::{Remedy, When};
use crate::id::NodeId;
use crate::verdict::{Finding, Severity, Subject};

const PART: &str = "access";

/// The last access state of each node's GPUs as a group.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Accesses {
    nodes: BTreeMap<NodeId, GpuAccess>,
    /// Nodes on which XID and ECC events cannot be received.
    eventless: BTreeMap<NodeId, ()>,
}

impl Accesses {
    /// Handles the attach of a rank that trains on a GPU: unreadable GPUs on its node are reported from now on.
    pub fn attached(&mut self, context: &FaultContext<'_>, ledger: &mut Ledger) {
        if let Some(access) = self.nodes.get(context.node) {
            unreadable(context, ledger, &context.node_subject(), access);
        }
    }

    /// Returns the limits of the findings as text.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let unread = self
            .nodes
            .values()
            .filter(|access| access.state != Access::Readable)
            .count();
        if let Some((name, access)) = self
            .nodes
            .iter()
            .find(|(_, access)| access.state != Access::Readable)
        {
            let nodes = crate::text::humanize::count(unread as u64, "node");
            // If a node has no driver, the loader's message is left out because it adds nothing.
            notes.push(match access.state {
                Access::Absent => {
                    format!("no NVIDIA driver on {nodes} ({name}): GPU faults are not detected")
                }
                _ => format!(
                    "GPUs of {nodes} are not read ({name}: {}): their faults are not detected",
                    words(access)
                ),
            });
        }
        if let Some((name, ())) = self.eventless.first_key_value() {
            notes.push(format!(
                "NVML gives no XID and ECC events on {name}: XIDs come from the kernel log"
            ));
        }
        notes
    }
}

impl FaultRule {
    /// Handles a change in whether a GPU, or the GPUs of a node as a group, can be read.
    pub(super) fn access(&mut self, context: &FaultContext<'_>, access: &GpuAccess) {
        if access.state == Access::NoEvents {
            self.accesses.eventless.insert(context.node.clone(), ());
            return;
        }
        let Some(gpu) = &access.gpu else {
            self.accesses.nodes.insert(context.node.clone(), access.clone());
            let node = context.node_subject();
            // A node without GPUs is reported only if a rank declares that it trains on one.
            let wanted = context
                .roster
                .members()
                .any(|(_, member)| member.node == *context.node && member.gpu.is_some());
            if access.state == Access::Readable {
                self.ledger
                    .drop_part(context.at, Finding::GpuUnreadable, &node, PART);
            } else if wanted {
                unreadable(context, &mut self.ledger, &node, access);
            }
            return;
        };
        let Some(id) = self.resolve(context, Some(gpu), &access.pci) else {
            return;
        };
        let subject = subject(context, &id);
        match access.state {
            Access::Readable => {
                self.ledger
                    .drop_part(context.at, Finding::GpuUnreadable, &subject, PART);
                self.ledger
                    .drop_part(context.at, Finding::GpuLost, &subject, PART);
            }
            Access::Lost => {
                self.ledger
                    .drop_part(context.at, Finding::GpuUnreadable, &subject, PART);
                let mut part = Part::new(context, Severity::Critical, "The driver has lost it")
                    .asks(Remedy::RebootNode, When::Now);
                part.since = context.at - Duration::from_nanos(access.for_ns);
                part.since_step = context.rank_on(&id).map(|(_, step)| step);
                self.ledger.hold(context, Finding::GpuLost, &subject, PART, part);
            }
            _ => unreadable(context, &mut self.ledger, &subject, access),
        }
    }
}

fn unreadable(context: &FaultContext<'_>, ledger: &mut Ledger, subject: &Subject, access: &GpuAccess) {
    if access.state == Access::Readable {
        return;
    }
    let mut part = Part::new(context, Severity::Warning, words(access));
    part.since = context.at - Duration::from_nanos(access.for_ns);
    part.more = remedy(access.state).to_owned();
    if access.state == Access::Silent {
        part = part.shows("unanswered_s", Duration::from_nanos(access.for_ns).as_secs_f64());
    }
    ledger.hold(context, Finding::GpuUnreadable, subject, PART, part);
}

/// Returns text such as "NVML is silent (nvmlDeviceGetFieldValues has not come back)".
fn words(access: &GpuAccess) -> String {
    let what = match access.state {
        Access::Readable => "It can be read",
        Access::Absent => "There is no NVIDIA driver and no library",
        Access::NoLibrary => "NVIDIA's library cannot be loaded",
        Access::NoDriver => "The driver is not loaded or does not answer",
        Access::VersionMismatch => "Library and driver are of different versions",
        Access::NoPermission => "No permission to open the devices",
        Access::NoDevice => "No GPU is visible",
        Access::Lost => "The driver has lost it",
        Access::Silent => "NVML does not answer",
        Access::Failing => "Every call to NVML fails",
        Access::NoEvents => "NVML gives no events",
    };
    if access.text.is_empty() {
        what.to_owned()
    } else {
        format!("{what} ({})", access.text)
    }
}

fn remedy(state: Access) -> &'static str {
    match state {
        Access::Absent | Access::NoLibrary => {
            "Make libnvidia-ml.so.1 visible to the job (NVIDIA_DRIVER_CAPABILITIES=utility in containers), or name it with --nvml-lib."
        }
        Access::NoDriver | Access::VersionMismatch => {
            "Load the driver that fits the library; after an upgrade, reboot."
        }
        Access::NoPermission => "Give this user access to /dev/nvidia*.",
        Access::NoDevice => "Give the container the GPUs that its ranks train on.",
        Access::Silent => "A call that does not return is a sign of a faulty GPU: look at the kernel log.",
        _ => "Look at the kernel log and at nvidia-smi on this node.",
    }
}
