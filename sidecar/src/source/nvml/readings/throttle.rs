//! The time that a GPU was throttled, computed from its clock event reasons if the driver has no counters for it.
//! Drivers before 575.51 only count the time under the thermal policy.
//!
//! Reasons in nvml.h: nvmlClocksEventReasonSwThermalSlowdown, HwThermalSlowdown, HwPowerBrakeSlowdown.

use paceline_health::event::{GpuSignal, Missing, Reading};

use super::reader::Readings;

/// The signal for each reason, and the reason's bit.
const REASONS: [(GpuSignal, u64); 3] = [
    (GpuSignal::ThrottleThermalSwNs, 0x20),
    (GpuSignal::ThrottleThermalHwNs, 0x40),
    (GpuSignal::ThrottleBrakeNs, 0x80),
];

/// Throttled times of one GPU since it was found.
#[derive(Debug, Default)]
pub struct Throttle {
    /// Time of the last reading, nanoseconds, and its reason bits.
    last: Option<(u64, u64)>,
    spent_ns: [f64; REASONS.len()],
}

impl Throttle {
    /// Adds the counters that `readings` lack. Attributes half of the time between two readings to the reasons of the
    /// first, and half to those of the second.
    pub fn complete(&mut self, now_ns: u64, readings: &mut Readings) {
        let reasons = match readings.get(&GpuSignal::ClockReasons) {
            Some(Reading::Value(bits)) => Some(*bits as u64),
            _ => None,
        };
        let last = std::mem::replace(&mut self.last, reasons.map(|bits| (now_ns, bits)));
        for ((signal, bit), spent) in REASONS.into_iter().zip(&mut self.spent_ns) {
            let counted = readings.get(&signal);
            if !matches!(counted, None | Some(Reading::Missing(Missing::Unsupported))) {
                continue;
            }
            let reading = match (reasons, last) {
                (Some(bits), Some((then_ns, before))) => {
                    let ends = f64::from(u8::from(bits & bit != 0) + u8::from(before & bit != 0));
                    *spent += ends / 2.0 * now_ns.saturating_sub(then_ns) as f64;
                    Reading::Value(*spent)
                }
                (Some(_), None) => Reading::Value(*spent),
                (None, _) => Reading::Missing(Missing::Unsupported),
            };
            readings.insert(signal, reading);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn read(
        throttle: &mut Throttle,
        at_s: u64,
        reasons: Option<u64>,
        counted: &[(GpuSignal, f64)],
    ) -> Vec<Reading> {
        let mut readings = Readings::new();
        let counted = counted.iter().map(|(signal, ns)| (*signal, Reading::Value(*ns)));
        readings.extend(counted);
        let reasons = reasons.map_or(Reading::Missing(Missing::Unsupported), |bits| {
            Reading::Value(bits as f64)
        });
        readings.insert(GpuSignal::ClockReasons, reasons);
        throttle.complete(at_s * SECOND, &mut readings);
        REASONS.map(|(signal, _)| readings[&signal].clone()).to_vec()
    }

    #[test]
    fn reasons_are_summed_where_nothing_counts() {
        let mut throttle = Throttle::default();
        let values = |seconds: [f64; 3]| seconds.map(|s| Reading::Value(s * SECOND as f64)).to_vec();
        // The power cap (4) is none of these kinds of throttling.
        assert_eq!(read(&mut throttle, 10, Some(0x4), &[]), values([0.0, 0.0, 0.0]));
        assert_eq!(read(&mut throttle, 11, Some(0x60), &[]), values([0.5, 0.5, 0.0]));
        assert_eq!(read(&mut throttle, 13, Some(0xe0), &[]), values([2.5, 2.5, 1.0]));
        // A counter from the driver stays unchanged.
        let counted = [(GpuSignal::ThrottleThermalSwNs, 7.0 * SECOND as f64)];
        assert_eq!(
            read(&mut throttle, 14, Some(0x40), &counted),
            values([7.0, 3.5, 1.5])
        );
    }

    #[test]
    fn without_reasons_nothing_is_known() {
        let mut throttle = Throttle::default();
        let unsupported = vec![Reading::Missing(Missing::Unsupported); 3];
        assert_eq!(read(&mut throttle, 1, None, &[]), unsupported);
        // A period without readings adds nothing.
        read(&mut throttle, 2, Some(0x20), &[]);
        read(&mut throttle, 3, None, &[]);
        let read = read(&mut throttle, 9, Some(0x20), &[]);
        assert_eq!(read[0], Reading::Value(0.0));
    }
}
