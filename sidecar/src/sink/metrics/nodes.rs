//! The metrics of the sidecars themselves: their cost, losses, and sources.

use std::collections::BTreeMap;
use std::sync::Arc;

use paceline_health::Frame;
use paceline_health::event::{Access, Agent, Beat, GpuAccess, SourceState};
use paceline_health::id::NodeId;
use serde::{Deserialize, Serialize};

use super::MAX_RANK_SERIES;
use super::format::families::{Families, counters, gauges};

/// Maximum number of sources per node.
const MOST_SOURCES: usize = 64;
/// The source that reads NVIDIA's GPUs.
const NVML: &str = "nvml";

/// The state of each node.
pub(super) type Nodes = BTreeMap<NodeId, NodeTally>;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct NodeTally {
    agent: u64,
    /// CPU time of earlier incarnations.
    past_cpu_s: f64,
    past_plugin_s: f64,
    plugin_s: f64,
    cpu_s: f64,
    rss_bytes: u64,
    spool_dropped: u64,
    past_spool_dropped: u64,
    /// The number of ring records that were dropped because a ring was full, and the number of torn ones.
    #[serde(default)]
    ring: [u64; 2],
    #[serde(default)]
    past_ring: [u64; 2],
    /// The sources, in the order in which the sidecar listed them.
    #[serde(default)]
    sources: Vec<SourceTally>,
}

/// One source of a sidecar.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct SourceTally {
    name: Arc<str>,
    /// True while the source delivers data.
    is_up: bool,
    /// Time that the current incarnation spent on the source, seconds.
    s: f64,
    /// Time that earlier incarnations spent on the source, seconds.
    past_s: f64,
}

impl NodeTally {
    /// Returns the number of frames dropped because the spool was full.
    pub(super) fn spool_dropped(&self) -> u64 {
        self.past_spool_dropped + self.spool_dropped
    }

    fn ring(&self, at: usize) -> u64 {
        self.past_ring[at] + self.ring[at]
    }
}

/// Applies a sidecar's heartbeat.
pub(super) fn beat(nodes: &mut Nodes, frame: &Frame, beat: &Beat) {
    let node = nodes.entry(frame.node.clone()).or_default();
    if node.agent != frame.agent {
        node.agent = frame.agent;
        node.past_cpu_s += node.cpu_s;
        node.past_plugin_s += node.plugin_s;
        node.past_spool_dropped += node.spool_dropped;
        node.past_ring = [node.ring(0), node.ring(1)];
        for source in &mut node.sources {
            source.past_s += source.s;
            source.s = 0.0;
        }
    }
    node.cpu_s = beat.cpu_ns as f64 / 1e9;
    node.plugin_s = beat.plugin_ns as f64 / 1e9;
    node.rss_bytes = beat.rss_bytes;
    node.spool_dropped = beat.spool_dropped;
    node.ring = [beat.ring_dropped, beat.ring_torn];
    for (source, ns) in node.sources.iter_mut().zip(&beat.source_ns) {
        source.s = *ns as f64 / 1e9;
    }
}

/// Records that a sidecar with these sources has started.
pub(super) fn agent(nodes: &mut Nodes, node: &NodeId, agent: &Agent) {
    let node = nodes.entry(node.clone()).or_default();
    // A standalone sidecar reports that fact in the same list, so it is filtered out here.
    let sources = agent.sources.iter().filter(|source| !source.starts_with("alone"));
    let sources = sources.take(MOST_SOURCES).map(|name| {
        let known = node.sources.iter().find(|source| source.name == *name);
        SourceTally {
            name: Arc::clone(name),
            is_up: true,
            s: known.map_or(0.0, |known| known.s),
            past_s: known.map_or(0.0, |known| known.past_s),
        }
    });
    node.sources = sources.collect();
}

/// Applies the report of a source that it delivers no data, or that it delivers data again.
pub(super) fn source(nodes: &mut Nodes, node: &NodeId, state: &SourceState) {
    known(nodes, node, &state.source, state.trouble.is_empty());
}

/// Records whether any GPUs of the node are readable.
pub(super) fn gpus(nodes: &mut Nodes, node: &NodeId, news: &GpuAccess) {
    if news.gpu.is_none() {
        let is_up = matches!(news.state, Access::Readable | Access::NoEvents);
        known(nodes, node, NVML, is_up);
    }
}

fn known(nodes: &mut Nodes, node: &NodeId, source: &str, is_up: bool) {
    let sources = nodes.get_mut(node).into_iter().flat_map(|node| &mut node.sources);
    for known in sources.filter(|known| *known.name == *source) {
        known.is_up = is_up;
    }
}

/// Adds the families of each node. With more than a limited number of nodes, values without problems are omitted.
/// Problems are thus listed for every node, and the page keeps a readable size.
pub(super) fn families(out: &mut Families<'_>, nodes: &Nodes) {
    cost(out, nodes);
    let are_all_told = nodes.len() <= MAX_RANK_SERIES;
    let dropped = nodes.iter().flat_map(|(node, tally)| {
        let reasons = [
            ("spool_full", tally.spool_dropped()),
            ("ring_full", tally.ring(0)),
            ("ring_torn", tally.ring(1)),
        ];
        let told = reasons
            .into_iter()
            .filter(move |(_, count)| are_all_told || *count > 0);
        told.map(|(reason, count)| ([node.to_string(), reason.to_owned()], count as f64))
    });
    let most = if are_all_told { usize::MAX } else { MAX_RANK_SERIES };
    let help = "Records and frames that did not leave the node, by reason.";
    let labels = ["node", "reason"];
    counters(
        out,
        "paceline_sidecar_dropped_total",
        help,
        labels,
        dropped.take(most),
    );
    let sources = || {
        let each = nodes
            .iter()
            .flat_map(|(node, tally)| tally.sources.iter().map(move |source| (node, source)));
        each.map(|(node, source)| ([node.to_string(), source.name.to_string()], source))
    };
    let labels = ["node", "source"];
    let help = "Sources of a sidecar; 0: the sidecar reported that it cannot read the source.";
    let told = sources()
        .filter(|(_, source)| are_all_told || !source.is_up)
        .take(most);
    let up = told.map(|(labels, source)| (labels, f64::from(u8::from(source.is_up))));
    gauges(out, "paceline_source_up", help, labels, up);
    if are_all_told {
        let help = "Time that a sidecar spent reading each source.";
        let seconds = sources().map(|(labels, source)| (labels, source.past_s + source.s));
        counters(out, "paceline_source_seconds_total", help, labels, seconds);
    }
}

/// Adds the cost of each sidecar.
fn cost(out: &mut Families<'_>, nodes: &Nodes) {
    let nodes = || nodes.iter().take(MAX_RANK_SERIES);
    let cpu = nodes().map(|(node, tally)| ([node.to_string()], tally.past_cpu_s + tally.cpu_s));
    counters(
        out,
        "paceline_sidecar_cpu_seconds_total",
        "CPU time of the sidecar.",
        ["node"],
        cpu,
    );
    let plugin = nodes().map(|(node, tally)| ([node.to_string()], tally.past_plugin_s + tally.plugin_s));
    counters(
        out,
        "paceline_nccl_plugin_seconds_total",
        "Time that NCCL spent in Paceline's profiler plugin, in all trainers of the node.",
        ["node"],
        plugin,
    );
    let rss = nodes().map(|(node, tally)| ([node.to_string()], tally.rss_bytes as f64));
    gauges(
        out,
        "paceline_sidecar_resident_bytes",
        "Memory of the sidecar.",
        ["node"],
        rss,
    );
}

#[cfg(test)]
mod tests {
    use super::super::tests::{frame, is_in_the_contract, report};
    use super::super::{Metrics, Shown, Transport};
    use super::*;
    use paceline_health::event::Event;

    #[test]
    fn drops_outlive_a_sidecar_and_a_source_that_is_mute_is_down() {
        let mut metrics = Metrics::default();
        let began = Event::Agent(Agent {
            paceline: "0".into(),
            sources: ["probe", "nvml", "step-log", "alone: nobody answers"]
                .map(Arc::from)
                .into(),
            unix_ms: 1,
            rack: Arc::from(""),
            versions: BTreeMap::new(),
        });
        let mute = |source: &str, trouble: &str| {
            Event::Source(SourceState {
                source: source.into(),
                trouble: trouble.into(),
            })
        };
        let beat = |ring_dropped| {
            Event::Beat(Beat {
                ring_dropped,
                spool_dropped: 3,
                source_ns: vec![500_000_000, 2_000_000_000],
                ..Beat::default()
            })
        };
        for event in [
            began,
            mute("step-log", "it is not there"),
            // This source is not one of the sidecar's own.
            mute("other", ""),
            beat(5),
        ] {
            metrics.observe(&frame(event), 1.0);
        }
        let again = Frame {
            agent: 2,
            ..frame(beat(2))
        };
        metrics.observe(&again, 2.0);
        let page = metrics.page(&report(), &Transport::default(), Shown::default());
        for wanted in [
            "paceline_sidecar_dropped_total{node=\"n1\",reason=\"ring_full\"} 7\n",
            "paceline_sidecar_dropped_total{node=\"n1\",reason=\"spool_full\"} 6\n",
            "paceline_sidecar_dropped_total{node=\"n1\",reason=\"ring_torn\"} 0\n",
            "paceline_source_up{node=\"n1\",source=\"probe\"} 1\n",
            "paceline_source_up{node=\"n1\",source=\"step-log\"} 0\n",
            "paceline_source_seconds_total{node=\"n1\",source=\"nvml\"} 4\n",
            "paceline_source_seconds_total{node=\"n1\",source=\"probe\"} 1\n",
            "paceline_source_seconds_total{node=\"n1\",source=\"step-log\"} 0\n",
        ] {
            assert!(page.contains(wanted), "no {wanted} in\n{page}");
        }
        assert_eq!(page.matches("\npaceline_source_up{").count(), 3);
        is_in_the_contract(&page);
        metrics.observe(&frame(mute("step-log", "")), 3.0);
        let page = metrics.page(&report(), &Transport::default(), Shown::default());
        assert!(page.contains("source=\"step-log\"} 1\n"), "{page}");
    }

    #[test]
    fn of_many_nodes_what_is_well_is_not_told() {
        let mut metrics = Metrics::default();
        for n in 0..=MAX_RANK_SERIES {
            let of = |event| Frame {
                node: format!("n{n:04}").as_str().into(),
                ..frame(event)
            };
            let began = Event::Agent(Agent {
                paceline: "0".into(),
                sources: ["probe", "nvml"].map(Arc::from).into(),
                unix_ms: 1,
                rack: Arc::from(""),
                versions: BTreeMap::new(),
            });
            let is_last = n == MAX_RANK_SERIES;
            let beat = Event::Beat(Beat {
                ring_dropped: u64::from(is_last),
                ..Beat::default()
            });
            metrics.observe(&of(began), 1.0);
            metrics.observe(&of(beat), 1.0);
            if is_last {
                let mute = SourceState {
                    source: "probe".into(),
                    trouble: "it is not there".into(),
                };
                metrics.observe(&of(Event::Source(mute)), 1.0);
            }
        }
        let page = metrics.page(&report(), &Transport::default(), Shown::default());
        let lines = |family: &str| {
            page.lines()
                .filter(|line| line.starts_with(family))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            lines("paceline_sidecar_dropped_total{"),
            ["paceline_sidecar_dropped_total{node=\"n0512\",reason=\"ring_full\"} 1"]
        );
        assert_eq!(
            lines("paceline_source_up{"),
            ["paceline_source_up{node=\"n0512\",source=\"probe\"} 0"]
        );
        assert_eq!(lines("paceline_source_seconds_total{").len(), 0);
        assert_eq!(
            lines("paceline_sidecar_cpu_seconds_total{").len(),
            MAX_RANK_SERIES
        );
    }
}
