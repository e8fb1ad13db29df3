//! Signals that have their own functions.
//!
//! Source: <https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html>

use std::collections::BTreeMap;

use nvml_wrapper_sys::bindings::*;
use paceline_health::event::{GpuSignal, Missing, Reading};

use super::super::code::Code;
use super::super::library::{Gpu, ask};
use super::super::pace::Pace::{self, Fast, Slow};
use super::reader::Readings;

/// Function that reads the signals of a call, or returns the code of the failure.
type Read = fn(&Gpu, &mut Known<'_>) -> Result<Vec<f64>, Code>;

/// Values that a call can use without another query.
struct Known<'a> {
    /// Readings of this round so far.
    readings: &'a Readings,
    /// Temperature thresholds, cached because they do not change.
    limits: &'a mut BTreeMap<nvmlTemperatureThresholds_t, f64>,
}

/// One or more signals, and the function that reads them.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// The signals, in the order of the function's results.
    pub signals: &'static [GpuSignal],
    /// How often it is called.
    pub pace: Pace,
    /// The function, followed by alternatives for GPUs and drivers that lack it.
    reads: &'static [Read],
}

const fn call(signals: &'static [GpuSignal], pace: Pace, reads: &'static [Read]) -> Call {
    Call { signals, pace, reads }
}

/// All calls. If a field has the same signal, the call serves only drivers without that field.
pub const CALLS: &[Call] = &[
    call(
        &[GpuSignal::TemperatureC],
        Fast,
        &[temperature, temperature_before],
    ),
    call(
        &[GpuSignal::MarginC],
        Fast,
        &[
            margin,
            |gpu, known| margin_to(gpu, GPU_MAX, known),
            |gpu, known| margin_to(gpu, SLOWDOWN, known),
        ],
    ),
    call(&[GpuSignal::MemoryMarginC], Slow, &[memory_margin]),
    call(&[GpuSignal::SmClockMhz], Fast, &[|gpu, _| clock(gpu, SM)]),
    call(&[GpuSignal::MemoryClockMhz], Fast, &[|gpu, _| clock(gpu, MEMORY)]),
    call(&[GpuSignal::SmClockMaxMhz], Slow, &[|gpu, _| clock_max(gpu, SM)]),
    call(
        &[GpuSignal::MemoryClockMaxMhz],
        Slow,
        &[|gpu, _| clock_max(gpu, MEMORY)],
    ),
    call(&[GpuSignal::SmClockSetMhz], Slow, &[|gpu, _| clock_set(gpu)]),
    call(
        &[GpuSignal::ClockReasons],
        Fast,
        &[clock_reasons, clock_reasons_before],
    ),
    call(&[GpuSignal::PowerW], Fast, &[|gpu, _| power(gpu)]),
    call(&[GpuSignal::PowerLimitW], Slow, &[|gpu, _| power_limit(gpu)]),
    call(
        &[GpuSignal::UtilizationRatio, GpuSignal::MemoryBusyRatio],
        Fast,
        &[|gpu, _| utilization(gpu)],
    ),
    call(
        &[GpuSignal::MemoryUsedBytes, GpuSignal::MemoryTotalBytes],
        Slow,
        &[|gpu, _| memory_now(gpu), |gpu, _| memory_before(gpu)],
    ),
    call(
        &[GpuSignal::PcieGen],
        Fast,
        &[|gpu, _| number(|out| ask!(gpu, nvmlDeviceGetCurrPcieLinkGeneration, out))],
    ),
    call(
        &[GpuSignal::PcieWidth],
        Fast,
        &[|gpu, _| number(|out| ask!(gpu, nvmlDeviceGetCurrPcieLinkWidth, out))],
    ),
    call(
        &[GpuSignal::PcieGenMax],
        Slow,
        &[|gpu, _| number(|out| ask!(gpu, nvmlDeviceGetMaxPcieLinkGeneration, out))],
    ),
    call(
        &[GpuSignal::PcieWidthMax],
        Slow,
        &[|gpu, _| number(|out| ask!(gpu, nvmlDeviceGetMaxPcieLinkWidth, out))],
    ),
    call(
        &[
            GpuSignal::RemapBanks,
            GpuSignal::RemapBanksLow,
            GpuSignal::RemapBanksNone,
        ],
        Slow,
        &[|gpu, _| remap_banks(gpu)],
    ),
    call(&[GpuSignal::NvlinkUp], Fast, &[|gpu, _| links_up(gpu)]),
    call(&[GpuSignal::SramThresholdExceeded], Fast, &[|gpu, _| sram(gpu)]),
    call(
        &[
            GpuSignal::FabricState,
            GpuSignal::FabricStatus,
            GpuSignal::FabricHealth,
        ],
        Fast,
        &[|gpu, _| super::fabric::fabric(gpu)],
    ),
];

const SM: nvmlClockType_t = 1;
const MEMORY: nvmlClockType_t = 2;

/// Returns the `version` member of a structure: its size and its version number (NVML_STRUCT_VERSION).
pub(in crate::source::nvml) const fn version<T>(number: u32) -> u32 {
    size_of::<T>() as u32 | number << 24
}

fn number(ask: impl FnOnce(&mut u32) -> Result<(), Code>) -> Result<Vec<f64>, Code> {
    let mut value = 0;
    ask(&mut value)?;
    Ok(vec![f64::from(value)])
}

fn temperature(gpu: &Gpu, _: &mut Known<'_>) -> Result<Vec<f64>, Code> {
    let mut of = nvmlTemperature_t {
        version: version::<nvmlTemperature_t>(1),
        sensorType: 0,
        temperature: 0,
    };
    ask!(gpu, nvmlDeviceGetTemperatureV, &mut of)?;
    Ok(vec![f64::from(of.temperature)])
}

fn temperature_before(gpu: &Gpu, _: &mut Known<'_>) -> Result<Vec<f64>, Code> {
    number(|out| ask!(gpu, nvmlDeviceGetTemperature, 0, out))
}

/// Reads the margin to thermal slowdown, which GPUs report themselves from Hopper on.
fn margin(gpu: &Gpu, _: &mut Known<'_>) -> Result<Vec<f64>, Code> {
    let mut of = nvmlMarginTemperature_t {
        version: version::<nvmlMarginTemperature_t>(1),
        marginTemperature: 0,
    };
    ask!(gpu, nvmlDeviceGetMarginTemperature, &mut of)?;
    Ok(vec![f64::from(of.marginTemperature)])
}

/// Computes the margin for GPUs before Hopper: the slowdown temperature that the GPU reports minus the temperature that
/// was just read.
fn margin_to(gpu: &Gpu, which: nvmlTemperatureThresholds_t, known: &mut Known<'_>) -> Result<Vec<f64>, Code> {
    let limit = threshold(gpu, which, known)?;
    match known.readings.get(&GpuSignal::TemperatureC) {
        Some(Reading::Value(temperature)) => Ok(vec![limit - temperature]),
        Some(Reading::Missing(Missing::Error(_))) => Err(Code::UNKNOWN),
        _ => Err(Code::NOT_SUPPORTED),
    }
}

const SLOWDOWN: nvmlTemperatureThresholds_t = 1;
const MEM_MAX: nvmlTemperatureThresholds_t = 2;
const GPU_MAX: nvmlTemperatureThresholds_t = 3;

fn threshold(gpu: &Gpu, which: nvmlTemperatureThresholds_t, known: &mut Known<'_>) -> Result<f64, Code> {
    if let Some(limit) = known.limits.get(&which) {
        return Ok(*limit);
    }
    let limit = number(|out| ask!(gpu, nvmlDeviceGetTemperatureThreshold, which, out))?[0];
    known.limits.insert(which, limit);
    Ok(limit)
}

fn memory_margin(gpu: &Gpu, known: &mut Known<'_>) -> Result<Vec<f64>, Code> {
    const MEMORY_TEMPERATURE: u32 = 82;
    let limit = threshold(gpu, MEM_MAX, known)?;
    // SAFETY: the structure has only numbers, for which zero is a valid value.
    let mut field: nvmlFieldValue_t = unsafe { std::mem::zeroed() };
    field.fieldId = MEMORY_TEMPERATURE;
    ask!(gpu, nvmlDeviceGetFieldValues, 1, &mut field)?;
    Ok(vec![limit - super::fields::decode(&field)?])
}

fn clock(gpu: &Gpu, which: nvmlClockType_t) -> Result<Vec<f64>, Code> {
    number(|out| ask!(gpu, nvmlDeviceGetClockInfo, which, out))
}

fn clock_max(gpu: &Gpu, which: nvmlClockType_t) -> Result<Vec<f64>, Code> {
    number(|out| ask!(gpu, nvmlDeviceGetMaxClockInfo, which, out))
}

fn clock_set(gpu: &Gpu) -> Result<Vec<f64>, Code> {
    number(|out| ask!(gpu, nvmlDeviceGetApplicationsClock, SM, out))
}

fn clock_reasons(gpu: &Gpu, _: &mut Known<'_>) -> Result<Vec<f64>, Code> {
    let mut bits = 0;
    ask!(gpu, nvmlDeviceGetCurrentClocksEventReasons, &mut bits)?;
    Ok(vec![bits as f64])
}

fn clock_reasons_before(gpu: &Gpu, _: &mut Known<'_>) -> Result<Vec<f64>, Code> {
    let mut bits = 0;
    ask!(gpu, nvmlDeviceGetCurrentClocksThrottleReasons, &mut bits)?;
    Ok(vec![bits as f64])
}

fn power(gpu: &Gpu) -> Result<Vec<f64>, Code> {
    let milliwatts = number(|out| ask!(gpu, nvmlDeviceGetPowerUsage, out))?;
    Ok(vec![milliwatts[0] / 1e3])
}

fn power_limit(gpu: &Gpu) -> Result<Vec<f64>, Code> {
    let milliwatts = number(|out| ask!(gpu, nvmlDeviceGetEnforcedPowerLimit, out))?;
    Ok(vec![milliwatts[0] / 1e3])
}

fn utilization(gpu: &Gpu) -> Result<Vec<f64>, Code> {
    let mut of = nvmlUtilization_t { gpu: 0, memory: 0 };
    ask!(gpu, nvmlDeviceGetUtilizationRates, &mut of)?;
    Ok(vec![f64::from(of.gpu) / 100.0, f64::from(of.memory) / 100.0])
}

/// Reads used and total memory of a GPU or an instance. For an instance, this is the only reading.
pub(in crate::source::nvml) fn memory(gpu: &Gpu) -> Result<Vec<f64>, Code> {
    match memory_now(gpu) {
        Err(code) if code.is_unsupported() => memory_before(gpu),
        other => other,
    }
}

fn memory_now(gpu: &Gpu) -> Result<Vec<f64>, Code> {
    let mut of = nvmlMemory_v2_t {
        version: version::<nvmlMemory_v2_t>(2),
        total: 0,
        reserved: 0,
        free: 0,
        used: 0,
    };
    ask!(gpu, nvmlDeviceGetMemoryInfo_v2, &mut of)?;
    Ok(vec![of.used as f64, of.total as f64])
}

fn memory_before(gpu: &Gpu) -> Result<Vec<f64>, Code> {
    let mut of = nvmlMemory_t {
        total: 0,
        free: 0,
        used: 0,
    };
    ask!(gpu, nvmlDeviceGetMemoryInfo, &mut of)?;
    Ok(vec![of.used as f64, of.total as f64])
}

fn remap_banks(gpu: &Gpu) -> Result<Vec<f64>, Code> {
    let mut of = nvmlRowRemapperHistogramValues_t {
        max: 0,
        high: 0,
        partial: 0,
        low: 0,
        none: 0,
    };
    ask!(gpu, nvmlDeviceGetRowRemapperHistogram, &mut of)?;
    let all = of.max + of.high + of.partial + of.low + of.none;
    Ok([all, of.low, of.none].map(f64::from).to_vec())
}

/// Returns the number of links that are up. NVML reports a link that does not exist as an invalid argument.
fn links_up(gpu: &Gpu) -> Result<Vec<f64>, Code> {
    let mut up = 0;
    for link in 0..super::fields::MOST_LINKS {
        let mut state = 0;
        match ask!(gpu, nvmlDeviceGetNvLinkState, link, &mut state) {
            Ok(()) => up += u32::from(state != 0),
            Err(Code::INVALID_ARGUMENT) if link > 0 => break,
            // Older drivers know 18 links and return various errors for higher numbers.
            Err(_) if link >= super::fields::LINKS => break,
            Err(code) => return Err(code),
        }
    }
    Ok(vec![f64::from(up)])
}

fn sram(gpu: &Gpu) -> Result<Vec<f64>, Code> {
    // SAFETY: the structure has only numbers, for which zero is a valid value.
    let mut of: nvmlEccSramErrorStatus_t = unsafe { std::mem::zeroed() };
    of.version = version::<nvmlEccSramErrorStatus_t>(1);
    ask!(gpu, nvmlDeviceGetSramEccErrorStatus, &mut of)?;
    Ok(vec![f64::from(u32::from(of.bThresholdExceeded != 0))])
}

/// The calls that one GPU supports.
#[derive(Debug)]
pub struct Calls {
    /// Each call, with the index of the function that the first round (the probe) chose.
    made: Vec<(Call, usize)>,
    limits: BTreeMap<nvmlTemperatureThresholds_t, f64>,
}

impl Calls {
    /// Starts with all calls, none of them probed yet.
    pub fn new() -> Calls {
        Calls {
            made: CALLS.iter().map(|call| (*call, 0)).collect(),
            limits: BTreeMap::new(),
        }
    }

    /// Makes the calls that are due at `pace`, unless `out` already has their values. With `probe`, drops unsupported
    /// and unneeded calls, so that they are not made again.
    ///
    /// # Errors
    /// If the GPU does not respond at all.
    pub fn read(&mut self, gpu: &Gpu, pace: Pace, probe: bool, out: &mut Readings) -> Result<(), Code> {
        let limits = &mut self.limits;
        let mut fatal = None;
        self.made.retain_mut(|(call, variant)| {
            if call.pace > pace || fatal.is_some() {
                return true;
            }
            let is_read = |signal| out.get(signal).and_then(Reading::value).is_some();
            if call.signals.iter().all(is_read) {
                return !probe;
            }
            let mut result = Err(Code::NOT_SUPPORTED);
            while let Some(read) = call.reads.get(*variant) {
                let readings = &*out;
                result = read(
                    gpu,
                    &mut Known {
                        readings,
                        limits: &mut *limits,
                    },
                );
                if !probe || !result.as_ref().is_err_and(|code| code.is_unsupported()) {
                    break;
                }
                *variant += 1;
            }
            fatal = result.as_ref().err().copied().filter(|code| code.is_fatal());
            for (at, signal) in call.signals.iter().enumerate() {
                let reading = match &result {
                    Ok(values) => Reading::Value(values[at]),
                    Err(code) => Reading::Missing(code.missing()),
                };
                out.insert(*signal, reading);
            }
            !(probe && result.is_err_and(Code::is_unsupported))
        });
        fatal.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_versions_of_the_header() {
        // This is NVML_STRUCT_VERSION(Memory, 2) of nvml.h, for 40 bytes.
        assert_eq!(version::<nvmlMemory_v2_t>(2), 0x0200_0028);
        assert_eq!(version::<nvmlTemperature_t>(1), 0x0100_000c);
        assert_eq!(version::<nvmlMarginTemperature_t>(1), 0x0100_0008);
        assert_eq!(version::<nvmlEccSramErrorStatus_t>(1), 0x0100_0068);
        assert_eq!(version::<nvmlGpuFabricInfo_v2_t>(2), 0x0200_0024);
    }
}
