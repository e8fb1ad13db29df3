//! Signals that are read by field number, many in one call.
//!
//! Numbers, units and scopes: nvml.h, "Field Identifiers", <https://docs.nvidia.com/deploy/nvml-api/group__nvmlFieldValueEnums.html>

use std::collections::BTreeMap;

use nvml_wrapper_sys::bindings::nvmlFieldValue_t;
use paceline_health::event::{GpuSignal, Reading};

use super::code::Code;
use super::library::{Gpu, ask};
use super::pace::Pace::{self, Fast, Slow};

/// What a field number is asked of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The GPU.
    Device,
    /// All of its NVLinks together.
    AllLinks,
    /// Each of its NVLinks; the signal is their sum.
    EachLink,
}

/// A field. Fields of the same signal are added.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// What it reads.
    pub signal: GpuSignal,
    /// Its number before driver 580.82.
    pub id: u32,
    /// Of what.
    pub scope: Scope,
    /// How many of it make one of the signal's unit.
    pub per: f64,
    /// How often.
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

/// Every field that is read. Those from 206 on came with Blackwell; of them and of the bytes the driver has the sum over
/// all links, the state of a link it has for each (Hopper and later; see `calls` for GPUs before).
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
    field(GpuSignal::NvlinkCount, 91, 1.0, Slow),
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

/// Most NVLinks of a GPU (NVML_NVLINK_MAX_LINKS).
const LINKS: u32 = 18;
/// Fields in one call.
const BATCH: usize = 64;

/// A field number as this driver has it: 251 to 255 moved up by 18 with 580.82, where nvml.h of CUDA 13 Update 1 put
/// the power smoothing fields in their place.
pub fn number(id: u32, driver: &str) -> u32 {
    let mut parts = driver.split('.').map_while(|part| part.parse::<u32>().ok());
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    match id {
        251..=255 if version >= (580, 82) => id + 18,
        _ => id,
    }
}

/// What a field holds.
pub fn decode(field: &nvmlFieldValue_t) -> Result<f64, Code> {
    Code::check(field.nvmlReturn)?;
    // SAFETY: every member is a number that all bit patterns are values of, and the union is as large as the largest.
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

/// The fields of one GPU that are worth asking for, and what is known of the others.
pub struct Fields {
    /// The fast ones first.
    asked: Vec<(&'static Field, nvmlFieldValue_t)>,
    /// The latency that the driver reported, microseconds, by signal, where somebody wants to know.
    pub latency_us: Option<BTreeMap<GpuSignal, u64>>,
}

impl Fields {
    /// All of them, not probed yet.
    pub fn new(driver: &str) -> Fields {
        let mut asked = Vec::new();
        for field in FIELDS {
            let scopes = match field.scope {
                Scope::Device => 0..1,
                Scope::AllLinks => u32::MAX - 1..u32::MAX,
                Scope::EachLink => 0..LINKS,
            };
            for scope in scopes {
                // SAFETY: numbers only, for which zero is a value.
                let mut value: nvmlFieldValue_t = unsafe { std::mem::zeroed() };
                value.fieldId = number(field.id, driver);
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

    /// Reads those of `pace` or faster into `out`. With `probe`, what is not supported is not asked for again.
    ///
    /// # Errors
    /// When the whole call fails.
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
                let result = decode(value).map(|number| number / field.per);
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

/// Adds up the fields of a signal. What is not supported adds nothing; an error spoils the sum.
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
            ("535.104.05", 251),
            ("580.65.06", 251),
            ("580.82", 269),
            ("580.82.07", 269),
            ("581.1", 269),
            ("", 251),
        ] {
            assert_eq!(number(251, driver), wanted, "{driver}");
        }
        assert_eq!(number(230, "590.44"), 230);
        let asked = Fields::new("590.44").asked;
        let ids: Vec<u32> = asked.iter().map(|(_, value)| value.fieldId).collect();
        assert!([269, 270, 271].iter().all(|id| ids.contains(id)) && !ids.contains(&251));
    }

    #[test]
    fn values_of_every_type() {
        // SAFETY: numbers only.
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
        assert_eq!(decode(&field), Ok(0.5));
        field.nvmlReturn = 3;
        assert_eq!(decode(&field), Err(Code::NOT_SUPPORTED));
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
