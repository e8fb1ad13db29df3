//! From a library's answers to verdicts: the GPU reader, and the detector on its events. Rules that take minutes are
//! played sixty times as fast: the detector's clock is a number.

use std::collections::BTreeMap;
use std::time::Duration;

use paceline_health::event::{Agent, Event, Job};
use paceline_health::frame::{Frame, Provenance, SCHEMA_VERSION};
use paceline_health::verdict::{State, Subject, Verdict};
use paceline_health::{Detector, Policy, Time};

use crate::stage::{Stage, gpu};

/// A fault of one GPU, and its expected verdict: finding, severity, and part of the action. The GPU's readings before
/// and after are its model's, unless `well` overrides them.
struct Case<'a> {
    fault: &'a str,
    finding: &'static str,
    severity: &'static str,
    words: &'static str,
    well: &'static str,
}

const fn case<'a>(
    fault: &'a str,
    finding: &'static str,
    severity: &'static str,
    words: &'static str,
) -> Case<'a> {
    Case {
        fault,
        finding,
        severity,
        words,
        well: "",
    }
}

/// The detector, fed with the events of a stage.
struct Judge {
    detector: Detector,
    fed: usize,
    seq: u64,
    speed: u32,
    latest: BTreeMap<u64, Verdict>,
}

impl Judge {
    fn new(speed: u32) -> Judge {
        let mut judge = Judge {
            detector: Detector::new(Policy::default()),
            fed: 0,
            seq: 0,
            speed,
            latest: BTreeMap::new(),
        };
        judge.take(
            Duration::ZERO,
            Event::Job(Job {
                job: "j".into(),
                paceline: "0".into(),
                listened_to: None,
            }),
        );
        judge.take(
            Duration::ZERO,
            Event::Agent(Agent {
                paceline: "0".into(),
                sources: vec!["nvml".into()],
                unix_ms: 0,
                rack: "".into(),
                versions: BTreeMap::new(),
            }),
        );
        judge
    }

    fn take(&mut self, at: Duration, event: Event) {
        self.seq += 1;
        let frame = Frame {
            v: SCHEMA_VERSION,
            node: "n".into(),
            agent: 1,
            seq: self.seq,
            provenance: Provenance::Live,
            event,
        };
        self.detector
            .observe(Time((at * self.speed).as_nanos() as u64), &frame);
        while let Some(verdict) = self.detector.poll() {
            self.latest.insert(verdict.id, verdict);
        }
    }

    /// Feeds the stage's new events.
    fn follow(&mut self, stage: &Stage) {
        for (at, event) in &stage.seen[self.fed..] {
            self.take(*at, event.clone());
        }
        self.fed = stage.seen.len();
    }

    /// Verdicts about a GPU.
    fn of(&self, index: usize) -> Vec<&Verdict> {
        let of = gpu(index as u32);
        let about =
            |verdict: &&Verdict| matches!(&verdict.subject, Subject::Gpu { gpu_uuid, .. } if *gpu_uuid == of);
        self.latest.values().filter(about).collect()
    }
}

/// Plays all faults at once, each on its own GPU, beside a healthy one, and then none, each for this many seconds.
fn check(profile: &str, speed: u32, seconds: [u64; 2], cases: &[Case<'_>]) {
    let scenario = |faults: bool| {
        let mut text = format!("profile = \"{profile}\"\ngpus = {}\n", cases.len() + 1);
        for (index, case) in cases.iter().enumerate() {
            let items = if faults { case.fault } else { case.well };
            text += &format!("[gpu.{index}]\n{items}\n");
        }
        text
    };
    let mut stage = Stage::new(&scenario(false));
    let mut judge = Judge::new(speed);
    stage.wait(Duration::from_secs(3));
    judge.follow(&stage);
    (0..=cases.len()).for_each(|index| assert!(judge.of(index).is_empty(), "{:#?}", judge.of(index)));
    stage.play(&scenario(true));
    stage.wait(Duration::from_secs(seconds[0]));
    judge.follow(&stage);
    for (index, case) in cases.iter().enumerate() {
        let verdicts = judge.of(index);
        let found = verdicts
            .iter()
            .find(|verdict| verdict.finding.name() == case.finding);
        let found = found.unwrap_or_else(|| panic!("{}: {verdicts:#?}", case.fault));
        assert_eq!(found.severity.name(), case.severity, "{}: {found:#?}", case.fault);
        assert!(found.action.contains(case.words), "{}: {found:#?}", case.fault);
        assert_eq!(
            verdicts.len(),
            1,
            "{}: one fault, one verdict: {verdicts:#?}",
            case.fault
        );
    }
    assert!(judge.of(cases.len()).is_empty(), "nothing is wrong with it");
    stage.play(&scenario(false));
    stage.wait(Duration::from_secs(seconds[1]));
    judge.follow(&stage);
    for (index, case) in cases.iter().enumerate() {
        for verdict in judge.of(index) {
            assert_eq!(verdict.state, State::Cleared, "{}: {verdict:#?}", case.fault);
        }
    }
}

#[test]
fn faults_that_show_at_once() {
    let cases = [
        case(
            "recovery_action = 1",
            "gpu-fault",
            "critical",
            "reset the GPU now",
        ),
        case(
            "ecc_uncorrected = 1",
            "ecc-uncorrectable",
            "critical",
            "drain the node and reset the GPU now",
        ),
        case(
            "sram_exceeded = 1",
            "ecc-uncorrectable",
            "critical",
            "hardware inspected at the next checkpoint",
        ),
        case(
            "remap_pending = 1",
            "row-remap",
            "warning",
            "running work stays correct: reset the GPU when the job has ended",
        ),
        case(
            "remap_failed = 1",
            "row-remap",
            "critical",
            "hardware inspected at the next checkpoint",
        ),
        case(
            "remapped_uncorrectable = 600",
            "row-remap",
            "critical",
            "hardware inspected when the job has ended",
        ),
        case(
            "remapped_uncorrectable = 3",
            "row-remap",
            "warning",
            "no action needed",
        ),
        case("remap_none = 1", "row-remap", "warning", "run out of spare rows"),
        case("pcie_width = 8", "pcie-degraded", "warning", "below its width"),
        case(
            "nvlink_up = 17",
            "nvlink-errors",
            "critical",
            "NVLinks are down: reset the GPU at the next checkpoint",
        ),
        case(
            "nvlink_recoveries = 2",
            "nvlink-errors",
            "warning",
            "run diagnostics",
        ),
        case("ecc_enabled = 0", "gpu-config", "warning", "ECC is off"),
        case(
            "throttle_brake_ns = { at = 0, per_s = 5e8 }",
            "gpu-throttled",
            "critical",
            "supply or the facility",
        ),
    ];
    check("h100", 1, [14, 13], &cases);
}

#[test]
fn gpus_that_cannot_be_read() {
    let cases = [
        case(
            "fail = \"gpu_is_lost\"",
            "gpu-lost",
            "critical",
            "reboot the node now",
        ),
        case("hang = true", "gpu-unreadable", "warning", "NVML does not answer"),
        case(
            "fail = \"unknown\"",
            "gpu-unreadable",
            "warning",
            "Every call to NVML fails (unknown (999))",
        ),
        case(
            "fail = \"no_permission\"",
            "gpu-unreadable",
            "warning",
            "access to /dev/nvidia*",
        ),
    ];
    check("h100", 1, [6, 13], &cases);
}

#[test]
fn faults_that_show_over_minutes() {
    let cases = [
        case(
            "throttle_thermal_sw_ns = { at = 0, per_s = 1.2e10 }",
            "gpu-throttled",
            "warning",
            "Heat slows it down",
        ),
        case(
            "throttle_thermal_hw_ns = { at = 0, per_s = 1e9 }",
            "gpu-throttled",
            "critical",
            "hardware inspected at the next checkpoint",
        ),
        case(
            "ecc_corrected = { at = 0, per_s = 1200 }",
            "ecc-corrected",
            "warning",
            "run diagnostics on this GPU when the job has ended",
        ),
        case(
            "ecc_corrected = { at = 0, per_s = 120000 }",
            "ecc-corrected",
            "critical",
            "run diagnostics on this GPU when the job has ended",
        ),
        case(
            "pcie_replays = { at = 0, per_s = 3 }",
            "pcie-degraded",
            "warning",
            "retransmits",
        ),
        case(
            "memory_used = 8e10",
            "gpu-memory-full",
            "info",
            "93 % of its memory is in use",
        ),
        case(
            "utilization = 0\nprocesses = [4711]",
            "gpu-idle",
            "warning",
            "held by a process",
        ),
    ];
    check("h100", 60, [16, 24], &cases);
}

#[test]
fn faults_of_one_generation() {
    let blackwell = [
        case(
            "nvlink_receive_errors = 5",
            "nvlink-errors",
            "warning",
            "uncorrected errors",
        ),
        case(
            "nvlink_recoveries_failed = 1",
            "nvlink-errors",
            "critical",
            "reset the GPU at the next checkpoint",
        ),
    ];
    check("b200", 1, [4, 13], &blackwell);
    let no_margin = "margin = \"not_supported\"\nthreshold_slowdown = \"not_supported\"\nthreshold_gpu_max = \"not_supported\"";
    let at = |degrees: u32| format!("{no_margin}\ntemperature = {degrees}");
    let (hot, warm) = (at(86), at(81));
    let before_ampere = [
        Case {
            well: no_margin,
            ..case(&hot, "gpu-throttled", "critical", "It is hot")
        },
        Case {
            well: no_margin,
            ..case(&warm, "gpu-throttled", "warning", "It is hot")
        },
        Case {
            well: "retired_single = 10\nretired_double = 0",
            ..case(
                "retired_single = 10\nretired_double = 60",
                "row-remap",
                "critical",
                "hardware inspected when the job has ended",
            )
        },
        Case {
            well: "retired_pending = 0",
            ..case(
                "retired_pending = 1",
                "row-remap",
                "warning",
                "reset the GPU when the job has ended",
            )
        },
    ];
    check("a100", 60, [8, 13], &before_ampere);
}
