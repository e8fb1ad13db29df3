//! What the GPUs read lately, and whether heat explains a slow rank.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::event::{GpuReading, GpuSignal};
use crate::frame::Provenance;
use crate::id::GpuId;
use crate::policy::ThermalThresholds;
use crate::stats;
use crate::time::Time;
use crate::verdict::Evidence;

/// Readings kept per GPU: half a minute at 1 Hz.
const WINDOW: usize = 32;
/// GPUs that are kept; more than that is not one job.
const MAX_GPUS: usize = 1 << 17;

#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Time,
    entry: u64,
    provenance: Provenance,
    clock: Option<f32>,
    temperature: Option<f32>,
    margin: Option<f32>,
    /// Time slowed by heat since driver load, software and hardware added, seconds.
    throttled: Option<f64>,
}

/// The latest readings of every GPU.
#[derive(Debug, Default)]
pub struct Gpus {
    samples: BTreeMap<GpuId, VecDeque<Sample>>,
    models: BTreeMap<GpuId, Arc<str>>,
}

/// A window of one GPU's readings, reduced.
#[derive(Clone, Copy, Debug)]
struct Window {
    entries: (u64, u64),
    provenance: Provenance,
    clock: Option<f64>,
    temperature: Option<f64>,
    margin: Option<f64>,
    throttled_ratio: Option<f64>,
}

/// Evidence that heat slows a GPU, and how far it can be trusted.
#[derive(Clone, Debug)]
pub struct Thermal {
    pub evidence: Vec<Evidence>,
    pub provenance: Provenance,
}

impl Gpus {
    /// Takes a reading; `entry` is its place in the journal.
    pub fn observe(&mut self, at: Time, entry: u64, provenance: Provenance, reading: &GpuReading) {
        let value = |signal| {
            reading
                .readings
                .get(&signal)
                .and_then(crate::event::Reading::value)
        };
        let software = value(GpuSignal::ThrottleThermalSwNs);
        let hardware = value(GpuSignal::ThrottleThermalHwNs);
        let throttled = match (software, hardware) {
            (None, None) => None,
            (software, hardware) => Some((software.unwrap_or(0.0) + hardware.unwrap_or(0.0)) / 1e9),
        };
        if !self.samples.contains_key(&reading.gpu) && self.samples.len() >= MAX_GPUS {
            return;
        }
        if !self.models.contains_key(&reading.gpu) {
            self.models.insert(reading.gpu.clone(), reading.model.clone());
        }
        let samples = self.samples.entry(reading.gpu.clone()).or_default();
        if samples.len() == WINDOW {
            samples.pop_front();
        }
        samples.push_back(Sample {
            at,
            entry,
            provenance,
            clock: value(GpuSignal::SmClockMhz).map(|clock| clock as f32),
            temperature: value(GpuSignal::TemperatureC).map(|degrees| degrees as f32),
            margin: value(GpuSignal::MarginC).map(|degrees| degrees as f32),
            throttled,
        });
    }

    /// The model of a GPU that was read.
    pub fn model(&self, gpu: &GpuId) -> Option<Arc<str>> {
        self.models.get(gpu).cloned()
    }

    /// Whether heat slows `gpu` since `since`: a thermal reason active long enough or no margin left, *and* the SM
    /// clock under that of its peers. A high temperature alone explains nothing.
    pub fn thermal<'a>(
        &self,
        gpu: &GpuId,
        peers: impl Iterator<Item = &'a GpuId>,
        since: Time,
        limits: &ThermalThresholds,
    ) -> Option<Thermal> {
        let own = self.window(gpu, since)?;
        let throttled = own
            .throttled_ratio
            .is_some_and(|ratio| ratio >= limits.throttled_ratio);
        if !throttled && own.margin.is_none_or(|margin| margin > 0.0) {
            return None;
        }
        let peers: Vec<Window> = peers
            .filter(|peer| *peer != gpu)
            .filter_map(|peer| self.window(peer, since))
            .collect();
        let of_peers = |pick: fn(&Window) -> Option<f64>| {
            stats::median(&mut peers.iter().filter_map(pick).collect::<Vec<f64>>())
        };
        let (clock, peers_clock) = (own.clock?, of_peers(|peer| peer.clock)?);
        if clock >= limits.clock_ratio * peers_clock {
            return None;
        }
        let evidence = [
            ("sm_clock_mhz", Some(clock), Some(peers_clock)),
            (
                "thermal_throttled_ratio",
                own.throttled_ratio,
                of_peers(|peer| peer.throttled_ratio),
            ),
            (
                "temperature_c",
                own.temperature,
                of_peers(|peer| peer.temperature),
            ),
            ("margin_c", own.margin, of_peers(|peer| peer.margin)),
        ];
        Some(Thermal {
            evidence: evidence
                .into_iter()
                .filter_map(|(what, value, peers)| {
                    Some(Evidence {
                        what: what.into(),
                        value: value?,
                        peers,
                        entries: Some(own.entries),
                    })
                })
                .collect(),
            provenance: peers
                .iter()
                .map(|peer| peer.provenance)
                .fold(own.provenance, Provenance::max),
        })
    }

    fn window(&self, gpu: &GpuId, since: Time) -> Option<Window> {
        let samples = self.samples.get(gpu)?;
        let last = samples.back()?;
        let inside = || samples.iter().filter(|sample| sample.at >= since);
        let first = inside().next().unwrap_or(last);
        // A rate needs two readings; the one before the window serves where the window holds one.
        let base = if first.entry == last.entry {
            samples.iter().nth_back(1).unwrap_or(first)
        } else {
            first
        };
        let span = last.at.since(base.at).as_secs_f64();
        let throttled_ratio = match (base.throttled, last.throttled) {
            // A counter that fell was reset with the driver: nothing is known of that span.
            (Some(before), Some(now)) if span > 0.0 && now >= before => {
                Some(((now - before) / span).min(1.0))
            }
            _ => None,
        };
        let middle = |pick: fn(&Sample) -> Option<f32>| {
            let mut values: Vec<f64> = inside().filter_map(pick).map(f64::from).collect();
            if values.is_empty() {
                values.extend(pick(last).map(f64::from));
            }
            stats::median(&mut values)
        };
        Some(Window {
            entries: (base.entry, last.entry),
            provenance: inside()
                .map(|sample| sample.provenance)
                .fold(last.provenance, Provenance::max),
            clock: middle(|sample| sample.clock),
            temperature: middle(|sample| sample.temperature),
            margin: last.margin.map(f64::from),
            throttled_ratio,
        })
    }
}
