//! Mean GPU signals over the whole training run. Advice uses them to distinguish one bottleneck from another.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::event::{GpuReading, GpuSignal};

/// Signals whose means are kept.
const SIGNALS: [GpuSignal; 10] = [
    GpuSignal::TemperatureC,
    GpuSignal::SmClockMhz,
    GpuSignal::PowerW,
    GpuSignal::UtilizationRatio,
    GpuSignal::MemoryBusyRatio,
    GpuSignal::GraphicsActiveRatio,
    GpuSignal::SmActiveRatio,
    GpuSignal::SmOccupancyRatio,
    GpuSignal::TensorActiveRatio,
    GpuSignal::DramActiveRatio,
];

/// Sums of the GPU signals since training began.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Activity {
    begun: bool,
    /// Sum and number of readings, by signal.
    sums: [(f64, u64); SIGNALS.len()],
}

impl Activity {
    /// Starts counting. Earlier readings are left out because they come from loading and compiling.
    pub fn begin(&mut self) {
        self.begun = true;
    }

    /// Takes a reading.
    pub fn reading(&mut self, reading: &GpuReading) {
        if !self.begun {
            return;
        }
        for (signal, (sum, count)) in SIGNALS.iter().zip(&mut self.sums) {
            let value = reading.readings.get(signal).and_then(|read| read.value());
            if let Some(value) = value.filter(|value| value.is_finite()) {
                *sum += value;
                *count += 1;
            }
        }
    }

    /// Returns the means over all GPUs. Signals without readings are omitted.
    pub fn told(&self) -> BTreeMap<GpuSignal, f64> {
        let read = SIGNALS
            .iter()
            .zip(&self.sums)
            .filter(|(_, (_, count))| *count > 0);
        read.map(|(signal, (sum, count))| (*signal, (sum / *count as f64 * 1e6).round() / 1e6))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Missing, Reading};

    #[test]
    fn means_are_of_what_was_read_while_the_job_trained() {
        let reading = |signal, value| GpuReading {
            gpu: "GPU-1".into(),
            pci: "0000:01:00.0".into(),
            model: "H100".into(),
            readings: BTreeMap::from([(signal, value)]),
        };
        let mut activity = Activity::default();
        activity.reading(&reading(GpuSignal::SmActiveRatio, Reading::Value(0.1)));
        assert_eq!(activity.told(), BTreeMap::new(), "it loads");
        activity.begin();
        for value in [0.5, 0.7] {
            activity.reading(&reading(GpuSignal::SmActiveRatio, Reading::Value(value)));
        }
        let missing = Reading::Missing(Missing::Unsupported);
        activity.reading(&reading(GpuSignal::TensorActiveRatio, missing));
        activity.reading(&reading(GpuSignal::PcieGen, Reading::Value(5.0)));
        assert_eq!(activity.told(), BTreeMap::from([(GpuSignal::SmActiveRatio, 0.6)]));
    }
}
