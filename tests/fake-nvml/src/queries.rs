//! NVML's queries of a device.

use nvml_wrapper_sys::bindings::*;

use crate::drivers::Kind;
use crate::profile::{FIELDS, OTHER_FIELDS, POWER_SMOOTHING, SIGNED, UNSIGNED, UNSIGNED_LONG_LONG};
use crate::world::{Device, INVALID_ARGUMENT, NOT_SUPPORTED, device};
use crate::{check_version, code, put};

/// Defines queries that each return one item as an unsigned number.
macro_rules! number {
    ($($function:ident($($argument:ident),*) = $item:expr;)*) => {$(
        /// See NVML.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $function(of: nvmlDevice_t, $($argument: u32,)* to: *mut u32) -> u32 {
            code(device(of as usize, stringify!($function)).and_then(|of| {
                let value = of.item($item)?;
                // SAFETY: the caller's pointer.
                unsafe { put(to, value as u32) }
            }))
        }
    )*};
}

number! {
    nvmlDeviceGetTemperature(_sensor) = "temperature";
    nvmlDeviceGetTemperatureThreshold(which) = match which {
        1 => "threshold_slowdown",
        2 => "threshold_mem_max",
        3 => "threshold_gpu_max",
        _ => "none",
    };
    nvmlDeviceGetClockInfo(which) = if which == 1 { "sm_clock" } else { "memory_clock" };
    nvmlDeviceGetMaxClockInfo(which) = if which == 1 { "sm_clock_max" } else { "memory_clock_max" };
    nvmlDeviceGetApplicationsClock(_which) = "sm_clock_set";
    nvmlDeviceGetPowerUsage() = "power_mw";
    nvmlDeviceGetEnforcedPowerLimit() = "power_limit_mw";
    nvmlDeviceGetCurrPcieLinkGeneration() = "pcie_gen";
    nvmlDeviceGetCurrPcieLinkWidth() = "pcie_width";
    nvmlDeviceGetMaxPcieLinkGeneration() = "pcie_gen_max";
    nvmlDeviceGetMaxPcieLinkWidth() = "pcie_width_max";
}

/// Defines queries that each fill in the caller's structure.
macro_rules! structure {
    ($($function:ident(|$of:ident, $to:ident: $kind:ty| $fill:expr);)*) => {$(
        /// See NVML.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $function(of: nvmlDevice_t, to: *mut $kind) -> u32 {
            code(device(of as usize, stringify!($function)).and_then(|$of| {
                // SAFETY: null, or the caller's structure.
                let $to = unsafe { to.as_mut() }.ok_or(INVALID_ARGUMENT)?;
                $fill
            }))
        }
    )*};
}

structure! {
    nvmlDeviceGetTemperatureV(|of, to: nvmlTemperature_t| {
        check_version::<nvmlTemperature_t>(of.view.driver, "nvmlTemperature_v1", to.version)?;
        to.temperature = of.item("temperature")? as i32;
        Ok(())
    });
    nvmlDeviceGetMarginTemperature(|of, to: nvmlMarginTemperature_t| {
        check_version::<nvmlMarginTemperature_t>(of.view.driver, "nvmlMarginTemperature_v1", to.version)?;
        to.marginTemperature = of.item("margin")? as i32;
        Ok(())
    });
    nvmlDeviceGetCurrentClocksEventReasons(|of, to: u64| {
        *to = of.item("clock_reasons")? as u64;
        Ok(())
    });
    nvmlDeviceGetUtilizationRates(|of, to: nvmlUtilization_t| {
        if of.instances() > 0 {
            return Err(NOT_SUPPORTED);
        }
        to.gpu = of.item("utilization")? as u32;
        to.memory = of.item("memory_utilization")? as u32;
        Ok(())
    });
    nvmlDeviceGetMemoryInfo_v2(|of, to: nvmlMemory_v2_t| {
        check_version::<nvmlMemory_v2_t>(of.view.driver, "nvmlMemory_v2", to.version)?;
        // Each instance has an equal share of the memory.
        let parts = of.instance.map_or(1.0, |_| f64::from(of.instances()));
        to.total = (of.item("memory_total")? / parts) as u64;
        to.used = (of.item("memory_used")? / parts) as u64;
        to.free = to.total - to.used.min(to.total);
        Ok(())
    });
    nvmlDeviceGetRowRemapperHistogram(|of, to: nvmlRowRemapperHistogramValues_t| {
        to.max = of.item("remap_max")? as u32;
        to.high = of.item("remap_high")? as u32;
        to.partial = of.item("remap_partial")? as u32;
        to.low = of.item("remap_low")? as u32;
        to.none = of.item("remap_none")? as u32;
        Ok(())
    });
    nvmlDeviceGetSramEccErrorStatus(|of, to: nvmlEccSramErrorStatus_t| {
        check_version::<nvmlEccSramErrorStatus_t>(of.view.driver, "nvmlEccSramErrorStatus_v1", to.version)?;
        to.bThresholdExceeded = of.item("sram_exceeded")? as u32;
        Ok(())
    });
}

/// See NVML. Accepts version 2 of the structure, and writes only that part.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuFabricInfoV(
    of: nvmlDevice_t,
    to: *mut nvmlGpuFabricInfo_v2_t,
) -> u32 {
    code(device(of as usize, "nvmlDeviceGetGpuFabricInfoV").and_then(|of| {
        // SAFETY: null, or the caller's structure.
        let to = unsafe { to.as_mut() }.ok_or(INVALID_ARGUMENT)?;
        check_version::<nvmlGpuFabricInfo_v2_t>(of.view.driver, "nvmlGpuFabricInfo_v2", to.version)?;
        to.state = of.item("fabric_state")? as u8;
        to.status = of.item("fabric_status")? as u32;
        to.healthMask = of.item("fabric_health")? as u32;
        Ok(())
    }))
}

/// See NVML.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    of: nvmlDevice_t,
    count: *mut u32,
    to: *mut nvmlProcessInfo_t,
) -> u32 {
    code(
        device(of as usize, "nvmlDeviceGetComputeRunningProcesses_v3").and_then(|of| {
            // SAFETY: null, or the caller's counter.
            let count = unsafe { count.as_mut() }.ok_or(INVALID_ARGUMENT)?;
            let processes = of.view.gpu(of.index).map_or(&[][..], |gpu| &gpu.processes);
            let room = *count as usize;
            *count = processes.len() as u32;
            if processes.len() > room {
                return Err(7);
            }
            for (at, pid) in processes.iter().enumerate() {
                let info = nvmlProcessInfo_t {
                    pid: *pid,
                    usedGpuMemory: 1 << 30,
                    gpuInstanceId: u32::MAX,
                    computeInstanceId: u32::MAX,
                };
                // SAFETY: the caller has room for the number that it passed.
                unsafe { to.add(at).write(info) };
            }
            Ok(())
        }),
    )
}

/// See NVML.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetNvLinkState(of: nvmlDevice_t, link: u32, to: *mut u32) -> u32 {
    code(device(of as usize, "nvmlDeviceGetNvLinkState").and_then(|of| {
        if link >= links(&of) || f64::from(link) >= of.item("nvlink_count")? {
            return Err(INVALID_ARGUMENT);
        }
        let up = f64::from(link) < of.item("nvlink_up")?;
        // SAFETY: the caller's pointer.
        unsafe { put(to, u32::from(up)) }
    }))
}

/// See NVML. The call itself succeeds, and each field has its own return code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetFieldValues(
    of: nvmlDevice_t,
    count: i32,
    values: *mut nvmlFieldValue_t,
) -> u32 {
    code(device(of as usize, "nvmlDeviceGetFieldValues").and_then(|of| {
        let count = usize::try_from(count).map_err(|_| INVALID_ARGUMENT)?;
        for at in 0..count {
            // SAFETY: the caller's array has the length that it passed.
            let value = unsafe { &mut *values.add(at) };
            value.latencyUsec = 3;
            value.nvmlReturn = code(field(&of, value));
        }
        Ok(())
    }))
}

/// Returns the driver's maximum number of links per GPU.
fn links(of: &Device) -> u32 {
    let links = of.view.driver.number(Kind::Constant, "NVML_NVLINK_MAX_LINKS");
    links.map_or(0, |links| links as u32)
}

/// Returns a field by this driver's number. A number that its header does not define is an invalid argument.
fn field(of: &Device, value: &mut nvmlFieldValue_t) -> Result<(), u32> {
    let names = of.view.driver.fields(value.fieldId);
    let known = FIELDS.iter().find(|(name, ..)| names.contains(name));
    let (name, item, kind) = match (known, names.first()) {
        (Some(known), _) => *known,
        (None, Some(name)) if name.starts_with(POWER_SMOOTHING.0) => (*name, POWER_SMOOTHING.1, UNSIGNED),
        (None, Some(name)) => (*name, OTHER_FIELDS, UNSIGNED),
        (None, None) => return Err(INVALID_ARGUMENT),
    };
    let mut number = of.item(item)?;
    // The state is per link (from Hopper on). The counters new in Blackwell cover all links.
    match name {
        "NVML_FI_DEV_NVLINK_GET_STATE" => {
            if of.view.scenario.profile == "a100" {
                return Err(NOT_SUPPORTED);
            }
            if value.scopeId >= links(of) {
                return Err(INVALID_ARGUMENT);
            }
            number = f64::from(u32::from(f64::from(value.scopeId) < number));
        }
        _ if value.scopeId == u32::MAX => {}
        "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX" | "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX" => {
            number /= of.item("nvlink_count")?;
        }
        _ if name.starts_with("NVML_FI_DEV_NVLINK_COUNT_") => return Err(INVALID_ARGUMENT),
        _ => {}
    }
    value.valueType = kind;
    match kind {
        UNSIGNED => value.value.uiVal = number as u32,
        UNSIGNED_LONG_LONG => value.value.ullVal = number as u64,
        SIGNED => value.value.siVal = number as i32,
        _ => return Err(NOT_SUPPORTED),
    }
    Ok(())
}
