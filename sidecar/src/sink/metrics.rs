//! Counters, and the metric families made from them. Counts are plain numbers and become families only on request, so
//! that a frame costs only an addition. Each request gets a copy (`facts`) and makes families and text in another
//! thread, so that frames do not wait. The data of 16,384 ranks and their GPUs is shared with the copy until it
//! changes.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use paceline_health::Frame;
use paceline_health::event::{Event, Step};
use paceline_health::id::Rank;
use paceline_health::report::{OVERHEADS, Report};
use paceline_health::verdict::State;
use serde::{Deserialize, Serialize};

use durations::Durations;
#[cfg(test)]
pub(in crate::sink) use facts::samples;
pub use facts::{Facts, JobFacts, RelayFacts};
pub use format::families::Families;
use format::families::{counters, gauges};
pub use format::text::Format;
pub use kept::Kept;
use seats::{LastStep, RankTally};

mod durations;
pub mod ends;
mod fabric;
mod facts;
mod findings;
pub(in crate::sink) mod format;
pub(in crate::sink) mod gpu;
mod kept;
mod nodes;
mod preflight;
mod ranks;
pub(in crate::sink) mod seats;
mod shown;
mod times;

pub use shown::{Compat, Detail, MetricsOptions, Shown};

/// Maximum number of ranks for which there are series per rank or GPU by default. With more ranks, the series would not
/// fit on a page.
const MAX_RANK_SERIES: usize = 512;

/// Transport losses that are not in the report.
#[derive(Clone, Debug, Default)]
pub struct Transport {
    /// Frames received more than once (and counted once).
    pub duplicates: u64,
    /// Frames whose event could not be decoded.
    pub unreadable: u64,
    /// Counters that are kept outside of the fold.
    pub ways: Ways,
}

/// Counters of rejected connections and of pushes.
#[derive(Clone, Debug, Default)]
pub struct Ways {
    /// The number of connections that were rejected or cut, by reason.
    pub turned: Vec<(&'static str, u64)>,
    /// The number of pushes to OpenTelemetry, by outcome.
    pub pushes: Vec<(&'static str, u64)>,
}

/// The state of each rank.
type Ranks = BTreeMap<Rank, Arc<RankTally>>;

/// The data of the page. A clone costs one pointer per rank, GPU and node.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Metrics {
    steps: Durations,
    phases_s: BTreeMap<Cow<'static, str>, f64>,
    ranks: Ranks,
    nodes: nodes::Nodes,
    gpus: gpu::gpus::Gpus,
    ports: fabric::Ports,
    benches: Arc<preflight::Benches>,
}

impl Metrics {
    /// Counts one frame.
    pub fn observe(&mut self, frame: &Frame, unix_s: f64) {
        match &frame.event {
            Event::Attach(attach) => {
                let rank = self.rank(attach.rank);
                (rank.node, rank.attach, rank.up) = (Some(frame.node.clone()), Some(attach.clone()), true);
            }
            Event::Agent(agent) => nodes::agent(&mut self.nodes, &frame.node, agent),
            Event::Step(step) => self.step(step, unix_s),
            Event::Detach(detach) => self.rank(detach.rank).up = false,
            Event::Gpu(reading) => gpu::gpus::observe(&mut self.gpus, frame, reading),
            Event::GpuFault(fault) => gpu::gpus::fault(&mut self.gpus, fault),
            Event::Port(reading) => fabric::observe(&mut self.ports, &frame.node, reading),
            Event::Bench(bench) => preflight::observe(Arc::make_mut(&mut self.benches), bench),
            Event::GpuAccess(news) => {
                nodes::gpus(&mut self.nodes, &frame.node, news);
                gpu::gpus::access(&mut self.gpus, frame, news);
            }
            Event::Beat(beat) => {
                for pulse in &beat.ranks {
                    self.rank(pulse.rank).up = pulse.alive;
                }
                nodes::beat(&mut self.nodes, frame, beat);
            }
            Event::Source(state) => nodes::source(&mut self.nodes, &frame.node, state),
            _ => {}
        }
    }

    fn rank(&mut self, rank: Rank) -> &mut RankTally {
        Arc::make_mut(self.ranks.entry(rank).or_default())
    }

    fn step(&mut self, step: &Step, unix_s: f64) {
        self.steps.observe(step.dur_ns as f64 / 1e9);
        let rank = self.rank(step.rank);
        rank.last_step_unix_s = unix_s;
        rank.last = Some(LastStep {
            step: step.step,
            dur_ns: step.dur_ns,
            phases: step.phases,
        });
        let Some(phases) = &step.phases else { return };
        rank.wait_s += phases.wait_ns as f64 / 1e9;
        let parts = [
            ("data", phases.data_ns),
            ("compute", phases.compute_ns),
            ("wait", phases.wait_ns),
            ("optimizer", phases.optimizer_ns),
            ("checkpoint", phases.checkpoint_ns),
        ];
        for (phase, ns) in parts {
            *self.phases_s.entry(Cow::Borrowed(phase)).or_default() += ns as f64 / 1e9;
        }
    }

    /// Adds all families, one after another.
    fn families(&self, report: &Report, transport: &Transport, shown: Shown, out: &mut Families<'_>) {
        self.job_families(out, report);
        self.step_families(out, report);
        self.loss_families(out, report, transport);
        nodes::families(out, &self.nodes);
        let has_all = shown.has_ranks(self.ranks.len());
        ranks::families(out, &self.ranks, report, has_all);
        if has_all {
            times::ranks(out, report);
        }
        if shown.has_gpus(self.ranks.len()) {
            gpu::gpus::families(out, &self.gpus);
            fabric::families(out, &self.ports);
            if shown.as_dcgm {
                gpu::dcgm::families(out, &self.gpus);
            }
        }
        if let Some(section) = &report.preflight {
            preflight::summary(out, section);
            let series = self.benches.values().map(|bench| bench.of_gpus.len().max(1));
            if series.sum::<usize>() <= MAX_RANK_SERIES {
                preflight::families(out, section, &self.benches);
            }
        }
    }

    fn job_families(&self, out: &mut Families<'_>, report: &Report) {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let build = [([version], 1.0)];
        gauges(
            out,
            "paceline_build_info",
            "Version of Paceline.",
            ["version"],
            build,
        );
        let labels = [report.job.to_string(), report.world_size.to_string()];
        gauges(
            out,
            "paceline_job_info",
            "The job.",
            ["job_id", "world_size"],
            [(labels, 1.0)],
        );
        let end = report
            .end
            .as_ref()
            .map(|end| ([end.reason.name().to_owned()], 1.0));
        gauges(
            out,
            "paceline_job_end_info",
            "End reason of the job; absent while it runs.",
            ["reason"],
            end,
        );
        let steps = [([], report.steps as f64)];
        counters(
            out,
            "paceline_steps_total",
            "Steps that all live ranks have finished.",
            [],
            steps,
        );
        // A launcher that counts restarts passes the count to each rank. The highest count is the right one.
        let told = self.ranks.values().filter_map(|rank| rank.attach.as_ref());
        let restarts = told.map(|attach| ([], f64::from(attach.restart)));
        let restarts = restarts.reduce(|most, one| if one.1 > most.1 { one } else { most });
        let help = "Restarts of the training by the launcher.";
        counters(out, "paceline_restarts_total", help, [], restarts);
        let help = "GPU time of the job so far; rank time without GPUs.";
        let gpu_s = report.cost.gpu_hours * 3600.0;
        counters(out, "paceline_gpu_seconds_total", help, [], [([], gpu_s)]);
        let help =
            "Share of that time that made progress at the speed the job would have with nothing wrong.";
        let goodput = report.cost.goodput_ratio.map(|ratio| ([], ratio));
        gauges(out, "paceline_goodput_ratio", help, [], goodput);
        let mut active: BTreeMap<[String; 3], f64> = BTreeMap::new();
        let mut raised: BTreeMap<[String; 1], f64> = BTreeMap::new();
        let mut lost: BTreeMap<[String; 1], f64> = BTreeMap::new();
        for verdict in &report.verdicts {
            let names = [
                verdict.finding.name(),
                verdict.cause.name(),
                verdict.severity.name(),
            ];
            *active.entry(names.map(str::to_owned)).or_default() +=
                f64::from(u8::from(verdict.state == State::Raised));
            *raised.entry([verdict.finding.name().to_owned()]).or_default() += 1.0;
            *lost.entry([verdict.cause.name().to_owned()]).or_default() += verdict.lost_gpu_hours * 3600.0;
        }
        let labels = ["finding", "cause", "severity"];
        gauges(out, "paceline_finding_active", "Active findings.", labels, active);
        findings::subjects(out, report);
        counters(
            out,
            "paceline_findings_total",
            "Findings raised so far.",
            ["finding"],
            raised,
        );
        remedies(out, report);
        let help = "GPU time that the whole job lost to findings.";
        counters(out, "paceline_lost_gpu_seconds_total", help, ["cause"], lost);
        let by_cause = &report.cost.by_cause;
        let told = |kind: &&str| Some(([(*kind).to_owned()], by_cause.get(*kind)? * 3600.0));
        let help = "GPU time that the whole job lost without a finding: checkpoints, warm-up, restarts, stalls, \
            periodic pauses.";
        let overhead = OVERHEADS.iter().filter_map(told);
        counters(
            out,
            "paceline_overhead_gpu_seconds_total",
            help,
            ["kind"],
            overhead,
        );
    }

    fn step_families(&self, out: &mut Families<'_>, report: &Report) {
        let help = "Duration of optimizer steps, every rank.";
        out.add(&self.steps.family("paceline_step_duration_seconds", help));
        if let Some(times) = times::summary(report) {
            out.add(&times);
        }
        let phases = self
            .phases_s
            .iter()
            .map(|(phase, seconds)| ([phase.to_string()], *seconds));
        let help = "Time of all ranks by phase of the step.";
        counters(out, "paceline_step_phase_seconds_total", help, ["phase"], phases);
    }

    fn loss_families(&self, out: &mut Families<'_>, report: &Report, transport: &Transport) {
        let coverage = &report.coverage;
        let spools = self.nodes.values().map(nodes::NodeTally::spool_dropped).sum();
        let reasons: [(&str, u64); 7] = [
            ("frames_lost", coverage.frames_lost),
            ("ring_full", coverage.ring_dropped),
            ("ring_torn", coverage.ring_torn),
            ("spool_full", spools),
            ("journal", coverage.journal_lost),
            ("duplicate", transport.duplicates),
            ("unreadable", transport.unreadable),
        ];
        let reasons = reasons.map(|(reason, count)| ([reason.to_owned()], count as f64));
        let help = "Records and frames that did not arrive, by place of the drop.";
        counters(out, "paceline_transport_dropped_total", help, ["reason"], reasons);
        refused(out, &transport.ways.turned);
        let pushes = transport.ways.pushes.iter();
        let pushes = pushes.map(|(outcome, count)| ([(*outcome).to_owned()], *count as f64));
        let help = "Pushes of metrics to OpenTelemetry, by outcome.";
        counters(out, "paceline_otlp_pushes_total", help, ["outcome"], pushes);
    }
}

fn remedies(out: &mut Families<'_>, report: &Report) {
    let counts = report.remedies.counts.iter();
    let counts = counts.map(|one| {
        let labels = [one.response.name().to_owned(), one.outcome.to_string()];
        (labels, one.count as f64)
    });
    let help = "Remedies decided, by outcome: done (act), or the reason why not.";
    counters(
        out,
        "paceline_remedies_total",
        help,
        ["response", "outcome"],
        counts,
    );
}

fn refused(out: &mut Families<'_>, turned: &[(&'static str, u64)]) {
    let turned = turned.iter();
    let turned = turned.map(|(reason, count)| ([(*reason).to_owned()], *count as f64));
    let help = "Connections that the aggregator rejected or closed, by reason.";
    counters(
        out,
        "paceline_connections_refused_total",
        help,
        ["reason"],
        turned,
    );
}

#[cfg(test)]
#[path = "metrics/readings_tests.rs"]
mod readings_tests;
#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
