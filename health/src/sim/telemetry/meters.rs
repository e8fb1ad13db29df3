//! GPU counters and readings beyond [`GpuScript`](crate::sim::GpuScript). Each cause changes the counters that it
//! changes in reality. Even on healthy GPUs, not all counters are zero.

use std::sync::Arc;

use crate::event::{GpuReading, GpuSignal, Reading};
use crate::id::GpuId;
use crate::sim::chance::Chance;
use crate::sim::fault::Fault;
use crate::sim::spec::WorldSpec;
use crate::time::Time;
use crate::verdict::Cause;

/// Share of a step that scales with the SM clock. The rest waits for memory and does not.
const CLOCK_BOUND: f64 = 0.6;
/// Clock and power of an idle GPU.
const IDLE_CLOCK_MHZ: f64 = 345.0;
const IDLE_POWER_W: f64 = 75.0;
const MEMORY_CLOCK_MHZ: f64 = 2619.0;
const MEMORY_BYTES: f64 = 80.0 * (1u64 << 30) as f64;
const GEN_MAX: f64 = 5.0;
const WIDTH_MAX: f64 = 16.0;

/// An active cause on a GPU, its strength, and the counter that shows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ill {
    pub cause: Cause,
    pub factor: f64,
    /// A random number that selects one of the counters in which the cause can show. It differs between faults.
    pub way: u64,
}

/// Returns the random number that selects the counter for a fault.
pub(crate) fn way(seed: u64, index: usize) -> u64 {
    Chance::of(seed, &[0x0077_6179, index as u64]).bits()
}

/// Returns the cause of a fault, if counters show it.
pub(super) fn ill(seed: u64, index: usize, fault: &Fault) -> Option<Ill> {
    match *fault {
        Fault::Slow { factor, cause, .. } => Some(Ill {
            cause,
            factor,
            way: way(seed, index),
        }),
        Fault::Link { factor, .. } => Some(Ill {
            cause: Cause::Network,
            factor,
            way: way(seed, index),
        }),
        _ => None,
    }
}

/// One GPU's counters and its state between two readings.
#[derive(Clone, Debug)]
pub(super) struct Meter {
    chance: Chance,
    /// Share of the readings that are taken between two kernels.
    idle: f64,
    gpu: GpuId,
    pci: Arc<str>,
    read_at: Time,
    /// Share of time at the power cap. It is not zero on a healthy GPU, because any loaded GPU reaches the cap at
    /// times.
    capped: f64,
    power_ns: f64,
    thermal_ns: f64,
    brake_ns: f64,
    ecc_corrected: f64,
    ecc_uncorrected: f64,
    remap_pending: f64,
    replays: f64,
    nvlink: [f64; 3],
    memory_bytes: f64,
}

/// A GPU's values from the script at one time.
pub(super) struct Script<'a> {
    pub model: &'a Arc<str>,
    pub signals: [(GpuSignal, f64); 10],
}

/// A GPU's current values, changed by its faults.
struct Look {
    clock: f64,
    hotter_c: f64,
    limit: f64,
    gen_now: f64,
    width: f64,
}

impl Meter {
    pub fn new(spec: &WorldSpec, index: u32, gpu: GpuId, pci: Arc<str>) -> Meter {
        let mut chance = Chance::of(spec.seed, &[0x006d_6574, u64::from(index)]);
        // These are lifetime totals. A GPU that has been in use for months has some errors.
        let lifetime = |chance: &mut Chance, most: f64| (chance.unit().powi(3) * most).floor();
        Meter {
            idle: spec.idle,
            gpu,
            pci,
            read_at: Time::ZERO,
            capped: 0.02 + 0.06 * chance.unit(),
            power_ns: lifetime(&mut chance, 1e13),
            thermal_ns: lifetime(&mut chance, 1e10),
            brake_ns: lifetime(&mut chance, 1e9),
            ecc_corrected: lifetime(&mut chance, 40.0),
            ecc_uncorrected: lifetime(&mut chance, 2.0),
            remap_pending: 0.0,
            replays: lifetime(&mut chance, 200.0),
            nvlink: [200.0, 50.0, 4.0].map(|most| lifetime(&mut chance, most)),
            memory_bytes: MEMORY_BYTES * (0.80 + 0.05 * chance.unit()),
            chance,
        }
    }

    /// Reads the GPU at `at`. `idle` is true if nothing runs on it. `script` contains its temperature and clock without
    /// faults.
    pub fn read(&mut self, at: Time, idle: bool, ills: &[Ill], script: &Script<'_>) -> GpuReading {
        let span_ns = at.since(self.read_at).as_nanos() as f64;
        self.read_at = at;
        let mut look = Look {
            clock: 1.0,
            hotter_c: 0.0,
            limit: 1.0,
            gen_now: GEN_MAX,
            width: WIDTH_MAX,
        };
        let load = if idle { 0.0 } else { self.capped };
        self.power_ns += (span_ns * load * (1.0 + 0.3 * self.chance.around())).round();
        // Any GPU has background soft errors, about one an hour, and a rare replay.
        self.count_noise(span_ns / 1e9);
        for ill in ills {
            self.suffer(ill, span_ns, &mut look);
        }
        // The bus reduces its speed when unused to save power, even briefly between two kernels.
        let pause = self.chance.hits(self.idle);
        if idle || pause {
            look.gen_now = look.gen_now.min(1.0);
        }
        // Utilization is an average over the past. If pauses are rare, a single one is assumed to fill the whole
        // interval.
        let pause = pause.then(|| {
            if self.idle > 0.05 {
                self.chance.unit()
            } else {
                0.04
            }
        });
        let readings = self.values(idle, pause, &look, script);
        GpuReading {
            gpu: self.gpu.clone(),
            pci: Arc::clone(&self.pci),
            model: Arc::clone(script.model),
            readings: readings
                .into_iter()
                .map(|(signal, value)| (signal, Reading::Value(value)))
                .collect(),
        }
    }

    fn count_noise(&mut self, span_s: f64) {
        let drawn = self.chance.unit();
        if drawn < span_s / 3600.0 {
            self.ecc_corrected += 1.0;
        } else if drawn < 2.0 * span_s / 3600.0 {
            self.replays += 1.0;
        } else if drawn < 2.5 * span_s / 3600.0 {
            self.nvlink[0] += 1.0;
        }
    }

    /// Adds the effect of a fault to the counters in `span_ns`, and to the current values.
    fn suffer(&mut self, ill: &Ill, span_ns: f64, look: &mut Look) {
        // Only part of a step scales with the clock, so the clock must fall by a larger factor than the step grows.
        let clock = CLOCK_BOUND / (ill.factor - 1.0 + CLOCK_BOUND);
        let share = |chance: &mut Chance| 0.8 + 0.2 * chance.unit();
        let span_s = span_ns / 1e9;
        match ill.cause {
            Cause::Thermal => {
                look.clock *= clock;
                look.hotter_c = 100.0;
                self.thermal_ns += (span_ns * share(&mut self.chance)).round();
            }
            Cause::Power => {
                look.clock *= clock;
                look.hotter_c = -6.0;
                match ill.way % 3 {
                    0 => self.brake_ns += (span_ns * share(&mut self.chance)).round(),
                    1 => self.power_ns += (span_ns * 0.9 * share(&mut self.chance)).round(),
                    _ => {
                        look.limit = 0.6;
                        self.power_ns += (span_ns * 0.9 * share(&mut self.chance)).round();
                    }
                }
            }
            Cause::ClockStuck => {
                look.clock *= clock;
                look.hotter_c = -10.0;
            }
            Cause::Ecc => match ill.way % 3 {
                0 => self.ecc_uncorrected += span_s / 5.0,
                1 => {
                    self.remap_pending = 1.0;
                    self.ecc_uncorrected += span_s / 30.0;
                }
                _ => self.ecc_corrected += span_s * (15.0 + 10.0 * self.chance.unit()),
            },
            Cause::Pcie => {
                if ill.way.is_multiple_of(2) {
                    look.width = 4.0;
                } else {
                    look.gen_now = 2.0;
                }
                self.replays += span_s * (1.0 + 2.0 * self.chance.unit());
            }
            Cause::Nvlink => {
                for (counter, rate) in self.nvlink.iter_mut().zip([6.0, 2.0, 0.2]) {
                    *counter += span_s * rate * share(&mut self.chance);
                }
            }
            _ => {}
        }
    }

    fn values(
        &self,
        idle: bool,
        pause: Option<f64>,
        look: &Look,
        script: &Script<'_>,
    ) -> [(GpuSignal, f64); 27] {
        use GpuSignal as S;
        let base = |signal| {
            let found = script.signals.iter().find(|(of, _)| *of == signal);
            found.map_or(0.0, |(_, value)| *value)
        };
        let limit_c = base(S::TemperatureC) + base(S::MarginC);
        let (mut temperature, mut clock) = (base(S::TemperatureC), base(S::SmClockMhz) * look.clock);
        let mut power = base(S::PowerW) * (0.35 + 0.65 * look.clock * look.clock);
        let mut busy = base(S::UtilizationRatio);
        if look.hotter_c > 50.0 {
            // While it is throttled at its limit, the temperature varies above the limit and never below it.
            temperature = temperature.max(limit_c + (temperature as u64 % 3) as f64);
        } else {
            temperature += look.hotter_c;
        }
        let limit_w = (base(S::PowerLimitW) * look.limit).round();
        if idle {
            (temperature, clock, power, busy) =
                (temperature.min(limit_c) - 20.0, IDLE_CLOCK_MHZ, IDLE_POWER_W, 0.0);
        } else if let Some(average) = pause {
            busy = (average * 100.0).round() / 100.0;
        }
        [
            (S::TemperatureC, temperature),
            (S::MarginC, limit_c - temperature),
            (S::SmClockMhz, clock.round()),
            (S::SmClockMaxMhz, base(S::SmClockMaxMhz)),
            (S::PowerW, power.min(limit_w).round()),
            (S::PowerLimitW, limit_w),
            (
                S::ThrottleThermalSwNs,
                base(S::ThrottleThermalSwNs) + self.thermal_ns,
            ),
            (S::ThrottleThermalHwNs, base(S::ThrottleThermalHwNs)),
            (S::ThrottlePowerNs, base(S::ThrottlePowerNs) + self.power_ns),
            (S::UtilizationRatio, busy),
            (S::ThrottleBrakeNs, self.brake_ns),
            (S::MemoryTemperatureC, temperature + 9.0),
            (S::MemoryClockMhz, MEMORY_CLOCK_MHZ),
            (S::EccUncorrected, self.ecc_uncorrected.floor()),
            (S::EccCorrected, self.ecc_corrected.floor()),
            (S::RemapPending, self.remap_pending),
            (S::RemapFailed, 0.0),
            (S::PcieGen, look.gen_now),
            (S::PcieGenMax, GEN_MAX),
            (S::PcieWidth, look.width),
            (S::PcieWidthMax, WIDTH_MAX),
            (S::PcieReplays, self.replays.floor()),
            (S::NvlinkCrcErrors, self.nvlink[0].floor()),
            (S::NvlinkReplays, self.nvlink[1].floor()),
            (S::NvlinkRecoveries, self.nvlink[2].floor()),
            (
                S::MemoryUsedBytes,
                if idle { 0.0 } else { self.memory_bytes.floor() },
            ),
            (S::MemoryTotalBytes, MEMORY_BYTES),
        ]
    }
}
