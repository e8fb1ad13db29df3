//! Tests the meters on file trees that look like the kernel's (tests/host), one round at a time, and on this machine.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use paceline_health::event::{
    Event, HostReading, HostSignal, Missing, PortLink, PortReading, PortSignal, Reading,
};
use paceline_health::id::Rank;
use tempfile::TempDir;

use super::Host;
use super::board::Board;
use super::pace::{Meter, Pace};
use super::ports::Ports;
use super::processes::Processes;
use crate::host::monotonic_ns;
use crate::source::Source;
use crate::source::trainers::Trainers;

const UNSUPPORTED: Reading = Reading::Missing(Missing::Unsupported);

/// A tree of files, written as lines `path = text`. A bar in the text stands for a line break.
struct Tree(TempDir);

impl Tree {
    fn new(text: &str) -> Tree {
        let tree = Tree(TempDir::new().unwrap());
        tree.write(text);
        tree
    }

    fn write(&self, text: &str) {
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (path, text) = line.split_once(" =").unwrap();
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text.trim_start().replace('|', "\n") + "\n").unwrap();
        }
    }

    fn root(&self) -> &Path {
        self.0.path()
    }
}

#[derive(Debug, Default)]
struct Told {
    hosts: BTreeMap<Option<Rank>, HostReading>,
    ports: BTreeMap<String, PortReading>,
}

impl Told {
    fn of(meter: &mut impl Meter, pace: Pace) -> Told {
        let board = Board::default();
        meter.read(pace, &board);
        let mut told = Told::from(&board);
        if told.hosts.is_empty() {
            // The sums over the ports are sent only with the node's readings, so add an empty one.
            board.host(None, BTreeMap::new());
            told.hosts = Told::from(&board).hosts;
        }
        told
    }

    fn from(board: &Board) -> Told {
        let mut told = Told::default();
        board.poll(0, &mut |_, event| {
            match event {
                Event::Host(reading) => _ = told.hosts.insert(reading.rank, reading),
                Event::Port(reading) => _ = told.ports.insert(reading.port.to_string(), reading),
                other => panic!("{other:?}"),
            }
            0
        });
        told
    }

    fn host(&self, rank: Option<u32>, signal: HostSignal) -> Option<Reading> {
        let reading = self.hosts.get(&rank.map(Rank))?;
        reading.readings.get(&signal).cloned()
    }

    fn port(&self, name: &str, signal: PortSignal) -> Option<Reading> {
        self.ports.get(name)?.readings.get(&signal).cloned()
    }
}

fn value(value: f64) -> Option<Reading> {
    Some(Reading::Value(value))
}

#[test]
fn ranks_under_quotas() {
    let tree = Tree::new(include_str!("../../../tests/host/cgroup.txt"));
    let trainers = Trainers::default();
    trainers.are(BTreeMap::from([(Rank(0), 100), (Rank(1), 200)]));
    let mut processes = Processes::new(tree.root(), trainers.clone());
    let first = Told::of(&mut processes, Pace::Slow);
    for rank in [0, 1] {
        assert_eq!(first.host(Some(rank), HostSignal::RunQueueNs), value(0.0));
        assert_eq!(first.host(Some(rank), HostSignal::MajorFaults), value(0.0));
        // Delay accounting is off in this tree, so the kernel's zeros mean nothing.
        assert_eq!(first.host(Some(rank), HostSignal::DiskWaitNs), Some(UNSUPPORTED));
    }
    // The node's values are those of the pod that both ranks share. It has no disk pressure file.
    assert_eq!(first.host(None, HostSignal::MemoryStallNs), value(500_000.0));
    assert_eq!(first.host(None, HostSignal::RunQueueNs), value(1_000_000.0));
    assert_eq!(first.host(None, HostSignal::DiskWaitNs), Some(UNSUPPORTED));
    assert_eq!(first.host(None, HostSignal::MajorFaults), value(20.0));

    let group = "sys/fs/cgroup/kubepods.slice/pod7.slice";
    tree.write(&format!(
        "proc/100/task/100/schedstat = 9000000000 1300000 51\n\
         proc/102/task/102/schedstat = 70000000 9000500 31\n\
         {group}/cri-a.scope/cpu.stat = usage_usec 9|throttled_usec 7100\n\
         {group}/cpu.stat = usage_usec 9|throttled_usec 60"
    ));
    let second = Told::of(&mut processes, Pace::Fast);
    // The sum of the rank's own thread and its worker's.
    assert_eq!(second.host(Some(0), HostSignal::RunQueueNs), value(300_500.0));
    // The nearest quota applies: its own quota for the first rank, and the pod's for the second rank and the node.
    assert_eq!(second.host(Some(0), HostSignal::CpuThrottledNs), value(100_000.0));
    assert_eq!(second.host(Some(1), HostSignal::CpuThrottledNs), value(20_000.0));
    assert_eq!(second.host(None, HostSignal::CpuThrottledNs), value(20_000.0));
    assert_eq!(
        second.host(Some(0), HostSignal::MajorFaults),
        None,
        "not asked for"
    );

    // A rank that does not wait is sent every fifth second; one that waits, at once.
    for round in 1..=5 {
        let calm = Told::of(&mut processes, Pace::Fast);
        let told = calm.hosts.contains_key(&Some(Rank(0)));
        assert_eq!(told, round == 5, "round {round}");
    }
    tree.write("proc/100/task/101/schedstat = 200000000 11000000 40");
    let waits = Told::of(&mut processes, Pace::Fast);
    assert_eq!(waits.host(Some(0), HostSignal::RunQueueNs), value(6_300_500.0));
    assert_eq!(waits.hosts.get(&Some(Rank(1))), None);

    // A worker that ends subtracts nothing. The waiting time of a new worker before it was found adds nothing.
    fs::remove_dir_all(tree.root().join("proc/102")).unwrap();
    tree.write(
        "proc/100/task/100/children = 103\n\
         proc/103/stat = 103 (w) S 1 2 3 4 5 6 7 8 999 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n\
         proc/103/task/103/schedstat = 5000000000 4000000000 9\n\
         proc/sys/kernel/task_delayacct = 1",
    );
    let third = Told::of(&mut processes, Pace::Slow);
    assert_eq!(third.host(Some(0), HostSignal::RunQueueNs), value(6_300_500.0));
    assert_eq!(third.host(Some(0), HostSignal::MajorFaults), value(0.0));
    assert_eq!(
        third.host(Some(0), HostSignal::DiskWaitNs),
        value(0.0),
        "now it counts"
    );

    // The process now belongs to another rank. A rank whose process is gone is not reported.
    trainers.are(BTreeMap::from([(Rank(1), 100)]));
    let fourth = Told::of(&mut processes, Pace::Fast);
    assert_eq!(fourth.host(Some(0), HostSignal::RunQueueNs), None);
    assert_eq!(fourth.host(Some(1), HostSignal::RunQueueNs), value(0.0));
}

#[test]
fn quotas_of_version_1() {
    let tree = Tree::new(
        "proc/7/cgroup = 4:memory:/slurm|2:cpu,cpuacct:/slurm/job_1/step_0|0::/\n\
         proc/7/task/7/schedstat = 5 5 5\n\
         sys/fs/cgroup/cpu/slurm/job_1/step_0/cpu.cfs_quota_us = -1\n\
         sys/fs/cgroup/cpu/slurm/job_1/step_0/cpu.stat = throttled_time 1\n\
         sys/fs/cgroup/cpu/slurm/job_1/cpu.cfs_quota_us = 400000\n\
         sys/fs/cgroup/cpu/slurm/job_1/cpu.stat = nr_throttled 3|throttled_time 5000",
    );
    let trainers = Trainers::default();
    trainers.are(BTreeMap::from([(Rank(3), 7)]));
    let mut processes = Processes::new(tree.root(), trainers);
    Told::of(&mut processes, Pace::Slow);
    tree.write("sys/fs/cgroup/cpu/slurm/job_1/cpu.stat = nr_throttled 4|throttled_time 5700");
    let told = Told::of(&mut processes, Pace::Fast);
    assert_eq!(told.host(Some(3), HostSignal::CpuThrottledNs), value(700.0));
}

#[test]
fn nothing_there_is_unsupported_and_never_zero() {
    let tree = Tree::new("");
    let trainers = Trainers::default();
    trainers.are(BTreeMap::from([(Rank(0), 100)]));
    let told = Told::of(&mut Processes::new(tree.root(), trainers), Pace::Slow);
    for rank in [Some(0), None] {
        let readings = &told.hosts[&rank.map(Rank)].readings;
        assert!(
            readings.len() >= 4 && readings.values().all(|read| *read == UNSUPPORTED),
            "{readings:?}"
        );
    }
    let told = Told::of(&mut Ports::new(tree.root()), Pace::Slow);
    assert_eq!(told.host(None, HostSignal::NetRateBps), Some(UNSUPPORTED));
    assert_eq!(told.host(None, HostSignal::NetRetransmits), Some(UNSUPPORTED));
}

#[test]
fn infiniband() {
    let tree = Tree::new(include_str!("../../../tests/host/infiniband.txt"));
    let mut ports = Ports::new(tree.root());
    let told = Told::of(&mut ports, Pace::Slow);
    // The network interface of an RDMA device is not reported as a separate port.
    assert_eq!(told.ports.keys().collect::<Vec<_>>(), ["mlx5_0/1", "mlx5_1/1"]);
    assert_eq!(told.ports["mlx5_0/1"].link, PortLink::Infiniband);
    assert_eq!(told.port("mlx5_0/1", PortSignal::Up), value(1.0));
    assert_eq!(told.port("mlx5_0/1", PortSignal::RateBps), value(4e11));
    assert_eq!(
        told.port("mlx5_0/1", PortSignal::LinkDowns),
        value(0.0),
        "of its life: nothing"
    );
    assert_eq!(told.port("mlx5_1/1", PortSignal::Up), value(0.0));
    assert_eq!(told.port("mlx5_1/1", PortSignal::Errors), Some(UNSUPPORTED));
    // A port that was never plugged in does not count as the slowest.
    assert_eq!(told.host(None, HostSignal::NetRateBps), value(4e11));

    let port = "sys/class/infiniband/mlx5_0/ports/1";
    tree.write(&format!(
        "{port}/counters/symbol_error = 9\n{port}/counters/port_xmit_discards = 4\n{port}/counters/link_downed = 3\n\
         {port}/hw_counters/local_ack_timeout_err = 6\n{port}/hw_counters/out_of_sequence = 99999\n\
         {port}/rate = 200 Gb/sec (2X NDR)\n\
         proc/net/snmp = Tcp: RtoAlgorithm RetransSegs|Tcp: 1 6240"
    ));
    let fast = Told::of(&mut ports, Pace::Fast);
    assert!(fast.ports.is_empty(), "no news of any port: {:?}", fast.ports);
    assert_eq!(
        fast.host(None, HostSignal::NetRetransmits),
        value(7.0),
        "two and TCP's five"
    );
    let slow = Told::of(&mut ports, Pace::Slow);
    assert_eq!(slow.port("mlx5_0/1", PortSignal::LinkDowns), value(1.0));
    assert_eq!(slow.port("mlx5_0/1", PortSignal::Errors), value(3.0));
    assert_eq!(slow.port("mlx5_0/1", PortSignal::Retransmits), value(2.0));
    assert_eq!(slow.host(None, HostSignal::NetErrors), value(3.0));
    assert_eq!(slow.host(None, HostSignal::NetRateBps), value(2e11));

    // The port is down. It is sent at once and then every second, and no traffic is possible. The port that was never
    // plugged in is not sent.
    tree.write(&format!("{port}/state = 1: DOWN"));
    for _ in 0..2 {
        let down = Told::of(&mut ports, Pace::Fast);
        assert_eq!(down.ports.keys().collect::<Vec<_>>(), ["mlx5_0/1"]);
        assert_eq!(down.port("mlx5_0/1", PortSignal::Up), value(0.0));
    }
    // The port's driver is reloaded: the device was gone for a while, and its counters start at zero.
    fs::remove_dir_all(tree.root().join("sys/class/infiniband")).unwrap();
    let gone = Told::of(&mut ports, Pace::Slow);
    assert_eq!(gone.port("mlx5_0/1", PortSignal::Up), value(0.0));
    tree.write(
        &include_str!("../../../tests/host/infiniband.txt").replace("symbol_error = 7", "symbol_error = 0"),
    );
    let back = Told::of(&mut ports, Pace::Slow);
    assert_eq!(back.port("mlx5_0/1", PortSignal::Up), value(1.0));
    assert_eq!(back.host(None, HostSignal::NetErrors), value(3.0), "nothing new");
}

#[test]
fn roce() {
    let tree = Tree::new(include_str!("../../../tests/host/roce.txt"));
    let mut ports = Ports::new(tree.root());
    let told = Told::of(&mut ports, Pace::Slow);
    assert_eq!(told.ports.keys().collect::<Vec<_>>(), ["eno1", "mlx5_2/1"]);
    assert_eq!(told.ports["mlx5_2/1"].link, PortLink::Roce);
    assert_eq!(told.ports["eno1"].link, PortLink::Ethernet);
    assert_eq!(told.port("eno1", PortSignal::RateBps), value(2.5e10));
    assert_eq!(told.port("eno1", PortSignal::Retransmits), None);
    assert_eq!(
        told.host(None, HostSignal::NetRateBps),
        value(2e11),
        "RDMA ports carry the job"
    );
    // The interface counts lost links itself. If it counts only changes, each loss appears as two changes.
    tree.write(
        "sys/class/net/ens1f0np0/carrier_changes = 6\nsys/class/net/ens1f0np0/carrier_down_count = 3\n\
         sys/class/net/eno1/carrier_changes = 3",
    );
    let told = Told::of(&mut ports, Pace::Slow);
    assert_eq!(told.port("mlx5_2/1", PortSignal::LinkDowns), value(1.0));
    assert_eq!(told.port("eno1", PortSignal::LinkDowns), value(1.0));
}

#[test]
fn efa() {
    let tree = Tree::new(include_str!("../../../tests/host/efa.txt"));
    let mut ports = Ports::new(tree.root());
    let told = Told::of(&mut ports, Pace::Slow);
    assert_eq!(told.ports["rdmap0s6/1"].link, PortLink::Efa);
    assert_eq!(told.port("rdmap0s6/1", PortSignal::RateBps), value(1e11));
    assert_eq!(told.port("rdmap0s6/1", PortSignal::LinkDowns), Some(UNSUPPORTED));
    assert_eq!(
        told.port("ens5", PortSignal::RateBps),
        Some(UNSUPPORTED),
        "-1 is no speed"
    );
    let hardware = "sys/class/infiniband/rdmap0s6/ports/1/hw_counters";
    tree.write(&format!(
        "{hardware}/rx_drops = 8\n{hardware}/retrans_pkts = 60\n{hardware}/retrans_timeout_events = 2\n\
         {hardware}/unresponsive_remote_events = 1"
    ));
    let told = Told::of(&mut ports, Pace::Slow);
    assert_eq!(told.port("rdmap0s6/1", PortSignal::Errors), value(8.0));
    assert_eq!(told.host(None, HostSignal::NetRetransmits), value(12.0));
}

#[test]
fn a_container_without_a_physical_port_has_what_there_is() {
    let tree = Tree::new(
        "sys/class/net/lo/operstate = unknown\nsys/class/net/eth0/operstate = up\nsys/class/net/eth0/speed = 10000",
    );
    let told = Told::of(&mut Ports::new(tree.root()), Pace::Slow);
    assert_eq!(told.ports.keys().collect::<Vec<_>>(), ["eth0"]);
}

/// Reads this process from this machine's kernel. Checks that the names are right, but not the values.
#[test]
fn this_machine() {
    let trainers = Trainers::default();
    trainers.are(BTreeMap::from([(Rank(5), std::process::id())]));
    let mut host = Host::new(Path::new("/"), trainers);
    let mut seen = Vec::new();
    let began = Instant::now();
    while seen.len() < 2 {
        assert!(began.elapsed() < Duration::from_secs(20), "{seen:?}");
        host.poll(monotonic_ns(), &mut |_, event| {
            if let Event::Host(reading) = event
                && reading.rank == Some(Rank(5))
            {
                seen.push(reading);
            }
            0
        });
        std::thread::sleep(Duration::from_millis(20));
    }
    let faults = seen[0].readings[&HostSignal::MajorFaults].value();
    assert!(faults.is_some(), "{seen:?}");
    let waited: Vec<Option<f64>> = seen
        .iter()
        .map(|reading| reading.readings[&HostSignal::RunQueueNs].value())
        .collect();
    if Path::new("/proc/self/schedstat").exists() {
        assert!(waited[0].is_some() && waited[1] >= waited[0], "{seen:?}");
    }
}
