//! How often a signal is read, and when it is told.
//!
//! What a fault shows in is read every second, so that it is known within two; what only trends, or costs the driver
//! more, every ten. What can explain a slow step is told with every reading; the rest when it has changed, and all of
//! it every ten seconds: a quiet GPU costs its job a few hundred bytes a second.

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

/// Every so many fast rounds is a slow one.
pub const SLOW_EVERY: u64 = 10;

/// Told with every reading: the detector judges them over time.
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

/// What was told of a GPU.
#[derive(Debug, Default)]
pub struct Told(BTreeMap<GpuSignal, Reading>);

impl Told {
    /// What of `readings` is to be told now; everything, when `all`.
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
