//! A simulated job, encoded by the aggregator's own code.

use paceline_health::event::{Attach, Event, GpuReading, GpuSignal, Phases, Reading, Signal, Step, StepKind};
use paceline_health::frame::Provenance;
use paceline_health::id::{GpuId, NodeId, Rank};
use paceline_health::report::step_snapshot::{LEVEL, StepSnapshot, cell};
use paceline_health::report::{Ending, Report};
use paceline_health::verdict::{Cause, Evidence, Finding, Severity, State, Subject, Verdict};
use paceline_health::{Detector, Frame, Policy};
use paceline_sidecar::sink::metrics::Metrics;
use paceline_sidecar::sink::page::Live;

use super::super::app::App;
use super::super::client::response::News;

/// A job whose nodes have eight ranks each.
pub(super) struct World {
    pub(super) job: String,
    pub(super) node: fn(u32) -> String,
    pub(super) ranks: u32,
    pub(super) verdicts: Vec<Verdict>,
    pub(super) end: Option<Ending>,
}

pub(super) fn world(ranks: u32) -> World {
    World {
        job: "llama-70b".to_owned(),
        node: |node| format!("node{node}"),
        ranks,
        verdicts: Vec::new(),
        end: None,
    }
}

pub(super) fn verdict(id: u64, subject: Subject, finding: Finding, cause: Cause) -> Verdict {
    let evidence = |what: &str, value, peers| Evidence {
        what: what.into(),
        value,
        peers: Some(peers),
        entries: None,
    };
    Verdict {
        id,
        finding,
        subject,
        severity: Severity::Critical,
        state: State::Raised,
        since_s: 8.8,
        since_step: Some(111),
        raised_s: 9.3,
        raised_step: Some(117),
        cleared_s: None,
        signals: Vec::new(),
        provenance: Provenance::Sim,
        slowdown_ratio: Some(1.26),
        cause,
        evidence: vec![
            evidence("sm_clock_mhz", 1657.0, 1978.0),
            evidence("temperature_c", 87.0, 60.0),
            evidence("margin_c", 0.0, 27.0),
        ],
        impact_ratio: Some(0.21),
        lost_gpu_hours: 0.0031,
        lost_cost: None,
        action: Policy::default()
            .action(finding, cause)
            .to_string()
            .as_str()
            .into(),
        observe_only: false,
        order: None,
        says: None,
        unresolved_at_exit: false,
    }
}

impl World {
    pub(super) fn with_slow(mut self, rank: u32) -> World {
        let subject = Subject::Rank {
            rank: Rank(rank),
            node: (self.node)(rank / 8).as_str().into(),
            gpu_uuid: Some(gpu(rank)),
        };
        self.verdicts
            .push(verdict(1, subject, Finding::Straggler, Cause::Thermal));
        self
    }

    fn frames(&self) -> impl Iterator<Item = Frame> {
        (0..self.ranks).flat_map(|rank| {
            let node: NodeId = (self.node)(rank / 8).as_str().into();
            let is_slow = self.slow() == Some(rank);
            let frame = move |event| Frame {
                v: 1,
                node: node.clone(),
                agent: 1,
                seq: 1,
                provenance: Provenance::Sim,
                event,
            };
            let events = [self.attach(rank), step(rank, is_slow), reading(rank, is_slow)];
            events.map(frame)
        })
    }

    fn slow(&self) -> Option<u32> {
        self.verdicts.iter().find_map(|verdict| match verdict.subject {
            Subject::Rank { rank, .. } => Some(rank.0),
            _ => None,
        })
    }

    fn attach(&self, rank: u32) -> Event {
        Event::Attach(Attach {
            rank: Rank(rank),
            local_rank: rank % 8,
            world_size: self.ranks,
            restart: 0,
            pid: 7,
            gpu: Some(gpu(rank)),
            role: "".into(),
            framework: "demo".into(),
        })
    }

    fn report(&self) -> Report {
        let mut report = Detector::new(Policy::default()).report();
        report.job = self.job.as_str().into();
        report.world_size = self.ranks;
        report.steps = 1_234;
        report.median_step_s = Some(0.0525);
        report.duration_s = 64.8;
        report.coverage.ranks_seen = self.ranks;
        report.coverage.ranks_expected = self.ranks;
        report.cost.goodput_ratio = Some(0.81);
        report.verdicts.clone_from(&self.verdicts);
        report.end.clone_from(&self.end);
        report
    }

    fn seen(&self, number: u64) -> StepSnapshot {
        let cells = (0..self.ranks).map(|rank| match self.slow() {
            Some(slow) if slow == rank => cell(f64::ln(1.26)),
            _ => LEVEL,
        });
        StepSnapshot {
            step: number,
            restart: 0,
            kind: StepKind::Train,
            signal: Signal::S2,
            at_s: 64.0,
            p50_s: 0.0524,
            p99_s: 0.0531,
            max_s: 0.0533,
            phases_s: Some([0.001, 0.038, 0.011, 0.002, 0.0]),
            cells: cells.collect(),
        }
    }

    /// Returns the view of this job.
    pub(super) fn app(&self) -> App {
        let (live, mut metrics) = (Live::default(), Metrics::default());
        for frame in self.frames() {
            metrics.observe(&frame, 0.0);
            live.frame(&frame);
        }
        (1_230..=1_236).for_each(|step| live.step(&self.seen(step), 0.0));
        live.report(&self.report(), &Policy::default(), "/home/ada/paceline-llama");
        live.tick(&metrics, 1);
        let mut app = App {
            address: "http://127.0.0.1:9810".to_owned(),
            ..App::default()
        };
        app.job.take(News::read(&live.since(0).1).unwrap());
        app.put_in_order();
        app
    }
}

pub(super) fn gpu(rank: u32) -> GpuId {
    format!("GPU-25bf{rank:04x}-0000-4000-8000-000000000000")
        .as_str()
        .into()
}

fn step(rank: u32, is_slow: bool) -> Event {
    let wait_ns = if is_slow { 500_000 } else { 10_500_000 };
    Event::Step(Step {
        rank: Rank(rank),
        restart: 0,
        step: 1_236 - u64::from(rank % 3 == 2),
        kind: StepKind::Train,
        dur_ns: 52_500_000,
        phases: Some(Phases {
            data_ns: 1_000_000,
            compute_ns: 49_000_000 - wait_ns,
            wait_ns,
            optimizer_ns: 2_500_000,
            checkpoint_ns: 0,
            gc_ns: 0,
        }),
        micro_batches: 1,
        tokens: 0,
        signal: Signal::S2,
        sum_sq: 0,
        expert_tokens: 0,
    })
}

fn reading(rank: u32, is_slow: bool) -> Event {
    let value = |hot, cool| Reading::Value(if is_slow { hot } else { cool });
    let readings = [
        (GpuSignal::TemperatureC, value(87.0, 60.0)),
        (GpuSignal::MarginC, value(0.0, 27.0)),
        (GpuSignal::SmClockMhz, value(1657.0, 1980.0)),
        (GpuSignal::SmClockMaxMhz, Reading::Value(1980.0)),
        (GpuSignal::PowerW, value(540.0, 655.0)),
        (GpuSignal::PowerLimitW, Reading::Value(700.0)),
        (GpuSignal::UtilizationRatio, Reading::Value(0.97)),
        (GpuSignal::EccUncorrected, Reading::Value(0.0)),
        (GpuSignal::EccCorrected, Reading::Value(0.0)),
    ];
    Event::Gpu(GpuReading {
        gpu: gpu(rank),
        pci: format!("00000000:{:02X}:00.0", 0x18 + rank % 8).as_str().into(),
        model: "NVIDIA H100 80GB HBM3".into(),
        readings: readings.into(),
    })
}
