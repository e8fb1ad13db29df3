//! Signals that have a function of their own.
//!
//! Source: <https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html>

use std::collections::BTreeMap;

use nvml_wrapper_sys::bindings::*;
use paceline_health::event::{GpuSignal, Reading};

use super::code::Code;
use super::library::{Gpu, ask};
use super::pace::Pace::{self, Fast, Slow};

/// One function (or the one before it, on an older driver) and the signals that it gives, in its order.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// What it reads.
    pub signals: &'static [GpuSignal],
    /// How often.
    pub pace: Pace,
    read: fn(&Gpu) -> Result<Vec<f64>, Code>,
}

const fn call(signals: &'static [GpuSignal], pace: Pace, read: fn(&Gpu) -> Result<Vec<f64>, Code>) -> Call {
    Call { signals, pace, read }
}

/// Every call. Where a field gives the signal too, the call is for drivers that lack the field.
pub const CALLS: &[Call] = &[
    call(&[GpuSignal::TemperatureC], Fast, temperature),
    call(&[GpuSignal::MarginC], Fast, margin),
    call(&[GpuSignal::MemoryMarginC], Slow, memory_margin),
    call(&[GpuSignal::SmClockMhz], Fast, |gpu| clock(gpu, SM)),
    call(&[GpuSignal::MemoryClockMhz], Fast, |gpu| clock(gpu, MEMORY)),
    call(&[GpuSignal::SmClockMaxMhz], Slow, |gpu| clock_max(gpu, SM)),
    call(&[GpuSignal::MemoryClockMaxMhz], Slow, |gpu| {
        clock_max(gpu, MEMORY)
    }),
    call(&[GpuSignal::SmClockSetMhz], Slow, clock_set),
    call(&[GpuSignal::ClockReasons], Fast, clock_reasons),
    call(&[GpuSignal::PowerW], Fast, power),
    call(&[GpuSignal::PowerLimitW], Slow, power_limit),
    call(
        &[GpuSignal::UtilizationRatio, GpuSignal::MemoryBusyRatio],
        Fast,
        utilization,
    ),
    call(
        &[GpuSignal::MemoryUsedBytes, GpuSignal::MemoryTotalBytes],
        Slow,
        memory,
    ),
    call(&[GpuSignal::PcieGen], Fast, |gpu| {
        number(|out| ask!(gpu, nvmlDeviceGetCurrPcieLinkGeneration, out))
    }),
    call(&[GpuSignal::PcieWidth], Fast, |gpu| {
        number(|out| ask!(gpu, nvmlDeviceGetCurrPcieLinkWidth, out))
    }),
    call(&[GpuSignal::PcieGenMax], Slow, |gpu| {
        number(|out| ask!(gpu, nvmlDeviceGetMaxPcieLinkGeneration, out))
    }),
    call(&[GpuSignal::PcieWidthMax], Slow, |gpu| {
        number(|out| ask!(gpu, nvmlDeviceGetMaxPcieLinkWidth, out))
    }),
    call(
        &[
            GpuSignal::RemapBanks,
            GpuSignal::RemapBanksLow,
            GpuSignal::RemapBanksNone,
        ],
        Slow,
        remap_banks,
    ),
    call(&[GpuSignal::NvlinkUp], Fast, links_up),
    call(&[GpuSignal::SramThresholdExceeded], Fast, sram),
    call(
        &[
            GpuSignal::FabricState,
            GpuSignal::FabricStatus,
            GpuSignal::FabricHealth,
        ],
        Fast,
        fabric,
    ),
];

const SM: nvmlClockType_t = 1;
const MEMORY: nvmlClockType_t = 2;

/// The `version` member of a structure: its size and its number (NVML_STRUCT_VERSION).
pub(super) const fn version<T>(number: u32) -> u32 {
    size_of::<T>() as u32 | number << 24
}

fn number(ask: impl FnOnce(&mut u32) -> Result<(), Code>) -> Result<Vec<f64>, Code> {
    let mut value = 0;
    ask(&mut value)?;
    Ok(vec![f64::from(value)])
}

/// The answer of the second where the first is not to be had.
fn or_else<T>(first: Result<T, Code>, second: impl FnOnce() -> Result<T, Code>) -> Result<T, Code> {
    match first {
        Err(code) if code.is_unsupported() => second(),
        other => other,
    }
}

fn temperature(gpu: &Gpu) -> Result<Vec<f64>, Code> {
    let mut of = nvmlTemperature_t {
        version: version::<nvmlTemperature_t>(1),
        sensorType: 0,
        temperature: 0,
    };
    let new = ask!(gpu, nvmlDeviceGetTemperatureV, &mut of).map(|()| vec![f64::from(of.temperature)]);
    or_else(new, || number(|out| ask!(gpu, nvmlDeviceGetTemperature, 0, out)))
}

/// From Hopper on the GPU itself says how far it is from slowing down. Before, it says where it does.
fn margin(gpu: &Gpu) -> Result<Vec<f64>, Code> {
    let mut of = nvmlMarginTemperature_t {
        version: version::<nvmlMarginTemperature_t>(1),
        marginTemperature: 0,
    };
    let own = ask!(gpu, nvmlDeviceGetMarginTemperature, &mut of);
    or_else(own.map(|()| vec![f64::from(of.marginTemperature)]), || {
        let limit = or_else(threshold(gpu, GPU_MAX), || threshold(gpu, SLOWDOWN))?;
        Ok(vec![limit - temperature(gpu)?[0]])
    })
}

const SLOWDOWN: nvmlTemperatureThresholds_t = 1;
const MEM_MAX: nvmlTemperatureThresholds_t = 2;
const GPU_MAX: nvmlTemperatureThresholds_t = 3;

fn threshold(gpu: &Gpu, which: nvmlTemperatureThresholds_t) -> Result<f64, Code> {
    Ok(number(|out| ask!(gpu, nvmlDeviceGetTemperatureThreshold, which, out))?[0])
}

fn memory_margin(gpu: &Gpu) -> Result<Vec<f64>, Code> {
    const MEMORY_TEMPERATURE: u32 = 82;
    let limit = threshold(gpu, MEM_MAX)?;
    // SAFETY: numbers only, for which zero is a value.
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

fn clock_reasons(gpu: &Gpu) -> Result<Vec<f64>, Code> {
    let mut bits = 0;
    let new = ask!(gpu, nvmlDeviceGetCurrentClocksEventReasons, &mut bits);
    or_else(new, || {
        ask!(gpu, nvmlDeviceGetCurrentClocksThrottleReasons, &mut bits)
    })?;
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

pub(super) fn memory(gpu: &Gpu) -> Result<Vec<f64>, Code> {
    let mut of = nvmlMemory_v2_t {
        version: version::<nvmlMemory_v2_t>(2),
        total: 0,
        reserved: 0,
        free: 0,
        used: 0,
    };
    let new = ask!(gpu, nvmlDeviceGetMemoryInfo_v2, &mut of).map(|()| vec![of.used as f64, of.total as f64]);
    or_else(new, || {
        let mut of = nvmlMemory_t {
            total: 0,
            free: 0,
            used: 0,
        };
        ask!(gpu, nvmlDeviceGetMemoryInfo, &mut of)?;
        Ok(vec![of.used as f64, of.total as f64])
    })
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

/// Links that are up; a link that the GPU has not is an invalid argument.
fn links_up(gpu: &Gpu) -> Result<Vec<f64>, Code> {
    let mut up = 0;
    for link in 0..NVML_NVLINK_MAX_LINKS {
        let mut state = 0;
        match ask!(gpu, nvmlDeviceGetNvLinkState, link, &mut state) {
            Ok(()) => up += u32::from(state != 0),
            Err(Code::INVALID_ARGUMENT) if link > 0 => break,
            Err(code) => return Err(code),
        }
    }
    Ok(vec![f64::from(up)])
}

fn sram(gpu: &Gpu) -> Result<Vec<f64>, Code> {
    // SAFETY: numbers only, for which zero is a value.
    let mut of: nvmlEccSramErrorStatus_t = unsafe { std::mem::zeroed() };
    of.version = version::<nvmlEccSramErrorStatus_t>(1);
    ask!(gpu, nvmlDeviceGetSramEccErrorStatus, &mut of)?;
    Ok(vec![f64::from(u32::from(of.bThresholdExceeded != 0))])
}

/// Version 2 of the structure has the health mask and is older than version 3, which shares its members.
fn fabric(gpu: &Gpu) -> Result<Vec<f64>, Code> {
    // SAFETY: numbers only, for which zero is a value.
    let mut of: nvmlGpuFabricInfoV_t = unsafe { std::mem::zeroed() };
    of.version = version::<nvmlGpuFabricInfo_v2_t>(2);
    ask!(gpu, nvmlDeviceGetGpuFabricInfoV, &mut of)?;
    if of.state == 0 {
        return Err(Code::NOT_SUPPORTED);
    }
    Ok([u32::from(of.state), of.status, fabric_faults(of.healthMask)]
        .map(f64::from)
        .to_vec())
}

/// One bit for each part of the health mask that reports trouble. Parts say 1 for trouble and 2 for none; the last
/// one says 1 for none, and higher what is wrong with the configuration.
fn fabric_faults(mask: u32) -> u32 {
    let two_bits = (0..4).filter(|part| mask >> (2 * part) & 3 == 1);
    let bits: u32 = two_bits.map(|part| 1 << part).sum();
    bits | u32::from(mask >> 8 & 15 >= 2) << 4
}

/// The calls that are worth making on one GPU.
#[derive(Debug)]
pub struct Calls(Vec<Call>);

impl Calls {
    /// All of them, not probed yet.
    pub fn new() -> Calls {
        Calls(CALLS.to_vec())
    }

    /// Makes those of `pace` or faster; what `out` has a value of already is left. With `probe`, what is not supported
    /// or not needed is not asked for again.
    ///
    /// # Errors
    /// When the GPU does not answer at all.
    pub fn read(
        &mut self,
        gpu: &Gpu,
        pace: Pace,
        probe: bool,
        out: &mut BTreeMap<GpuSignal, Reading>,
    ) -> Result<(), Code> {
        let mut fatal = None;
        self.0.retain(|call| {
            if call.pace > pace || fatal.is_some() {
                return true;
            }
            let known = |signal| out.get(signal).and_then(Reading::value).is_some();
            if call.signals.iter().all(known) {
                return !probe;
            }
            let result = (call.read)(gpu);
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
        // NVML_STRUCT_VERSION(Memory, 2) of nvml.h: 40 bytes.
        assert_eq!(version::<nvmlMemory_v2_t>(2), 0x0200_0028);
        assert_eq!(version::<nvmlTemperature_t>(1), 0x0100_000c);
        assert_eq!(version::<nvmlMarginTemperature_t>(1), 0x0100_0008);
        assert_eq!(version::<nvmlEccSramErrorStatus_t>(1), 0x0100_0068);
        assert_eq!(version::<nvmlGpuFabricInfo_v2_t>(2), 0x0200_0024);
    }

    #[test]
    fn fabric_health() {
        for (mask, wanted) in [
            (0, 0),
            // Nothing wrong: 2 in each part, 1 in the last.
            (0b0001_1010_1010, 0),
            // Bandwidth degraded.
            (0b0001_1010_1001, 1),
            // A route is unhealthy, and there are too few links.
            (0b0101_1001_1010, 0b1_0100),
        ] {
            assert_eq!(fabric_faults(mask), wanted, "{mask:#b}");
        }
    }
}
