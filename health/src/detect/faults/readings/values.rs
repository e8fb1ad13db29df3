//! The last values of a GPU's signals, by number: each is looked up for every reading of every GPU.

use serde::{Deserialize, Serialize};

use crate::codec::serde_impls;
use crate::event::{GpuReading, GpuSignal};

/// See the module. An unchanged value is not sent again: it stays as last sent.
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

    /// The value of a signal, if it has one.
    pub fn get(&self, signal: GpuSignal) -> Option<f64> {
        self.0
            .get(signal as usize)
            .copied()
            .filter(|value| !value.is_nan())
    }

    /// Whether any signal has a value.
    pub fn has_any(&self) -> bool {
        self.0.iter().any(|value| !value.is_nan())
    }
}

/// A counter's value at the job's start (or after the last reset) and now, for the few that are tracked.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Rises(Vec<(GpuSignal, f64, f64)>);

impl Rises {
    /// Takes a counter's value; returns how much it rose since the start, and whether it rose since the last value. One
    /// that fell starts over.
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
