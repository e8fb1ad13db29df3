//! How often a signal is read, and when it is sent.
//!
//! Signals of faults are read every second, so that a fault is known within two seconds. Signals that change slowly or
//! cost the driver more are read every ten seconds. Signals that can explain a slow step are sent with every reading.
//! The others are sent when they change, and all signals are sent every ten seconds. A quiet GPU therefore costs its
//! job a few hundred bytes a second.

use std::collections::BTreeMap;

use paceline_health::event::{GpuSignal, Reading};

/// How often a signal is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pace {
    /// Every second.
    Fast,
    /// Every ten seconds.
    Slow,
}

/// One in this many fast rounds is a slow one.
pub const SLOW_EVERY: u64 = 10;

/// Returns true if the signal is sent with every reading, because the detector evaluates it over time.
fn is_told_always(signal: GpuSignal) -> bool {
    matches!(
        signal,
        GpuSignal::TemperatureC
            | GpuSignal::MarginC
            | GpuSignal::SmClockMhz
            | GpuSignal::PowerW
            | GpuSignal::ThrottleThermalSwNs
            | GpuSignal::ThrottleThermalHwNs
            | GpuSignal::ThrottlePowerNs
            | GpuSignal::ThrottleBrakeNs
            | GpuSignal::UtilizationRatio
    )
}

/// The readings that were last sent for a GPU.
#[derive(Debug, Default)]
pub struct Told(BTreeMap<GpuSignal, Reading>);

impl Told {
    /// Returns the part of `readings` to send now, or everything if `all` is set.
    pub fn news(
        &mut self,
        readings: BTreeMap<GpuSignal, Reading>,
        all: bool,
    ) -> BTreeMap<GpuSignal, Reading> {
        let news: BTreeMap<GpuSignal, Reading> = readings
            .into_iter()
            .filter(|(signal, reading)| all || is_told_always(*signal) || self.0.get(signal) != Some(reading))
            .collect();
        self.0
            .extend(news.iter().map(|(signal, reading)| (*signal, reading.clone())));
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_change_is_told_now_and_then() {
        let readings = |clock: f64, pending: f64| {
            BTreeMap::from([
                (GpuSignal::SmClockMhz, Reading::Value(clock)),
                (GpuSignal::RemapPending, Reading::Value(pending)),
            ])
        };
        let mut told = Told::default();
        assert_eq!(told.news(readings(1980.0, 0.0), false).len(), 2, "the first time");
        let second = told.news(readings(1980.0, 0.0), false);
        assert_eq!(second.keys().collect::<Vec<_>>(), [&GpuSignal::SmClockMhz]);
        assert_eq!(told.news(readings(1980.0, 0.0), true).len(), 2);
        assert_eq!(told.news(readings(1980.0, 1.0), false).len(), 2, "it changed");
    }
}
