//! Event sets.

use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlEventData_t, nvmlEventSet_t};

use crate::drivers::{Driver, Kind};
use crate::world::{self, INVALID_ARGUMENT, SUCCESS, device};
use crate::{code, put};

const TIMEOUT: u32 = 10;

/// Returns all event types in the driver's header, as a mask.
fn all(driver: Driver) -> u64 {
    driver.names(Kind::Event).fold(0, |all, (_, bit)| all | bit)
}

/// The object behind a set's pointer. Each entry has a GPU and a mask of event types.
#[derive(Default)]
struct Set(Mutex<Vec<(u32, u64)>>);

/// See NVML.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetCreate(to: *mut nvmlEventSet_t) -> u32 {
    if let Err(code) = world::view() {
        return code;
    }
    let set = Box::into_raw(Box::<Set>::default());
    // SAFETY: the caller's pointer.
    code(unsafe { put(to, set.cast()) })
}

/// See NVML.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetFree(set: nvmlEventSet_t) -> u32 {
    if set.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: nvmlEventSetCreate allocated it, and the caller releases it.
    drop(unsafe { Box::from_raw(set.cast::<Set>()) });
    SUCCESS
}

/// See NVML.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetSupportedEventTypes(of: nvmlDevice_t, to: *mut u64) -> u32 {
    let result = device(of as usize, "nvmlDeviceGetSupportedEventTypes");
    // SAFETY: the caller's pointer.
    code(result.and_then(|of| unsafe { put(to, all(of.view.driver)) }))
}

/// See NVML.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceRegisterEvents(of: nvmlDevice_t, mask: u64, set: nvmlEventSet_t) -> u32 {
    code(device(of as usize, "nvmlDeviceRegisterEvents").and_then(|of| {
        // SAFETY: the pointer is null or from nvmlEventSetCreate.
        let set = unsafe { set.cast::<Set>().as_ref() }.ok_or(INVALID_ARGUMENT)?;
        if mask & !all(of.view.driver) != 0 {
            return Err(INVALID_ARGUMENT);
        }
        set.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((of.index, mask));
        Ok(())
    }))
}

/// See NVML.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetWait_v2(
    set: nvmlEventSet_t,
    to: *mut nvmlEventData_t,
    timeout_ms: u32,
) -> u32 {
    // SAFETY: the pointer is null or from nvmlEventSetCreate.
    let Some(set) = (unsafe { set.cast::<Set>().as_ref() }) else {
        return INVALID_ARGUMENT;
    };
    let until = Instant::now() + Duration::from_millis(timeout_ms.into());
    loop {
        let registered = set.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match world::event(&registered) {
            Err(code) => return code,
            // SAFETY: the caller's pointer.
            Ok(Some(data)) => return code(unsafe { put(to, data) }),
            Ok(None) if Instant::now() >= until => return TIMEOUT,
            // A real wait sleeps in the kernel. This one polls the scenario file.
            Ok(None) => sleep(Duration::from_millis(200)),
        }
    }
}
