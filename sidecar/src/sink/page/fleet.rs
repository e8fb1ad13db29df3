//! Nodes, their ranks and GPUs, and their ports. Most data is read from the metrics; only racks and ports are stored
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

/// Minimum interval between updates.
const EVERY_NS: u64 = 2_000_000_000;
/// Pause after an update, as a multiple of the time it took. A hundredth of the thread's time is thus spent on updates.
const REST: u64 = 99;
/// Maximum pause. It is the interval at which all readings are sent.
const RARELY_NS: u64 = 10_000_000_000;
/// Maximum number of stored ports.
const PORTS: usize = 1 << 15;
/// Maximum number of ports with problems to show.
const BAD_PORTS: usize = 64;
/// The value for a missing reading.
const UNKNOWN: u16 = u16::MAX;

/// The last readings of a port.
#[derive(Debug)]
struct Port {
    link: PortLink,
    readings: BTreeMap<PortSignal, f64>,
}

/// Earlier counter values of a GPU.
#[derive(Clone, Debug, Default)]
struct Counted {
    /// The time throttled by heat, power and brake, at the last update.
    throttled: [Option<f64>; 3],
    /// The uncorrected and corrected memory errors at the first update. They are subtracted later, because a GPU may
    /// have earlier errors.
    errors: [Option<f64>; 2],
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct Fleet {
    racks: BTreeMap<NodeId, Arc<str>>,
    ports: BTreeMap<(NodeId, Arc<str>), Port>,
    /// The GPUs, in the order of the page's data.
    order: Vec<GpuId>,
    counted: BTreeMap<GpuId, Counted>,
    lately: Lately,
    places: String,
    is_changed: bool,
    due_ns: u64,
}

/// Parts of the page's data.
pub(super) struct Made {
    pub places: String,
    pub gpus: String,
    pub ranks: String,
    pub ports: String,
}

/// Returns true if a frame is about racks, ports, or the location of ranks.
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

    /// Handles a step that was compared.
    pub fn step(&mut self, seen: &StepSnapshot) {
        self.lately.step(seen);
    }

    /// Makes the parts of the page's data again, if an update is due.
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
            // Put the GPUs of ranks first, in rank order, followed by the others.
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

    /// Returns the names. `ranks[r]` is `[node, gpu, up]`, where node and gpu are indices in their lists, or -1.
    fn places(&self, metrics: &Metrics) -> Value {
        let mut nodes: Vec<&NodeId> = metrics.ranks().filter_map(|rank| rank.node).collect();
        nodes.extend(metrics.gpus().values().map(|gpu| gpu.node()));
        // If all ranks are known, a node without ranks and GPUs is not part of the job, such as the aggregator's own
        // node. Before that, the ranks of such a node may not be known yet.
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
            // The index in the list is the rank. Ranks that were never seen get an empty entry.
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

    /// Returns [`FIELDS`] numbers of 16 bits for each GPU, in index order, low byte first, in base64.
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

    /// Returns the number of ports and of active ports, by kind, and the ports with problems.
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

/// Returns the index of a word in a list of unique words. Adds the word if it is missing.
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

/// The number of numbers per GPU.
pub(super) const FIELDS: usize = 10;

/// Returns a GPU's numbers: temperature and margin (degrees C, the margin increased by 1000), SM clock and its maximum
/// (MHz), power and its limit (W), utilization (thousandths), uncorrected and corrected memory errors since the first
/// update, and problems, as bits.
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
        // Compare the lanes, not the generation: an idle link switches to a lower generation by itself, but never to
        // fewer lanes.
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
