//! Tests GPU faults with the whole detector: the catalog, a rack that reboots, bursts, and garbage in the kernel log.

use paceline_health::event::{
    Attach, Event, FaultSource, GpuFault, GpuFaultKind, GpuReading, GpuSignal, KernelAccess, KernelWatch,
    Reading,
};
use paceline_health::fault::{FaultTables, KernelLog, Remedy};
use paceline_health::frame::SCHEMA_VERSION;
use paceline_health::id::{NodeId, Rank};
use paceline_health::verdict::{Finding, State, Verdict};
use paceline_health::{Detector, Frame, Policy, Provenance, Time};

/// A detector and its clock.
struct Bench {
    detector: Detector,
    at: Time,
    seq: u64,
}

impl Bench {
    fn new() -> Bench {
        Bench {
            detector: Detector::new(Policy::default()),
            at: Time::ZERO,
            seq: 0,
        }
    }

    fn see(&mut self, node: &str, event: Event) -> Vec<Verdict> {
        self.seq += 1;
        let frame = Frame {
            v: SCHEMA_VERSION,
            node: NodeId::from(node),
            agent: 1,
            seq: self.seq,
            provenance: Provenance::Live,
            event,
        };
        self.detector.observe(self.at, &frame);
        std::iter::from_fn(|| self.detector.poll()).collect()
    }

    fn wait(&mut self, seconds: u64) {
        self.at = Time(self.at.0 + seconds * 1_000_000_000);
    }
}

fn xid(gpu: u32, number: u32, count: u32, text: &str) -> Event {
    Event::GpuFault(GpuFault {
        gpu: None,
        pci: format!("0000:{gpu:02x}:00.0").into(),
        kind: GpuFaultKind::Xid,
        xid: number,
        count,
        seen_by: FaultSource::Kernel,
        text: text.into(),
    })
}

fn attach(rank: u32, world_size: u32) -> Event {
    Event::Attach(Attach {
        rank: Rank(rank),
        local_rank: rank,
        world_size,
        restart: 0,
        pid: 1,
        gpu: Some(format!("GPU-{rank}").as_str().into()),
        role: "".into(),
        framework: "test".into(),
    })
}

fn reading(gpu: u32, values: &[(GpuSignal, f64)]) -> Event {
    Event::Gpu(GpuReading {
        gpu: format!("GPU-{gpu}").as_str().into(),
        pci: format!("0000:{:02x}:00.0", gpu % 8).into(),
        model: "test".into(),
        readings: values
            .iter()
            .map(|(signal, value)| (*signal, Reading::Value(*value)))
            .collect(),
    })
}

fn acts(verdict: &Verdict) -> bool {
    verdict.order.is_some_and(|order| order.remedy.acts_on_node())
}

/// Checks the detector's actions against NVIDIA's immediate actions. 18 codes require a reset, a reboot or an
/// inspection. 70 codes require nothing or a restart of the application. Each code is tested in a new detector, and
/// again a day later.
#[test]
fn the_catalogue_through_the_detector() {
    let tables = FaultTables::default();
    let (mut found, mut needed, mut quiet, mut wrong) = (0, 0, 0, Vec::new());
    for row in tables.xids() {
        let mut bench = Bench::new();
        bench.see("n", attach(0, 1));
        let mut told = bench.see("n", xid(1, row.xid, 1, ""));
        bench.wait(61);
        told.extend(bench.see("n", xid(2, 61, 1, "")));
        bench.wait(86_400);
        told.extend(bench.see("n", xid(1, row.xid, 1, "")));
        let acts = told.iter().any(acts);
        match row.immediate_action.as_str() {
            "RESET_GPU" | "RESTART_BM" | "RESTART_VM" | "CHECK_MECHANICALS" | "WORKFLOW_XID_48" => {
                needed += 1;
                found += u32::from(acts);
            }
            "IGNORE" | "RESTART_APP" | "WORKFLOW_XID_45" => {
                quiet += 1;
                if acts {
                    wrong.push(row.xid);
                }
            }
            _ => assert!(!acts, "{}", row.xid),
        }
        let mentioned = |verdict: &Verdict| {
            let name = format!("xid_{}", row.xid);
            verdict.evidence.iter().any(|piece| *piece.what == *name)
        };
        assert!(told.iter().any(mentioned), "nothing tells of {}", row.xid);
    }
    assert_eq!((found, needed, quiet, wrong), (18, 18, 70, vec![]));
}

/// Eighteen nodes reboot. Their boot id changes, all links are down for one poll, and counters restart.
#[test]
fn a_rack_that_reboots_quarantines_nothing() {
    let mut bench = Bench::new();
    let kernel = |boot: &str| {
        Event::Kernel(KernelWatch {
            path: "/dev/kmsg".into(),
            boot: boot.into(),
            state: KernelAccess::Readable,
            lost: 0,
            text: "".into(),
        })
    };
    let (up, down) = ([(GpuSignal::NvlinkUp, 18.0)], [(GpuSignal::NvlinkUp, 0.0)]);
    let counted = |links: &[(GpuSignal, f64)], errors: f64| {
        let mut values = links.to_vec();
        values.extend([
            (GpuSignal::NvlinkCount, 18.0),
            (GpuSignal::EccUncorrected, errors),
            (GpuSignal::NvlinkReplays, 10.0 * errors),
            (GpuSignal::EnergyJ, 1e9 * errors),
        ]);
        values
    };
    let mut told = Vec::new();
    let rack = || (0..18_u32).flat_map(|node| (0..4).map(move |gpu| (format!("n{node}"), 4 * node + gpu)));
    for (node, gpu) in rack() {
        bench.see(&node, kernel(&format!("first-{node}")));
        bench.see(&node, attach(gpu, 72));
    }
    for second in 0..130 {
        bench.wait(1);
        for (node, gpu) in rack() {
            if second == 100 {
                told.extend(bench.see(&node, kernel(&format!("second-{node}"))));
            }
            let links = if second == 100 { &down } else { &up };
            // Before the reboot, the counters contain lifetime totals. After it, they are zero.
            let errors = if second < 100 { 3.0 } else { 0.0 };
            told.extend(bench.see(&node, reading(gpu, &counted(links, errors))));
        }
    }
    assert!(
        !told.iter().any(acts),
        "{:#?}",
        told.iter().find(|verdict| acts(verdict))
    );
    assert_eq!(told, []);
}

/// Two thousand identical faults a second for a minute result in one finding with a count, and in only a few reports.
#[test]
fn a_storm_is_one_finding_with_a_count() {
    let mut bench = Bench::new();
    bench.see("n", attach(0, 1));
    let mut told = Vec::new();
    for _ in 0..60 {
        bench.wait(1);
        for _ in 0..2000 {
            told.extend(bench.see("n", xid(1, 109, 1, "CTX SWITCH TIMEOUT")));
        }
    }
    let of_gpu: Vec<_> = told
        .iter()
        .filter(|verdict| verdict.finding == Finding::GpuFault)
        .collect();
    assert!(
        of_gpu
            .iter()
            .all(|verdict| verdict.id == of_gpu[0].id && verdict.state == State::Raised)
    );
    assert!(of_gpu.len() <= 8, "{} tellings", of_gpu.len());
    let last = of_gpu.last().unwrap();
    assert!(last.evidence[0].value > 1e5 - 1.0, "{:?}", last.evidence);
    assert_eq!(last.order.unwrap().remedy, Remedy::ResetGpu);
}

/// The detector accepts any kernel log. Every line of the corpus is tested, truncated and damaged at every position.
#[test]
fn damaged_lines_harm_nobody() {
    let corpus = include_str!("corpus/kernel.log");
    let mut bench = Bench::new();
    bench.see("n", attach(0, 1));
    let mut events = 0_u64;
    let mut log = KernelLog::default();
    let mut play = |bench: &mut Bench, line: &str| {
        let mut said = Vec::new();
        log.read(line, |line| said.extend(line.fault(None, 1, FaultSource::Kernel)));
        events += said.len() as u64;
        for fault in said {
            bench.see("n", Event::GpuFault(fault));
        }
    };
    for line in corpus.lines() {
        play(&mut bench, line);
        for place in 0..line.len() {
            let Some((before, after)) = line.split_at_checked(place) else {
                continue;
            };
            play(&mut bench, before);
            play(&mut bench, after);
            let skipped = after.chars().next().map_or(0, char::len_utf8);
            let rest = &after[skipped..];
            for other in ["0", "9", "f", ":", ",", "(", ")", " ", "\\x0a", "\u{fffd}", "é"] {
                play(&mut bench, &format!("{before}{other}{rest}"));
            }
        }
    }
    assert!(events > 1000, "{events}");
    assert!(bench.detector.report().verdicts.len() < 2000);
}
