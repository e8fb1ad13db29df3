//! Recent readings of GPUs.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::facts::{Fact, Facts};
use super::series::{Series, Stamp};
use crate::detect::members::cursor_map::CursorMap;
use crate::event::{GpuReading, GpuSignal};
use crate::id::GpuId;
use crate::policy::CauseThresholds;
use crate::stats;
use crate::time::Time;

/// Maximum number of GPUs kept. No job has more.
const MAX_GPUS: usize = 1 << 17;

/// How the readings of a window are reduced to one number.
#[derive(Clone, Copy)]
enum Reduce {
    /// The median of a quantity.
    Median,
    /// The last reading.
    Latest,
    /// The most frequent value of a setting, which takes only a few values.
    Setting,
    /// A value that takes only a few levels and drops while the GPU idles. It is reduced to the level on which most
    /// readings of the busy GPU agree, once there are enough of them.
    Link,
}

/// Signals stored as read.
const GAUGES: [(GpuSignal, Fact, Reduce); 13] = [
    (GpuSignal::SmClockMhz, Fact::SmClock, Reduce::Median),
    (GpuSignal::SmClockSetMhz, Fact::SmClockSet, Reduce::Setting),
    (GpuSignal::TemperatureC, Fact::Temperature, Reduce::Median),
    (GpuSignal::MarginC, Fact::Margin, Reduce::Latest),
    (GpuSignal::PowerW, Fact::Power, Reduce::Median),
    (GpuSignal::PowerLimitW, Fact::PowerLimit, Reduce::Setting),
    (GpuSignal::UtilizationRatio, Fact::Busy, Reduce::Median),
    (GpuSignal::PcieGen, Fact::PcieGen, Reduce::Link),
    (GpuSignal::PcieGenMax, Fact::PcieGenMax, Reduce::Setting),
    (GpuSignal::PcieWidth, Fact::PcieLanes, Reduce::Link),
    (GpuSignal::PcieWidthMax, Fact::PcieLanesMax, Reduce::Setting),
    (GpuSignal::RemapPending, Fact::RemapPending, Reduce::Latest),
    (GpuSignal::RemapFailed, Fact::RemapFailed, Reduce::Latest),
];

/// Signals stored as increases, in this order, in the columns after the gauges.
const COUNTERS: [GpuSignal; 13] = [
    GpuSignal::ThrottleThermalSwNs,
    GpuSignal::ThrottleThermalHwNs,
    GpuSignal::ThrottlePowerNs,
    GpuSignal::ThrottleBrakeNs,
    GpuSignal::EccUncorrected,
    GpuSignal::EccCorrected,
    GpuSignal::PcieReplays,
    GpuSignal::NvlinkCrcErrors,
    GpuSignal::NvlinkReplays,
    GpuSignal::NvlinkErrors,
    GpuSignal::NvlinkSymbolErrors,
    GpuSignal::NvlinkRecoveries,
    GpuSignal::NvlinkRecoveriesFailed,
];

const COLUMNS: usize = GAUGES.len() + COUNTERS.len();
type Readings = Series<{ GAUGES.len() }, COLUMNS>;

/// The latest readings of every GPU.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Gpus {
    gpus: CursorMap<GpuId, Gpu>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Gpu {
    model: Arc<str>,
    readings: Readings,
}

impl Gpus {
    /// Takes a reading. Returns true if it is the first reading of this GPU.
    pub fn observe(&mut self, stamp: Stamp, reading: &GpuReading) -> bool {
        let mut read = [None; COLUMNS];
        for (signal, value) in &reading.readings {
            if let Some(column) = column(*signal) {
                read[column] = value.value().filter(|value| value.is_finite());
            }
        }
        if let Some(gpu) = self.gpus.get_mut(&reading.gpu) {
            gpu.readings.push(stamp, &read);
            return false;
        }
        if self.gpus.len() >= MAX_GPUS {
            return false;
        }
        let mut gpu = Gpu {
            model: reading.model.clone(),
            readings: Readings::default(),
        };
        gpu.readings.push(stamp, &read);
        self.gpus.insert(reading.gpu.clone(), gpu);
        true
    }

    /// Returns the number of GPUs that were read.
    pub fn len(&self) -> usize {
        self.gpus.len()
    }

    /// Returns the model of a GPU, if the GPU was read.
    pub fn model(&self, gpu: &GpuId) -> Option<Arc<str>> {
        Some(self.gpus.get(gpu)?.model.clone())
    }

    /// Adds the facts about a GPU since `since`.
    pub fn fill_facts(&self, gpu: &GpuId, since: Time, limits: &CauseThresholds, facts: &mut Facts) {
        let Some(Gpu { readings, .. }) = self.gpus.get(gpu) else {
            return;
        };
        if let Some((entries, provenance)) = readings.origin(since) {
            facts.rest_on(entries, provenance);
            facts.gpu_readings = Some(readings.readings(since));
        }
        for (index, (_, fact, reduce)) in GAUGES.iter().enumerate() {
            let value = match reduce {
                Reduce::Median => readings.gauge(index, since),
                Reduce::Latest => readings.latest(index),
                Reduce::Setting => readings.setting(index, since),
                Reduce::Link => link(readings, index, since, limits),
            };
            facts.set(*fact, value);
        }
        let rate = |signal| readings.rate(column(signal)?, since);
        let rise = |signal| readings.rise(column(signal)?, since);
        let share = |ns: Option<f64>| Some((ns? / 1e9).min(1.0));
        facts.set(
            Fact::Thermal,
            share(sum([
                rate(GpuSignal::ThrottleThermalSwNs),
                rate(GpuSignal::ThrottleThermalHwNs),
            ])),
        );
        facts.set(Fact::PowerCap, share(rate(GpuSignal::ThrottlePowerNs)));
        facts.set(Fact::PowerBrake, share(rate(GpuSignal::ThrottleBrakeNs)));
        facts.set(Fact::EccUncorrected, rise(GpuSignal::EccUncorrected));
        facts.set(Fact::EccCorrectedRate, rate(GpuSignal::EccCorrected));
        facts.set(Fact::PcieReplays, rise(GpuSignal::PcieReplays));
        facts.set(
            Fact::NvlinkErrors,
            sum([
                rise(GpuSignal::NvlinkCrcErrors),
                rise(GpuSignal::NvlinkReplays),
                rise(GpuSignal::NvlinkErrors),
                rise(GpuSignal::NvlinkSymbolErrors),
            ]),
        );
        facts.set(
            Fact::NvlinkRecoveries,
            sum([
                rise(GpuSignal::NvlinkRecoveries),
                rise(GpuSignal::NvlinkRecoveriesFailed),
            ]),
        );
    }
}

/// Returns the value on which the readings of a busy GPU since `since` agree, or `None` if there are too few readings
/// or they disagree. A reading without utilization does not count, because the GPU may have been idle.
fn link(readings: &Readings, index: usize, since: Time, limits: &CauseThresholds) -> Option<f64> {
    let busy = column(GpuSignal::UtilizationRatio)?;
    let mut values = readings.values(index, since, |row| f64::from(row[busy]) >= limits.busy_ratio);
    if values.len() < limits.min_readings as usize {
        return None;
    }
    let (value, count) = stats::mode(&mut values)?;
    (count as f64 >= limits.agreeing_ratio * values.len() as f64).then_some(value)
}

/// Returns the sum of the known values, or `None` if there are none.
fn sum<const N: usize>(parts: [Option<f64>; N]) -> Option<f64> {
    parts.into_iter().flatten().reduce(|sum, part| sum + part)
}

/// Returns the column in which a signal is kept.
fn column(signal: GpuSignal) -> Option<usize> {
    let column = *PLACES.get(signal as usize)?;
    (column < COLUMNS).then_some(column)
}

/// The column of each signal, or `COLUMNS` if the signal is not kept.
const PLACES: [usize; GpuSignal::COUNT] = {
    let mut places = [COLUMNS; GpuSignal::COUNT];
    let mut column = 0;
    while column < COLUMNS {
        let signal = if column < GAUGES.len() {
            GAUGES[column].0
        } else {
            COUNTERS[column - GAUGES.len()]
        };
        places[signal as usize] = column;
        column += 1;
    }
    places
};
