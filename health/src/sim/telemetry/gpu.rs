//! Simulated GPUs. Their NVML readings and speed are a pure function of a script and the time.
//!
//! Every value and every counter has a closed form. Any instant can therefore be computed in any order, and a counter
//! is the exact integral of the condition that it measures. GPUs are independent of each other.

use std::fmt;
use std::sync::Arc;

use crate::event::{GpuReading, GpuSignal, Reading};
use crate::id::GpuId;
use crate::sim::chance::Chance;
use crate::sim::text::{Quoted, ScriptError, Word, seconds, words};

/// Temperature at which throttling starts, in degrees. An H100 SXM slows down in software at 87.
const LIMIT_C: f64 = 87.0;
/// How far a heated GPU would rise above its normal temperature if it did not throttle, in degrees.
const RISE_C: f64 = 60.0;
/// Time constant of die and heat sink, seconds.
const THERMAL_TAU_S: f64 = 5.0;
/// Time constant with which the clock falls and recovers, in seconds.
const CLOCK_TAU_S: f64 = 1.0;
/// Distance to the limit of a GPU that is warm but not slow, degrees.
const WARM_MARGIN_C: f64 = 4.0;
/// Highest SM clock of an H100 SXM.
const SM_CLOCK_MAX_MHZ: f64 = 1980.0;
/// Power limit of an H100 SXM.
const POWER_LIMIT_W: f64 = 700.0;
/// Idle power, and the additional power at full clock.
const POWER_IDLE_W: f64 = 90.0;
const POWER_BUSY_W: f64 = 520.0;
/// Variation of a healthy GPU's clock below its maximum, as a share.
const CLOCK_JITTER: f64 = 0.002;
/// Maximum number of GPUs in a script.
const MOST_GPUS: u32 = 1 << 20;

const KNOWN: &str = "gpus=N model=NAME seed=N clock=RATIO heat=gpuN@TIME[..TIME] warm=gpuN@TIME[..TIME]";
const HEAT_FORM: &str = "gpuN@TIME or gpuN@TIME..TIME, such as gpu3@6s";

/// Defines what to simulate: the number and model of the GPUs, and which of them heat up when.
///
/// Its text form is, for example, `gpus=8 model="Simulated H100" heat=gpu3@6s`. `heat` may occur once for each GPU. If
/// it has a second time, the heat ends then. `warm` selects a GPU that runs hot without being slow. `clock` is the
/// share of its maximum clock to which a hot GPU falls (0.75). `seed` changes UUIDs and variation.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuScript {
    gpus: u32,
    model: Arc<str>,
    seed: u64,
    clock: f64,
    heats: Vec<Heat>,
}

/// One GPU that heats up.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Heat {
    gpu: u32,
    from_s: f64,
    until_s: f64,
    throttles: bool,
}

impl GpuScript {
    /// Creates a script of `gpus` healthy GPUs.
    pub fn healthy(gpus: u32, seed: u64) -> GpuScript {
        GpuScript {
            gpus,
            model: Arc::from("Simulated H100"),
            seed,
            clock: 0.75,
            heats: Vec::new(),
        }
    }

    /// Parses a script.
    ///
    /// # Errors
    /// [`ScriptError`], which gives the column.
    pub fn parse(text: &str) -> Result<GpuScript, ScriptError> {
        let mut script = GpuScript::healthy(0, 0);
        for word in words(text)? {
            match word.key.as_str() {
                "gpus" => {
                    script.gpus = word.read("a whole number, 1 to 1048576", |text| {
                        text.parse().ok().filter(|gpus| (1..=MOST_GPUS).contains(gpus))
                    })?;
                }
                "model" => script.model = word.read("a name", |text| Some(Arc::from(text)))?,
                "seed" => script.seed = word.number()?,
                "clock" => script.clock = word.decimal("a ratio, 0.05 to 1", 0.05..=1.0)?,
                "heat" => script.add(&word, true)?,
                "warm" => script.add(&word, false)?,
                _ => return Err(word.unknown(KNOWN)),
            }
        }
        if script.gpus == 0 {
            return Err(ScriptError::Missing {
                key: "gpus",
                expected: "a whole number, 1 to 1048576",
            });
        }
        Ok(script)
    }

    /// Returns the script with one more GPU that heats up from `from_s` until `until_s`, which is infinity if it never
    /// ends.
    #[must_use]
    pub fn with_heat(mut self, gpu: u32, from_s: f64, until_s: f64) -> GpuScript {
        self.heats.push(Heat {
            gpu,
            from_s,
            until_s,
            throttles: true,
        });
        self
    }

    /// Returns the script with one more GPU that runs hot from `from_s` until `until_s` without being slow.
    #[must_use]
    pub fn with_warmth(mut self, gpu: u32, from_s: f64, until_s: f64) -> GpuScript {
        self.heats.push(Heat {
            gpu,
            from_s,
            until_s,
            throttles: false,
        });
        self
    }

    fn add(&mut self, word: &Word, throttles: bool) -> Result<(), ScriptError> {
        let heat = word.read(HEAT_FORM, |text| Heat::parse(text, throttles))?;
        if self.heats.iter().any(|other| other.gpu == heat.gpu) {
            let key = format!("{} of gpu{}", word.key, heat.gpu);
            return Err(ScriptError::Twice {
                column: word.column,
                key,
            });
        }
        self.heats.push(heat);
        Ok(())
    }

    /// Returns the number of GPUs. Their indices start at 0.
    pub fn gpus(&self) -> u32 {
        self.gpus
    }

    /// Returns the UUID of a GPU as 16 bytes, as in the ring's attach record.
    pub fn uuid_bytes(&self, index: u32) -> [u8; 16] {
        let mut chance = Chance::of(self.seed, &[0x0075_7569, u64::from(index)]);
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&chance.bits().to_be_bytes());
        bytes[8..].copy_from_slice(&chance.bits().to_be_bytes());
        // These are the version and variant bits of a random UUID (RFC 9562, version 4). They also prevent an all-zero
        // UUID.
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        bytes
    }

    /// Returns the UUID of a GPU in NVML's format.
    pub fn gpu(&self, index: u32) -> GpuId {
        GpuId::from_uuid_bytes(self.uuid_bytes(index))
    }

    /// Returns the SM clock divided by its maximum at `t` seconds. A trainer's compute time is divided by it.
    pub fn speed(&self, index: u32, t: f64) -> f64 {
        let t = instant(t);
        let slow = self
            .heat(index)
            .map_or(0.0, |heat| heat.slowed(self.rest_c(index), self.clock, t));
        (1.0 - CLOCK_JITTER * self.jitter(index, 1, t).unit()) * (1.0 - slow)
    }

    /// Returns all NVML readings of a GPU at `t` seconds.
    pub fn reading(&self, index: u32, t: f64) -> GpuReading {
        GpuReading {
            gpu: self.gpu(index),
            pci: pci(index),
            model: Arc::clone(&self.model),
            readings: self
                .signals(index, t)
                .into_iter()
                .map(|(signal, value)| (signal, Reading::Value(value)))
                .collect(),
        }
    }

    /// Returns the product's name.
    pub(crate) fn model(&self) -> &Arc<str> {
        &self.model
    }

    /// Returns the readings of [`GpuScript::reading`].
    pub(super) fn signals(&self, index: u32, t: f64) -> [(GpuSignal, f64); 10] {
        let t = instant(t);
        let (rest, speed) = (self.rest_c(index), self.speed(index, t));
        let heat = self.heat(index);
        // Use whole degrees, as NVML does. At the limit, the core temperature varies above the limit and never below
        // it.
        let noise = self.jitter(index, 2, t).around();
        let core = heat.map_or(rest, |heat| heat.temperature(rest, t));
        let temperature = if core >= LIMIT_C {
            LIMIT_C + noise.abs()
        } else {
            core + noise
        }
        .round();
        let throttled_s = heat.map_or(0.0, |heat| heat.throttled(rest, t));
        let mut base = Chance::of(self.seed, &[3, u64::from(index)]);
        // Counters count since driver load, so they never start at zero.
        let mut counter = |seconds: f64| (base.bits() % 5_000_000_000) as f64 + (seconds * 1e9).round();
        let power = (POWER_IDLE_W + POWER_BUSY_W * speed * speed + 8.0 * noise).round();
        let busy = 0.97 + 0.03 * self.jitter(index, 4, t).unit();
        [
            (GpuSignal::TemperatureC, temperature),
            (GpuSignal::MarginC, LIMIT_C - temperature),
            (GpuSignal::SmClockMhz, (SM_CLOCK_MAX_MHZ * speed).round()),
            (GpuSignal::SmClockMaxMhz, SM_CLOCK_MAX_MHZ),
            (GpuSignal::PowerW, power),
            (GpuSignal::PowerLimitW, POWER_LIMIT_W),
            (GpuSignal::ThrottleThermalSwNs, counter(throttled_s)),
            (GpuSignal::ThrottleThermalHwNs, counter(0.0)),
            (GpuSignal::ThrottlePowerNs, counter(0.0)),
            (GpuSignal::UtilizationRatio, (busy * 100.0).round() / 100.0),
        ]
    }

    fn heat(&self, index: u32) -> Option<&Heat> {
        self.heats.iter().find(|heat| heat.gpu == index)
    }

    /// Returns the temperature under load, in degrees. It differs between GPUs, because GPUs at the back of the airflow
    /// run warmer.
    fn rest_c(&self, index: u32) -> f64 {
        60.0 + 3.0 * Chance::of(self.seed, &[5, u64::from(index)]).around()
    }

    /// Returns random numbers that stay the same for one second.
    fn jitter(&self, index: u32, what: u64, t: f64) -> Chance {
        Chance::of(self.seed, &[what, u64::from(index), t as u64])
    }
}

/// Clamps any number to a valid time within 30 years.
fn instant(t: f64) -> f64 {
    if t > 0.0 { t.min(1e9) } else { 0.0 }
}

/// Returns a bus address as on an eight-GPU board. Further boards have their own PCI domain.
pub(super) fn pci(index: u32) -> Arc<str> {
    const BUSES: [u8; 8] = [0x18, 0x2a, 0x3a, 0x5d, 0x9a, 0xab, 0xba, 0xdb];
    format!("{:04x}:{:02x}:00.0", index / 8, BUSES[index as usize % 8]).into()
}

impl Heat {
    fn parse(text: &str, throttles: bool) -> Option<Heat> {
        let (gpu, span) = text.strip_prefix("gpu")?.split_once('@')?;
        let (from, until) = match span.split_once("..") {
            Some((from, until)) => (from, seconds(until)?),
            None => (span, f64::INFINITY),
        };
        let heat = Heat {
            gpu: gpu.parse().ok()?,
            from_s: seconds(from)?,
            until_s: until,
            throttles,
        };
        (heat.from_s < heat.until_s).then_some(heat)
    }

    fn rise(&self, rest: f64) -> f64 {
        if self.throttles {
            RISE_C
        } else {
            LIMIT_C - WARM_MARGIN_C - rest
        }
    }

    /// Returns the core temperature. It rises toward `rest` plus the rise, is limited by throttling, and falls back.
    fn temperature(&self, rest: f64, t: f64) -> f64 {
        let hot = |t: f64| {
            let risen = self.rise(rest) * (1.0 - (-(t - self.from_s).max(0.0) / THERMAL_TAU_S).exp());
            (rest + risen).min(LIMIT_C)
        };
        if t <= self.until_s {
            return hot(t);
        }
        rest + (hot(self.until_s) - rest) * (-(t - self.until_s) / THERMAL_TAU_S).exp()
    }

    /// Returns when the core reaches the limit, in seconds, or infinity if it does not.
    fn limit_at(&self, rest: f64) -> f64 {
        let (rise, room) = (self.rise(rest), LIMIT_C - rest);
        let at = self.from_s + THERMAL_TAU_S * (rise / (rise - room)).ln();
        if self.throttles && at < self.until_s {
            at
        } else {
            f64::INFINITY
        }
    }

    /// Returns for how long thermal throttling has been active so far, in seconds.
    fn throttled(&self, rest: f64, t: f64) -> f64 {
        (t.min(self.until_s) - self.limit_at(rest)).max(0.0)
    }

    /// Returns the missing share of the clock.
    fn slowed(&self, rest: f64, clock: f64, t: f64) -> f64 {
        let fallen = (1.0 - clock) * (1.0 - (-self.throttled(rest, t) / CLOCK_TAU_S).exp());
        fallen * (-(t - self.until_s).max(0.0) / CLOCK_TAU_S).exp()
    }
}

impl fmt::Display for GpuScript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "gpus={} model={} seed={} clock={}",
            self.gpus,
            Quoted(&self.model),
            self.seed,
            self.clock
        )?;
        for heat in &self.heats {
            let key = if heat.throttles { "heat" } else { "warm" };
            write!(f, " {key}=gpu{}@{}s", heat.gpu, heat.from_s)?;
            if heat.until_s.is_finite() {
                write!(f, "..{}s", heat.until_s)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "gpu_tests.rs"]
mod tests;
