//! One rank: its process, its data loader children, and the control group whose quota applies to it.

use paceline_health::event::{HostSignal, Reading};

use super::Readings;
use super::cgroup::Groups;
use super::files::Files;
use super::grown::Grown;
use super::process::{Stat, family};
use super::stopped::{Round, Stopped};
use super::threads::Threads;

/// File that shows whether the kernel counts disk waits per task. This is off by default since Linux 5.14.
const DELAY_ACCOUNTING: &str = "proc/sys/kernel/task_delayacct";

/// The meter of one rank; see the module.
#[derive(Debug)]
pub struct Trainer {
    pid: u32,
    threads: Threads,
    major_faults: Grown<u32>,
    disk_ticks: Grown<u32>,
    groups: Groups,
    stopped: Stopped,
}

impl Trainer {
    /// Creates the meter for a trainer with process `pid`.
    pub fn new(pid: u32) -> Trainer {
        Trainer {
            pid,
            threads: Threads::default(),
            major_faults: Grown::default(),
            disk_ticks: Grown::default(),
            groups: Groups::default(),
            stopped: Stopped::default(),
        }
    }

    /// Returns its process ID.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns its control groups.
    pub fn groups(&self) -> &Groups {
        &self.groups
    }

    /// Finds processes, threads and groups again, and reads the values that are expensive to read.
    pub fn look(&mut self, files: &mut Files, readings: &mut Readings) {
        self.groups = Groups::of(files, self.pid);
        self.stopped.look(files, &self.groups);
        let family = family(files, self.pid);
        self.threads.choose(files, &family);
        let accounts = files.number(DELAY_ACCOUNTING).is_ok_and(|on| on > 0.0);
        for process in &family {
            let Some(stat) = Stat::of(files, *process) else {
                continue;
            };
            self.major_faults.take(*process, stat.major_faults as f64);
            // Without accounting, the kernel reports only zeros, which must not be taken as counts.
            if accounts || stat.disk_ticks > 0 {
                self.disk_ticks.take(*process, stat.disk_ticks as f64);
            }
        }
        self.major_faults.keep(|process| family.contains(process));
        self.disk_ticks.keep(|process| family.contains(process));
        let tick_ns = 1e9 / rustix::param::clock_ticks_per_second() as f64;
        let disk = match self.disk_ticks.reading() {
            Reading::Value(ticks) => Reading::Value(ticks * tick_ns),
            missing => missing,
        };
        readings.insert(HostSignal::MajorFaults, self.major_faults.reading());
        readings.insert(HostSignal::DiskWaitNs, disk);
    }

    /// Reads the values that change every second.
    pub fn read(&mut self, files: &mut Files, round: &mut Round, readings: &mut Readings) {
        readings.insert(HostSignal::RunQueueNs, self.threads.waited_ns());
        readings.insert(HostSignal::CpuThrottledNs, self.stopped.read(files, round));
    }
}
