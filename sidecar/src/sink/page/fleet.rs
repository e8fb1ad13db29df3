//! Nodes, the ranks and GPUs on them, and their ports. What the metrics know is read there; only racks and ports are kept
//! here.

use std::collections::BTreeMap;
use std::sync::Arc;

use paceline_health::Frame;
use paceline_health::codec::base64;
use paceline_health::event::{Event, GpuSignal, PortLink, PortSignal};
use paceline_health::id::{GpuId, NodeId, Rank};
use paceline_health::report::step_snapshot::StepSnapshot;
use paceline_health::text::sanitize::name;
use serde_json::{Value, json};

use super::ranks::{Lately, ranks};
use crate::sink::metrics::Metrics;
use crate::sink::metrics::gpu::gpus::Gpu;

/// It is made this often at most.
const EVERY_NS: u64 = 2_000_000_000;
/// And rests for so many times as long as it took: a hundredth of the thread's time goes into it,
const REST: u64 = 99;
/// but not for longer than this, which is how often all readings are told.
const RARELY_NS: u64 = 10_000_000_000;
/// Ports that are kept.
const PORTS: usize = 1 << 15;
/// Ports with trouble that are shown.
const BAD_PORTS: usize = 64;
/// A reading that there is not.
const UNKNOWN: u16 = u16::MAX;

/// What was last read of a port.
#[derive(Debug)]
struct Port {
    link: PortLink,
    readings: BTreeMap<PortSignal, f64>,
}

/// What a GPU had counted before.
#[derive(Clone, Debug, Default)]
struct Counted {
    /// Time slowed by heat, power and brake, when it was last looked at.
    throttled: [Option<f64>; 3],
    /// Uncorrected and corrected memory errors, when it was first looked at: a GPU may bring some along.
    errors: [Option<f64>; 2],
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Fleet {
    racks: BTreeMap<NodeId, Arc<str>>,
    ports: BTreeMap<(NodeId, Arc<str>), Port>,
    /// GPUs in the order in which they are told.
    order: Vec<GpuId>,
    counted: BTreeMap<GpuId, Counted>,
    lately: Lately,
    places: String,
    is_changed: bool,
    due_ns: u64,
}

/// Pieces of the page's data.
pub(super) struct Made {
    pub places: String,
    pub gpus: String,
    pub ranks: String,
    pub ports: String,
}

/// Whether a frame tells of racks or ports, or of who is where.
pub(super) fn concerns(frame: &Frame) -> bool {
    use Event::{Agent, Attach, Detach, GpuAccess, Port};
    matches!(
        frame.event,
        Agent(_) | Attach(_) | Detach(_) | GpuAccess(_) | Port(_)
    )
}

impl Fleet {
    pub fn frame(&mut self, frame: &Frame) {
        match &frame.event {
            Event::Agent(agent) => {
                self.racks.insert(frame.node.clone(), Arc::clone(&agent.rack));
                self.is_changed = true;
            }
            Event::Port(reading) => {
                let key = (frame.node.clone(), Arc::clone(&reading.port));
                if self.ports.len() >= PORTS && !self.ports.contains_key(&key) {
                    return;
                }
                let port = self.ports.entry(key).or_insert_with(|| Port {
                    link: reading.link,
                    readings: BTreeMap::new(),
                });
                for (signal, reading) in &reading.readings {
                    match reading.value() {
                        Some(value) => port.readings.insert(*signal, value),
                        None => port.readings.remove(signal),
                    };
                }
            }
            Event::Attach(_) | Event::Detach(_) | Event::GpuAccess(_) => self.is_changed = true,
            _ => {}
        }
    }

    /// A step was compared.
    pub fn step(&mut self, seen: &StepSnapshot) {
        self.lately.step(seen);
    }

    /// Makes the pieces anew, if it is time.
    pub fn make(&mut self, metrics: &Metrics, now_ns: u64, clock_ns: impl Fn() -> u64) -> Option<Made> {
        if now_ns < self.due_ns {
            return None;
        }
        let began_ns = clock_ns();
        let gpus = metrics.gpus();
        if self.is_changed || gpus.len() != self.order.len() || self.places.is_empty() {
            self.is_changed = false;
            self.order = gpus.keys().cloned().collect();
            let ranks: BTreeMap<&GpuId, Rank> = metrics
                .ranks()
                .filter_map(|seat| Some((seat.gpu?, seat.rank)))
                .collect();
            // Those of ranks as ranks go; the others after them.
            self.order.sort_by_cached_key(|id| {
                let rank = ranks.get(id).copied().unwrap_or(Rank(u32::MAX));
                let place = gpus
                    .get(id)
                    .map(|gpu| (gpu.node().clone(), Arc::clone(gpu.pci())));
                (rank, place)
            });
            self.places = self.places(metrics).to_string();
        }
        let made = Made {
            places: self.places.clone(),
            gpus: self.readings(metrics),
            ranks: ranks(metrics, &self.lately),
            ports: self.ports().to_string(),
        };
        let took_ns = clock_ns().saturating_sub(began_ns);
        self.due_ns = now_ns + took_ns.saturating_mul(REST + 1).clamp(EVERY_NS, RARELY_NS);
        Some(made)
    }

    /// Names: `ranks[r]` is `[node, gpu, up]`, where node and gpu are places in their lists, or -1.
    fn places(&self, metrics: &Metrics) -> Value {
        let mut nodes: Vec<&NodeId> = metrics.ranks().filter_map(|rank| rank.node).collect();
        nodes.extend(metrics.gpus().values().map(|gpu| gpu.node()));
        // Where all ranks are known, a node that has none and no GPU is not of the job: the aggregator's own, say. Before that
        // it may be one whose ranks do not come.
        if !metrics.is_whole() {
            nodes.extend(self.racks.keys());
        }
        nodes.sort_unstable();
        nodes.dedup();
        let place = |node: &NodeId| nodes.binary_search(&node).map_or(-1, |place| place as i64);
        let gpu_place: BTreeMap<&GpuId, i64> = self.order.iter().zip(0..).collect();
        let mut models: Vec<&str> = Vec::new();
        let mut buses: Vec<&str> = Vec::new();
        let mut gpus = Vec::with_capacity(self.order.len());
        for id in &self.order {
            let Some(gpu) = metrics.gpus().get(id) else {
                continue;
            };
            let (model, bus) = (word(&mut models, gpu.model()), word(&mut buses, gpu.pci()));
            gpus.push(json!([name(id.as_str()), place(gpu.node()), bus, model]));
        }
        let mut ranks: Vec<Value> = Vec::new();
        for rank in metrics.ranks() {
            // Ranks are told by their place; one that was never heard of has none.
            while ranks.len() < rank.rank.0 as usize {
                ranks.push(json!([-1, -1, false]));
            }
            let gpu = rank.gpu.and_then(|gpu| gpu_place.get(gpu)).copied().unwrap_or(-1);
            ranks.push(json!([rank.node.map_or(-1, place), gpu, rank.is_up]));
        }
        let nodes = nodes.iter().map(|node| {
            let rack = self.racks.get(*node).map_or("", |rack| rack);
            json!([name(node.as_str()), name(rack)])
        });
        json!({
            "nodes": nodes.collect::<Vec<_>>(),
            "ranks": ranks,
            "gpus": gpus,
            "models": models.into_iter().map(name).collect::<Vec<_>>(),
            "buses": buses.into_iter().map(name).collect::<Vec<_>>(),
        })
    }

    /// Of each GPU, in the order of its place, [`FIELDS`] numbers of 16 bits, the low byte first, in base64.
    fn readings(&mut self, metrics: &Metrics) -> String {
        let mut bytes = Vec::with_capacity(self.order.len() * FIELDS * 2);
        for id in &self.order {
            let fields = match metrics.gpus().get(id) {
                Some(gpu) => fields(gpu, self.counted.entry(id.clone()).or_default()),
                None => [UNKNOWN; FIELDS],
            };
            bytes.extend(fields.iter().flat_map(|field| field.to_le_bytes()));
        }
        json!(base64::encode(&bytes)).to_string()
    }

    /// How many ports there are and are up, by kind, and those with trouble.
    fn ports(&self) -> Value {
        let mut kinds: BTreeMap<&str, [u64; 2]> = BTreeMap::new();
        let mut bad = Vec::new();
        for ((node, port), at) in &self.ports {
            let read = |signal| at.readings.get(&signal).copied();
            let counted = kinds.entry(kind(at.link)).or_default();
            let is_down = read(PortSignal::Up) == Some(0.0);
            counted[0] += 1;
            counted[1] += u64::from(!is_down);
            let errors = [PortSignal::LinkDowns, PortSignal::Errors, PortSignal::Retransmits].map(read);
            let sum: f64 = errors.iter().flatten().sum();
            if is_down || sum > 0.0 {
                bad.push((
                    is_down,
                    sum,
                    json!([
                        name(node.as_str()),
                        name(port),
                        kind(at.link),
                        !is_down,
                        read(PortSignal::RateBps),
                        errors[0],
                        errors[1],
                        errors[2],
                    ]),
                ));
            }
        }
        bad.sort_by(|a, b| b.0.cmp(&a.0).then(b.1.total_cmp(&a.1)));
        let count = bad.len();
        let bad: Vec<Value> = bad.into_iter().take(BAD_PORTS).map(|(_, _, row)| row).collect();
        json!({ "kinds": kinds, "troubled": count, "worst": bad })
    }
}

/// The place of a word in a list that holds each once.
fn word<'a>(words: &mut Vec<&'a str>, new: &'a str) -> usize {
    words.iter().position(|word| *word == new).unwrap_or_else(|| {
        words.push(new);
        words.len() - 1
    })
}

fn kind(link: PortLink) -> &'static str {
    match link {
        PortLink::Infiniband => "InfiniBand",
        PortLink::Roce => "RoCE",
        PortLink::Efa => "EFA",
        PortLink::Ethernet => "Ethernet",
    }
}

/// Numbers that are told of a GPU.
pub(super) const FIELDS: usize = 10;

/// Temperature and margin (degrees C, the margin by 1000 more), SM clock and its highest (MHz), power and its limit (W),
/// utilization (thousandths), uncorrected and corrected memory errors since the first look, and what is the matter, in bits.
fn fields(gpu: &Gpu, counted: &mut Counted) -> [u16; FIELDS] {
    use GpuSignal as S;
    let read = |signal| gpu.value(signal);
    let told = |value: Option<f64>| value.map_or(UNKNOWN, |value| value.round().clamp(0.0, 65_534.0) as u16);
    let sum = |signals: [GpuSignal; 2]| {
        let values = signals.map(read);
        values
            .iter()
            .any(Option::is_some)
            .then(|| values.iter().flatten().sum::<f64>())
    };
    let now = [
        sum([S::ThrottleThermalSwNs, S::ThrottleThermalHwNs]),
        read(S::ThrottlePowerNs),
        read(S::ThrottleBrakeNs),
    ];
    let before = std::mem::replace(&mut counted.throttled, now);
    let grew =
        |index: usize| matches!((now[index], before[index]), (Some(now), Some(before)) if now > before);
    let mut errors = [S::EccUncorrected, S::EccCorrected].map(read);
    for (now, first) in errors.iter_mut().zip(&mut counted.errors) {
        if let Some(now) = now {
            *now -= *first.get_or_insert(*now);
        }
    }
    let is = |signal| read(signal).is_some_and(|value| value > 0.0);
    let under = |now, most| matches!((read(now), read(most)), (Some(now), Some(most)) if now < most);
    let matters = [
        grew(0),
        grew(1),
        grew(2),
        is(S::RemapPending) || is(S::RetiredPagesPending),
        is(S::RemapFailed),
        !gpu.is_readable(),
        // An idle link goes down to a lower generation by itself; lanes do not get lost.
        under(S::PcieWidth, S::PcieWidthMax),
        under(S::NvlinkUp, S::NvlinkCount),
    ];
    let bits = matters
        .iter()
        .zip(0..)
        .map(|(is, bit)| u16::from(*is) << bit)
        .sum();
    [
        told(read(S::TemperatureC)),
        told(read(S::MarginC).map(|margin| margin + 1000.0)),
        told(read(S::SmClockMhz)),
        told(read(S::SmClockMaxMhz)),
        told(read(S::PowerW)),
        told(read(S::PowerLimitW)),
        told(read(S::UtilizationRatio).map(|ratio| ratio * 1000.0)),
        told(errors[0]),
        told(errors[1]),
        bits,
    ]
}
