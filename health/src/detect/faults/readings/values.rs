//! The last values of a GPU's signals, stored by signal number because every reading of every GPU looks up each of
//! them.

use serde::{Deserialize, Serialize};

use crate::codec::serde_impls;
use crate::event::{GpuReading, GpuSignal};

/// The last value of each signal. A value that has not changed is not sent again, so the last sent one is still valid.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Values(#[serde(with = "serde_impls::array")] [f64; GpuSignal::COUNT]);

impl Default for Values {
    fn default() -> Values {
        Values([f64::NAN; GpuSignal::COUNT])
    }
}

impl Values {
    /// Takes the values of a reading.
    pub fn take(&mut self, reading: &GpuReading) {
        for (signal, reading) in &reading.readings {
            if let Some(kept) = self.0.get_mut(*signal as usize) {
                *kept = reading.value().unwrap_or(f64::NAN);
            }
        }
    }

    /// Returns the value of a signal, if it has one.
    pub fn get(&self, signal: GpuSignal) -> Option<f64> {
        self.0
            .get(signal as usize)
            .copied()
            .filter(|value| !value.is_nan())
    }

    /// Returns true if any signal has a value.
    pub fn has_any(&self) -> bool {
        self.0.iter().any(|value| !value.is_nan())
    }
}

/// The values of the few tracked counters at the job's start (or after the last reset) and now.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Rises(Vec<(GpuSignal, f64, f64)>);

impl Rises {
    /// Takes a counter's value. Returns how much the counter rose since the start, and whether it rose since the last
    /// value. If the value fell, the count starts over.
    pub fn take(&mut self, signal: GpuSignal, value: f64) -> (f64, bool) {
        let Some((_, base, last)) = self.0.iter_mut().find(|(own, _, _)| *own == signal) else {
            self.0.push((signal, value, value));
            return (0.0, false);
        };
        let before = std::mem::replace(last, value);
        if value < before {
            *base = value;
        }
        (value - *base, value > before)
    }
}
