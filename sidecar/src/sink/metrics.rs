//! The metrics page. Counts are kept as plain numbers and become a page only when somebody asks: a scrape costs
//! microseconds, a frame nothing but an addition.

use std::borrow::Cow;
use std::collections::BTreeMap;

use paceline_health::Frame;
use paceline_health::event::{Attach, Event, Step};
use paceline_health::id::{NodeId, Rank};
use paceline_health::report::Report;
use paceline_health::verdict::State;
use prometheus::{Registry, TextEncoder};
use serde::{Deserialize, Serialize};

use durations::Durations;
use families::{counters, gauges};

mod dcgm;
mod durations;
pub mod ends;
mod fabric;
mod families;
mod gpu_table;
pub(in crate::sink) mod gpus;
mod preflight;
mod ranks;
mod seats;
mod shown;
mod times;

pub use shown::{MetricsOptions, Shown};

/// Jobs of more ranks than this have no series per rank or GPU, unless they are asked for: ranks × series would fit no page.
const MAX_RANK_SERIES: usize = 512;

/// What was lost on the way, beside what the report knows.
#[derive(Clone, Debug, Default)]
pub struct Transport {
    /// Frames that came more than once (and were taken once).
    pub duplicates: u64,
    /// Frames whose event could not be read.
    pub unreadable: u64,
    /// Connections that were not let in or were cut, by reason.
    pub turned: Vec<(&'static str, u64)>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct RankTally {
    node: Option<NodeId>,
    attach: Option<Attach>,
    wait_s: f64,
    last_step_unix_s: f64,
    up: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct NodeTally {
    agent: u64,
    /// CPU time of the incarnations before this one.
    past_cpu_s: f64,
    past_plugin_s: f64,
    plugin_s: f64,
    cpu_s: f64,
    rss_bytes: u64,
    spool_dropped: u64,
    past_spool_dropped: u64,
}

/// What the page is made of.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Metrics {
    steps: Durations,
    phases_s: BTreeMap<Cow<'static, str>, f64>,
    ranks: BTreeMap<Rank, RankTally>,
    nodes: BTreeMap<NodeId, NodeTally>,
    gpus: gpus::Gpus,
    ports: fabric::Ports,
    benches: preflight::Benches,
}

impl Metrics {
    /// Counts one frame.
    pub fn observe(&mut self, frame: &Frame, unix_s: f64) {
        match &frame.event {
            Event::Attach(attach) => {
                let rank = self.ranks.entry(attach.rank).or_default();
                (rank.node, rank.attach, rank.up) = (Some(frame.node.clone()), Some(attach.clone()), true);
            }
            Event::Step(step) => self.step(step, unix_s),
            Event::Detach(detach) => self.ranks.entry(detach.rank).or_default().up = false,
            Event::Gpu(reading) => gpus::observe(&mut self.gpus, frame, reading),
            Event::GpuFault(fault) => gpus::fault(&mut self.gpus, fault),
            Event::Port(reading) => fabric::observe(&mut self.ports, &frame.node, reading),
            Event::Bench(bench) => preflight::observe(&mut self.benches, bench),
            Event::GpuAccess(news) => gpus::access(&mut self.gpus, frame, news),
            Event::Beat(beat) => {
                for pulse in &beat.ranks {
                    self.ranks.entry(pulse.rank).or_default().up = pulse.alive;
                }
                let node = self.nodes.entry(frame.node.clone()).or_default();
                if node.agent != frame.agent {
                    node.agent = frame.agent;
                    node.past_cpu_s += node.cpu_s;
                    node.past_plugin_s += node.plugin_s;
                    node.past_spool_dropped += node.spool_dropped;
                }
                node.cpu_s = beat.cpu_ns as f64 / 1e9;
                node.plugin_s = beat.plugin_ns as f64 / 1e9;
                node.rss_bytes = beat.rss_bytes;
                node.spool_dropped = beat.spool_dropped;
            }
            _ => {}
        }
    }

    fn step(&mut self, step: &Step, unix_s: f64) {
        self.steps.observe(step.dur_ns as f64 / 1e9);
        let rank = self.ranks.entry(step.rank).or_default();
        rank.last_step_unix_s = unix_s;
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

    /// The page in Prometheus' text format.
    pub fn page(&self, report: &Report, transport: &Transport, shown: Shown) -> String {
        // A family that cannot be registered is one that is missing on the page; a test holds the whole page.
        let registry = Registry::new();
        self.job_families(&registry, report);
        self.loss_families(&registry, report, transport);
        self.node_families(&registry);
        if let Some(section) = &report.preflight {
            preflight::summary(&registry, section);
            let series = self.benches.values().map(|bench| bench.of_gpus.len().max(1));
            if series.sum::<usize>() <= MAX_RANK_SERIES {
                preflight::families(&registry, section, &self.benches);
            }
        }
        let has_all = shown.has_ranks(self.ranks.len());
        ranks::families(&registry, &self.ranks, report, has_all);
        if has_all {
            times::ranks(&registry, report);
        }
        if shown.has_gpus(self.ranks.len()) {
            gpus::families(&registry, &self.gpus);
            fabric::families(&registry, &self.ports);
            if shown.as_dcgm {
                dcgm::families(&registry, &self.gpus);
            }
        }
        let mut families = registry.gather();
        families.push(self.steps.family(
            "paceline_step_duration_seconds",
            "Duration of optimizer steps, every rank.",
        ));
        families.extend(times::summary(report));
        families.sort_by(|a, b| a.name().cmp(b.name()));
        TextEncoder::new().encode_to_string(&families).unwrap_or_default()
    }

    fn job_families(&self, registry: &Registry, report: &Report) {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let build = [([version], 1.0)];
        gauges(
            registry,
            "paceline_build_info",
            "Version of paceline.",
            ["version"],
            build,
        );
        let labels = [report.job.to_string(), report.world_size.to_string()];
        gauges(
            registry,
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
            registry,
            "paceline_job_end_info",
            "Why the job ended, once it has.",
            ["reason"],
            end,
        );
        let steps = [([], report.steps as f64)];
        counters(
            registry,
            "paceline_steps_total",
            "Steps that every live rank finished.",
            [],
            steps,
        );
        let help = "GPU time that the job took so far (rank time without GPUs).";
        let gpu_s = report.cost.gpu_hours * 3600.0;
        counters(registry, "paceline_gpu_seconds_total", help, [], [([], gpu_s)]);
        let help =
            "Share of that time that made progress at the speed the job would have with nothing wrong.";
        let goodput = report.cost.goodput_ratio.map(|ratio| ([], ratio));
        gauges(registry, "paceline_goodput_ratio", help, [], goodput);
        let phases = self
            .phases_s
            .iter()
            .map(|(phase, seconds)| ([phase.to_string()], *seconds));
        let help = "Time of all ranks by phase of the step.";
        counters(
            registry,
            "paceline_step_phase_seconds_total",
            help,
            ["phase"],
            phases,
        );

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
        gauges(
            registry,
            "paceline_finding_active",
            "Findings that hold now.",
            labels,
            active,
        );
        counters(
            registry,
            "paceline_findings_total",
            "Findings raised so far.",
            ["finding"],
            raised,
        );
        remedies(registry, report);
        let help = "GPU time that the whole job lost to findings.";
        counters(registry, "paceline_lost_gpu_seconds_total", help, ["cause"], lost);
    }

    fn loss_families(&self, registry: &Registry, report: &Report, transport: &Transport) {
        let coverage = &report.coverage;
        let spools = self
            .nodes
            .values()
            .map(|node| node.past_spool_dropped + node.spool_dropped)
            .sum();
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
        let help = "Records and frames that did not arrive, by where they were dropped.";
        counters(
            registry,
            "paceline_transport_dropped_total",
            help,
            ["reason"],
            reasons,
        );
        refused(registry, &transport.turned);
    }

    fn node_families(&self, registry: &Registry) {
        let nodes = || self.nodes.iter().take(MAX_RANK_SERIES);
        let cpu = nodes().map(|(node, tally)| ([node.to_string()], tally.past_cpu_s + tally.cpu_s));
        counters(
            registry,
            "paceline_sidecar_cpu_seconds_total",
            "CPU time of the sidecar.",
            ["node"],
            cpu,
        );
        let plugin = nodes().map(|(node, tally)| ([node.to_string()], tally.past_plugin_s + tally.plugin_s));
        counters(
            registry,
            "paceline_nccl_plugin_seconds_total",
            "Time that NCCL spent in our profiler plugin, in all trainers of the node.",
            ["node"],
            plugin,
        );
        let rss = nodes().map(|(node, tally)| ([node.to_string()], tally.rss_bytes as f64));
        gauges(
            registry,
            "paceline_sidecar_resident_bytes",
            "Memory of the sidecar.",
            ["node"],
            rss,
        );
    }
}

fn remedies(registry: &Registry, report: &Report) {
    let counts = report.remedies.counts.iter();
    let counts = counts.map(|one| {
        let labels = [one.response.name().to_owned(), one.outcome.to_string()];
        (labels, one.count as f64)
    });
    let help = "Remedies that were decided on, by what was done (act) or why nothing was.";
    counters(
        registry,
        "paceline_remedies_total",
        help,
        ["response", "outcome"],
        counts,
    );
}

fn refused(registry: &Registry, turned: &[(&'static str, u64)]) {
    let turned = turned.iter();
    let turned = turned.map(|(reason, count)| ([(*reason).to_owned()], *count as f64));
    let help = "Connections that were turned away from the aggregator or cut, by reason.";
    counters(
        registry,
        "paceline_connections_refused_total",
        help,
        ["reason"],
        turned,
    );
}

/// The page of a relay, which knows its peers and nothing of what they say.
pub fn relay_page(turned: &[(&'static str, u64)], nodes: usize) -> String {
    let registry = Registry::new();
    refused(&registry, turned);
    let help = "Links of nodes and relays that this relay carries now.";
    gauges(&registry, "paceline_relay_links", help, [], [([], nodes as f64)]);
    let page = TextEncoder::new().encode_to_string(&registry.gather());
    page.unwrap_or_default()
}

#[cfg(test)]
#[path = "metrics/readings_tests.rs"]
mod readings_tests;
#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
