//! Signals that are read by field number. One call reads many of them.
//!
//! Numbers, units and scopes: nvml.h, "Field Identifiers", <https://docs.nvidia.com/deploy/nvml-api/group__nvmlFieldValueEnums.html>

use std::collections::BTreeMap;

use nvml_wrapper_sys::bindings::field_id::NVML_FI_DEV_RETIRED_PENDING;
use nvml_wrapper_sys::bindings::nvmlFieldValue_t;
use paceline_health::event::{GpuSignal, Reading};

use super::super::code::Code;
use super::super::library::{Gpu, ask};
use super::super::pace::Pace::{self, Fast, Slow};

/// What a field number refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The GPU itself.
    Device,
    /// All NVLinks of the GPU together.
    AllLinks,
    /// The state of each NVLink separately. The signal is the number of links that are up.
    EachLink,
}

/// A field. Values of fields with the same signal are added up.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// The signal that it contributes to.
    pub signal: GpuSignal,
    /// Its number in driver 575.51. See [`number`] for other drivers.
    pub id: u32,
    /// What the number refers to.
    pub scope: Scope,
    /// Number of field units per unit of the signal.
    pub per: f64,
    /// How often it is read.
    pub pace: Pace,
}

const fn field(signal: GpuSignal, id: u32, per: f64, pace: Pace) -> Field {
    let scope = Scope::Device;
    Field {
        signal,
        id,
        scope,
        per,
        pace,
    }
}

const fn links(scope: Scope, signal: GpuSignal, id: u32, per: f64, pace: Pace) -> Field {
    Field {
        signal,
        id,
        scope,
        per,
        pace,
    }
}

/// NVML_FI_DEV_PERF_POLICY_THERMAL, nanoseconds: the only counter of thermal throttling before driver 575.51.
const POLICY_THERMAL: u32 = 75;
/// NVML_FI_DEV_NVLINK_LINK_COUNT.
const LINK_COUNT: u32 = 91;

impl Field {
    /// Returns what a value adds to the signal. For a link's state, returns one if the link is up or asleep
    /// (NVML_NVLINK_STATE_ACTIVE, NVML_NVLINK_STATE_SLEEP).
    fn amount(&self, value: f64) -> f64 {
        match self.scope {
            Scope::EachLink => f64::from(u8::from(value == 1.0 || value == 2.0)),
            Scope::Device | Scope::AllLinks => value / self.per,
        }
    }
}

/// All fields. Those from 206 on came with Blackwell. For these and for bytes, the driver returns the sum over all
/// links; for the state, it returns one value per link (Hopper and later; see `calls` for older GPUs).
pub const FIELDS: &[Field] = &[
    field(GpuSignal::EccEnabled, 1, 1.0, Slow),
    field(GpuSignal::EccEnabledPending, 2, 1.0, Slow),
    field(GpuSignal::EccCorrected, 3, 1.0, Fast),
    field(GpuSignal::EccUncorrected, 4, 1.0, Fast),
    field(GpuSignal::EccCorrectedAggregate, 5, 1.0, Slow),
    field(GpuSignal::EccUncorrectedAggregate, 6, 1.0, Slow),
    field(GpuSignal::RetiredPagesSingleBit, 29, 1.0, Fast),
    field(GpuSignal::RetiredPagesDoubleBit, 30, 1.0, Fast),
    field(GpuSignal::RetiredPagesPending, 31, 1.0, Fast),
    field(GpuSignal::NvlinkCrcErrors, 38, 1.0, Fast),
    field(GpuSignal::NvlinkCrcErrors, 45, 1.0, Fast),
    field(GpuSignal::NvlinkReplays, 52, 1.0, Fast),
    field(GpuSignal::NvlinkRecoveries, 59, 1.0, Fast),
    field(GpuSignal::ThrottlePowerNs, 74, 1.0, Fast),
    field(GpuSignal::ThrottleSyncNs, 76, 1.0, Fast),
    field(GpuSignal::MemoryTemperatureC, 82, 1.0, Slow),
    field(GpuSignal::EnergyJ, 83, 1e3, Slow),
    field(GpuSignal::NvlinkCount, LINK_COUNT, 1.0, Slow),
    field(GpuSignal::PcieReplays, 94, 1.0, Fast),
    links(
        Scope::AllLinks,
        GpuSignal::NvlinkSentBytes,
        138,
        1.0 / 1024.0,
        Slow,
    ),
    links(
        Scope::AllLinks,
        GpuSignal::NvlinkReceivedBytes,
        139,
        1.0 / 1024.0,
        Slow,
    ),
    field(GpuSignal::RowsRemappedCorrectable, 142, 1.0, Fast),
    field(GpuSignal::RowsRemappedUncorrectable, 143, 1.0, Fast),
    field(GpuSignal::RemapPending, 144, 1.0, Fast),
    field(GpuSignal::RemapFailed, 145, 1.0, Fast),
    links(Scope::EachLink, GpuSignal::NvlinkUp, 165, 1.0, Fast),
    field(GpuSignal::PowerW, 185, 1e3, Fast),
    field(GpuSignal::PowerInstantW, 186, 1e3, Slow),
    field(GpuSignal::PowerLimitDefaultW, 189, 1e3, Slow),
    field(GpuSignal::PowerLimitW, 190, 1e3, Slow),
    field(GpuSignal::PcieSentBytes, 197, 1.0, Slow),
    field(GpuSignal::PcieReceivedBytes, 198, 1.0, Slow),
    links(Scope::AllLinks, GpuSignal::NvlinkErrors, 206, 1.0, Fast),
    links(Scope::AllLinks, GpuSignal::NvlinkErrors, 207, 1.0, Fast),
    links(Scope::AllLinks, GpuSignal::NvlinkErrors, 208, 1.0, Fast),
    links(Scope::AllLinks, GpuSignal::NvlinkErrors, 211, 1.0, Fast),
    links(Scope::AllLinks, GpuSignal::NvlinkRecoveriesFailed, 214, 1.0, Fast),
    links(Scope::AllLinks, GpuSignal::NvlinkRecoveries, 215, 1.0, Fast),
    links(Scope::AllLinks, GpuSignal::NvlinkSymbolErrors, 221, 1.0, Fast),
    field(GpuSignal::RecoveryAction, 230, 1.0, Fast),
    field(GpuSignal::ThrottleThermalSwNs, 251, 1.0, Fast),
    field(GpuSignal::ThrottleThermalHwNs, 252, 1.0, Fast),
    field(GpuSignal::ThrottleBrakeNs, 253, 1.0, Fast),
];

/// Minimum number of NVLinks to query, also used if the GPU does not report their number. It is NVML_NVLINK_MAX_LINKS
/// of drivers before 610.
pub(in crate::source::nvml) const LINKS: u32 = 18;
/// Maximum number of NVLinks to query. NVML_NVLINK_MAX_LINKS is 36 from driver 610 on. A driver rejects links beyond
/// its own maximum.
pub(in crate::source::nvml) const MOST_LINKS: u32 = 144;
/// Number of fields in one call.
const BATCH: usize = 64;

/// Returns the field number in this driver; `None` if the driver has no such field.
///
/// According to nvml.h of each driver, the numbers 251 to 253 are PWR_SMOOTHING_ENABLED, PWR_SMOOTHING_PRIV_LVL and
/// PWR_SMOOTHING_IMM_RAMP_DOWN_ENABLED up to 570. In 575.51 and 580.65 they are CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN,
/// HW_THERM_SLOWDOWN and HW_POWER_BRAKE_SLOWDOWN. From 580.82 on, the latter are 269 to 271, and 251 to 253 are power
/// smoothing again.
pub fn number(id: u32, driver: &str) -> Option<u32> {
    let mut parts = driver.split('.').map_while(|part| part.parse::<u32>().ok());
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    match id {
        251..=253 if version >= (580, 82) => Some(id + 18),
        251..=253 if version >= (575, 51) => Some(id),
        251 => Some(POLICY_THERMAL),
        252 | 253 => None,
        _ => Some(id),
    }
}

/// Returns the number of NVLinks whose state to query.
fn links_of(gpu: &Gpu) -> u32 {
    // SAFETY: the structure has only numbers, for which zero is a valid value.
    let mut field: nvmlFieldValue_t = unsafe { std::mem::zeroed() };
    field.fieldId = LINK_COUNT;
    let asked = ask!(gpu, nvmlDeviceGetFieldValues, 1, &mut field);
    let count = asked.and_then(|()| decode(&field)).unwrap_or_default();
    (count as u32).clamp(LINKS, MOST_LINKS)
}

/// The last field number of the range with ECC counters and modes, and retired pages.
const LAST_OF_ECC: u32 = NVML_FI_DEV_RETIRED_PENDING;

/// Returns the value of a field.
pub fn decode(field: &nvmlFieldValue_t) -> Result<f64, Code> {
    Code::check(field.nvmlReturn)?;
    if field.fieldId <= LAST_OF_ECC && field.valueType == 0 {
        // NVML bug 2032468 (DCGM has the same workaround): these values are in `ullVal`, but their type is given as the
        // default, double.
        // SAFETY: every member is a number for which all bit patterns are valid.
        return Ok(unsafe { field.value.ullVal } as f64);
    }
    // SAFETY: every member is a number for which all bit patterns are valid, and the union is as large as the largest.
    unsafe {
        match field.valueType {
            0 => Ok(field.value.dVal),
            1 => Ok(f64::from(field.value.uiVal)),
            2 => Ok(field.value.ulVal as f64),
            3 => Ok(field.value.ullVal as f64),
            4 => Ok(field.value.sllVal as f64),
            5 => Ok(f64::from(field.value.siVal)),
            6 => Ok(f64::from(field.value.usVal)),
            _ => Err(Code::ARGUMENT_VERSION_MISMATCH),
        }
    }
}

/// The fields that one GPU supports.
pub struct Fields {
    /// Supported fields, the fast ones first.
    asked: Vec<(&'static Field, nvmlFieldValue_t)>,
    /// The latency that the driver reports for each signal, microseconds, if enabled.
    pub latency_us: Option<BTreeMap<GpuSignal, u64>>,
}

impl Fields {
    /// Starts with all fields, none of them probed yet.
    pub fn new(gpu: &Gpu) -> Fields {
        Fields::of(&gpu.library.driver, links_of(gpu))
    }

    /// Chooses the fields for a driver, and for a GPU with this many NVLinks.
    fn of(driver: &str, links: u32) -> Fields {
        let mut asked = Vec::new();
        for field in FIELDS {
            let Some(number) = number(field.id, driver) else {
                continue;
            };
            let scopes = match field.scope {
                Scope::Device => 0..1,
                Scope::AllLinks => u32::MAX - 1..u32::MAX,
                Scope::EachLink => 0..links,
            };
            for scope in scopes {
                // SAFETY: the structure has only numbers, for which zero is a valid value.
                let mut value: nvmlFieldValue_t = unsafe { std::mem::zeroed() };
                value.fieldId = number;
                value.scopeId = if field.scope == Scope::AllLinks {
                    u32::MAX
                } else {
                    scope
                };
                asked.push((field, value));
            }
        }
        asked.sort_by_key(|(field, _)| field.pace);
        Fields {
            asked,
            latency_us: None,
        }
    }

    /// Reads the fields that are due at `pace` into `out`. With `probe`, drops unsupported fields, so that they are not
    /// read again.
    ///
    /// # Errors
    /// If the whole call fails.
    pub fn read(
        &mut self,
        gpu: &Gpu,
        pace: Pace,
        probe: bool,
        out: &mut BTreeMap<GpuSignal, Reading>,
    ) -> Result<(), Code> {
        let wanted = self.asked.partition_point(|(field, _)| field.pace <= pace);
        let mut sums: BTreeMap<GpuSignal, Result<f64, Code>> = BTreeMap::new();
        let mut unsupported = Vec::new();
        for (first, batch) in (0..).step_by(BATCH).zip(self.asked[..wanted].chunks(BATCH)) {
            let mut values: Vec<nvmlFieldValue_t> = batch.iter().map(|(_, value)| *value).collect();
            let count = values.len() as i32;
            ask!(gpu, nvmlDeviceGetFieldValues, count, values.as_mut_ptr())?;
            for (at, ((field, _), value)) in (first..).zip(batch.iter().zip(&values)) {
                let result = decode(value).map(|number| field.amount(number));
                if result.is_err_and(Code::is_unsupported) {
                    unsupported.push(at);
                }
                if let Err(code) = result
                    && code.is_fatal()
                {
                    return Err(code);
                }
                if let Some(latency_us) = &mut self.latency_us {
                    *latency_us.entry(field.signal).or_default() += value.latencyUsec.max(0) as u64;
                }
                add(&mut sums, field.signal, result);
            }
        }
        if probe {
            let mut at = 0;
            self.asked.retain(|_| {
                at += 1;
                !unsupported.contains(&(at - 1))
            });
        }
        for (signal, sum) in sums {
            let reading = sum.map_or_else(|code| Reading::Missing(code.missing()), Reading::Value);
            out.insert(signal, reading);
        }
        Ok(())
    }
}

/// Adds up the fields of a signal. An unsupported field adds nothing; any other error makes the sum invalid.
fn add(sums: &mut BTreeMap<GpuSignal, Result<f64, Code>>, signal: GpuSignal, result: Result<f64, Code>) {
    let sum = match (sums.get(&signal).copied(), result) {
        (None, result) => result,
        (Some(Ok(sum)), Ok(more)) => Ok(sum + more),
        (Some(known), Err(code)) if code.is_unsupported() => known,
        (Some(Err(code)), result) if code.is_unsupported() => result,
        (Some(Err(code)), _) | (_, Err(code)) => Err(code),
    };
    sums.insert(signal, sum);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_move_with_the_driver() {
        for (driver, wanted) in [
            ("535.104.05", [Some(75), None, None]),
            ("550.163.01", [Some(75), None, None]),
            ("570.211.01", [Some(75), None, None]),
            ("575.51.02", [Some(251), Some(252), Some(253)]),
            ("580.65.06", [Some(251), Some(252), Some(253)]),
            ("580.82", [Some(269), Some(270), Some(271)]),
            ("580.82.07", [Some(269), Some(270), Some(271)]),
            ("615.12", [Some(269), Some(270), Some(271)]),
            ("999.1", [Some(269), Some(270), Some(271)]),
            ("", [Some(75), None, None]),
        ] {
            assert_eq!([251, 252, 253].map(|id| number(id, driver)), wanted, "{driver}");
        }
        assert_eq!(number(230, "590.44"), Some(230));
        let asked = Fields::of("590.44", LINKS).asked;
        let ids: Vec<u32> = asked.iter().map(|(_, value)| value.fieldId).collect();
        assert!([269, 270, 271].iter().all(|id| ids.contains(id)) && !ids.contains(&251));
    }

    #[test]
    fn values_of_every_type() {
        // SAFETY: the structure has only numbers, for which zero is a valid value.
        let mut field: nvmlFieldValue_t = unsafe { std::mem::zeroed() };
        field.value.sllVal = -7;
        for (kind, wanted) in [
            (4, Ok(-7.0)),
            (5, Ok(-7.0)),
            (7, Err(Code::ARGUMENT_VERSION_MISMATCH)),
        ] {
            field.valueType = kind;
            assert_eq!(decode(&field), wanted, "{kind}");
        }
        field.value.dVal = 0.5;
        field.valueType = 0;
        field.fieldId = 197;
        assert_eq!(decode(&field), Ok(0.5));
        // ECC is on; the value looks as in drivers with bug 2032468.
        field.fieldId = 1;
        field.value.ullVal = 1;
        assert_eq!(decode(&field), Ok(1.0));
        field.nvmlReturn = 3;
        assert_eq!(decode(&field), Err(Code::NOT_SUPPORTED));
    }

    #[test]
    fn links_that_sleep_are_up() {
        let state = FIELDS.iter().find(|field| field.id == 165).unwrap();
        let states = [0.0, 1.0, 2.0, 3.0].map(|value| state.amount(value));
        assert_eq!(states, [0.0, 1.0, 1.0, 0.0]);
    }

    #[test]
    fn sums_know_what_is_missing() {
        let check = |parts: &[Result<f64, Code>], wanted| {
            let mut sums = BTreeMap::new();
            parts
                .iter()
                .for_each(|part| add(&mut sums, GpuSignal::NvlinkReplays, *part));
            assert_eq!(sums[&GpuSignal::NvlinkReplays], wanted, "{parts:?}");
        };
        let (none, bad) = (Err(Code::NOT_SUPPORTED), Err(Code::UNKNOWN));
        check(&[Ok(1.0), Ok(2.0)], Ok(3.0));
        check(&[none, Ok(2.0), none], Ok(2.0));
        check(&[none, none], none);
        check(&[Ok(1.0), bad, Ok(2.0)], bad);
        check(&[bad, none], bad);
    }
}
