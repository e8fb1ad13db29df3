//! GPU performance monitoring. A sample is the time at which it was taken.

use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlGpmMetricsGet_t, nvmlGpmSample_t, nvmlGpmSupport_t};

use crate::profile::METRICS;
use crate::world::{INVALID_ARGUMENT, NOT_SUPPORTED, SUCCESS, device};
use crate::{code, put};

/// The object behind a sample's pointer: the device, and when the sample was taken.
#[derive(Default)]
struct Sample(Option<(usize, Instant)>);

/// See NVML.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpmQueryDeviceSupport(of: nvmlDevice_t, to: *mut nvmlGpmSupport_t) -> u32 {
    code(device(of as usize, "nvmlGpmQueryDeviceSupport").and_then(|of| {
        // SAFETY: null, or the caller's structure.
        let to = unsafe { to.as_mut() }.ok_or(INVALID_ARGUMENT)?;
        let supported = of.item("gpm_sm").is_ok() && of.instances() == 0;
        to.isSupportedDevice = u32::from(supported);
        Ok(())
    }))
}

/// See NVML.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpmSampleAlloc(to: *mut nvmlGpmSample_t) -> u32 {
    let sample = Box::into_raw(Box::<Sample>::default());
    // SAFETY: the caller's pointer.
    code(unsafe { put(to, sample.cast()) })
}

/// See NVML.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpmSampleFree(sample: nvmlGpmSample_t) -> u32 {
    if sample.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: nvmlGpmSampleAlloc allocated it, and the caller releases it.
    drop(unsafe { Box::from_raw(sample.cast::<Sample>()) });
    SUCCESS
}

/// See NVML.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpmSampleGet(of: nvmlDevice_t, sample: nvmlGpmSample_t) -> u32 {
    code(device(of as usize, "nvmlGpmSampleGet").and_then(|_| {
        // SAFETY: null, or from nvmlGpmSampleAlloc.
        let sample = unsafe { sample.cast::<Sample>().as_mut() }.ok_or(INVALID_ARGUMENT)?;
        sample.0 = Some((of as usize, Instant::now()));
        Ok(())
    }))
}

/// See NVML. The older sample comes first and must be at least 100 ms older than the newer one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpmMetricsGet(to: *mut nvmlGpmMetricsGet_t) -> u32 {
    // SAFETY: null, or the caller's structure.
    let Some(to) = (unsafe { to.as_mut() }) else {
        return INVALID_ARGUMENT;
    };
    let taken = [to.sample1, to.sample2].map(|sample| {
        // SAFETY: null, or from nvmlGpmSampleAlloc.
        let sample = unsafe { sample.cast::<Sample>().as_ref() };
        sample.and_then(|sample| sample.0)
    });
    let [Some((of, older)), Some((same, newer))] = taken else {
        return INVALID_ARGUMENT;
    };
    let apart = newer.checked_duration_since(older);
    if of != same || to.version != 1 || apart.is_none_or(|apart| apart < Duration::from_millis(100)) {
        return INVALID_ARGUMENT;
    }
    code(device(of, "nvmlGpmMetricsGet").map(|of| {
        for metric in to.metrics.iter_mut().take(to.numMetrics as usize) {
            let item = METRICS.iter().find(|(id, _)| *id == metric.metricId);
            match item.map_or(Err(NOT_SUPPORTED), |(_, item)| of.item(item)) {
                Ok(value) => (metric.nvmlReturn, metric.value) = (SUCCESS, value),
                Err(code) => metric.nvmlReturn = code,
            }
        }
    }))
}
