//! The node as a whole, or the job's part of it: pressure, page faults, and the quota of the job's group.

use paceline_health::event::{HostSignal, Missing};

use super::Readings;
use super::cgroup::Groups;
use super::files::{Files, reading};
use super::pressure::stalled_ns;
use super::stopped::{Round, Stopped};

/// Signals of waiting time. For each, the pressure file of a group and that of the whole node.
const WAITS: [(HostSignal, &str, &str); 3] = [
    (HostSignal::RunQueueNs, "cpu.pressure", "proc/pressure/cpu"),
    (
        HostSignal::MemoryStallNs,
        "memory.pressure",
        "proc/pressure/memory",
    ),
    (HostSignal::DiskWaitNs, "io.pressure", "proc/pressure/io"),
];

/// The meter of the node; see the module.
#[derive(Debug, Default)]
pub struct Node {
    /// The groups that all ranks on this node have in common.
    groups: Groups,
    stopped: Stopped,
}

impl Node {
    /// Sets the groups, and reads the values that are expensive to read. `groups` are those that all ranks share.
    pub fn look(&mut self, files: &mut Files, groups: Option<Groups>, readings: &mut Readings) {
        self.groups = groups.unwrap_or_default();
        self.stopped.look(files, &self.groups);
        let of_group = self.groups.unified_with(files, "memory.stat");
        let faults = of_group
            .ok_or(Missing::Unsupported)
            .and_then(|stat| files.field(stat, "pgmajfault"))
            .or_else(|_| files.field("proc/vmstat", "pgmajfault"));
        readings.insert(HostSignal::MajorFaults, reading(faults));
    }

    /// Reads values that change every second.
    pub fn read(&mut self, files: &mut Files, round: &mut Round, readings: &mut Readings) {
        for (signal, of_group, of_node) in WAITS {
            let own = self.groups.unified_with(files, of_group);
            let path = own.unwrap_or_else(|| of_node.into());
            readings.insert(signal, reading(stalled_ns(files, path)));
        }
        readings.insert(HostSignal::CpuThrottledNs, self.stopped.read(files, round));
    }
}
