//! Initialization and device enumeration.

use std::ffi::{CStr, c_char};

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlPciInfo_t};

use crate::world::{self, INVALID_ARGUMENT, device};
use crate::{code, profile, put};

/// Bus numbers of an eight-GPU board.
const BUSES: [u32; 8] = [0x18, 0x2a, 0x3a, 0x5d, 0x9a, 0xab, 0xba, 0xdb];

/// See NVML.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> u32 {
    world::init()
}

/// See NVML.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> u32 {
    world::shutdown()
}

/// Copies a text into a caller's buffer.
///
/// # Safety
/// `to` is valid for writing `length` characters.
unsafe fn put_text(to: *mut c_char, length: u32, text: &str) -> Result<(), u32> {
    if text.len() >= length as usize {
        return Err(7);
    }
    for (at, byte) in text.bytes().chain([0]).enumerate() {
        // SAFETY: within the length, as just checked.
        unsafe { to.add(at).write(byte as c_char) };
    }
    Ok(())
}

/// See NVML.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetDriverVersion(to: *mut c_char, length: u32) -> u32 {
    // SAFETY: the caller's buffer has the length that it passed.
    code(world::view().and_then(|view| unsafe { put_text(to, length, &view.scenario.driver) }))
}

/// See NVML.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCount_v2(to: *mut u32) -> u32 {
    // SAFETY: the caller's pointer.
    code(world::view().and_then(|view| unsafe { put(to, view.scenario.gpus) }))
}

/// See NVML. A lost GPU has no handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: u32, to: *mut nvmlDevice_t) -> u32 {
    let handle = world::handle(index, None);
    let result = device(handle, "nvmlDeviceGetHandleByIndex_v2");
    // SAFETY: the caller's pointer.
    code(result.and_then(|_| unsafe { put(to, handle as nvmlDevice_t) }))
}

/// See NVML.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, to: *mut nvmlDevice_t) -> u32 {
    if uuid.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the caller's text ends in a zero byte.
    let wanted = unsafe { CStr::from_ptr(uuid) }.to_string_lossy();
    let found = world::view().and_then(|view| {
        let index = (0..view.scenario.gpus).find(|index| uuid_of(*index, None) == wanted);
        index.ok_or(28)
    });
    match found {
        // SAFETY: the caller's pointer.
        Ok(index) => unsafe { nvmlDeviceGetHandleByIndex_v2(index, to) },
        Err(code) => code,
    }
}

/// The UUID of a GPU or of an instance.
pub fn uuid_of(index: u32, instance: Option<u32>) -> String {
    match instance {
        None => format!("GPU-fa4e0000-0000-4000-8000-{index:012x}"),
        Some(instance) => format!("MIG-fa4e0000-0000-5000-{instance:04x}-{index:012x}"),
    }
}

/// See NVML.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUUID(of: nvmlDevice_t, to: *mut c_char, length: u32) -> u32 {
    let result = device(of as usize, "nvmlDeviceGetUUID");
    // SAFETY: the caller's buffer has the length that it passed.
    code(result.and_then(|of| unsafe { put_text(to, length, &uuid_of(of.index, of.instance)) }))
}

/// See NVML.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetName(of: nvmlDevice_t, to: *mut c_char, length: u32) -> u32 {
    let result = device(of as usize, "nvmlDeviceGetName");
    code(result.and_then(|of| {
        let scenario = &of.view.scenario;
        let own = scenario.model.as_deref();
        let model = own.unwrap_or_else(|| profile::model(&scenario.profile));
        let model = of
            .instance
            .map_or(model.into(), |_| format!("{model} MIG 3g.40gb"));
        // SAFETY: the caller's buffer has the length that it passed.
        unsafe { put_text(to, length, &model) }
    }))
}

/// See NVML. For an instance, returns the information about its GPU.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPciInfo_v3(of: nvmlDevice_t, to: *mut nvmlPciInfo_t) -> u32 {
    let result = device(of as usize, "nvmlDeviceGetPciInfo_v3");
    code(result.and_then(|of| {
        // SAFETY: the structure has only numbers, for which zero is valid.
        let mut info: nvmlPciInfo_t = unsafe { std::mem::zeroed() };
        info.domain = of.index / 8;
        info.bus = BUSES[of.index as usize % 8];
        let text = format!("{:08X}:{:02X}:00.0", info.domain, info.bus);
        // SAFETY: the buffer is in the structure.
        unsafe { put_text(info.busId.as_mut_ptr(), info.busId.len() as u32, &text) }?;
        // SAFETY: the caller's pointer.
        unsafe { put(to, info) }
    }))
}

/// See NVML.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigMode(of: nvmlDevice_t, now: *mut u32, pending: *mut u32) -> u32 {
    let result = device(of as usize, "nvmlDeviceGetMigMode");
    code(result.and_then(|of| {
        let mode = u32::from(of.instances() > 0);
        // SAFETY: the caller's pointers.
        unsafe { put(now, mode).and_then(|()| put(pending, mode)) }
    }))
}

/// See NVML.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMaxMigDeviceCount(of: nvmlDevice_t, to: *mut u32) -> u32 {
    // The number is the same on every GPU so far.
    let result = device(of as usize, "nvmlDeviceGetMaxMigDeviceCount");
    // SAFETY: the caller's pointer.
    code(result.and_then(|_| unsafe { put(to, 7) }))
}

/// See NVML.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(
    of: nvmlDevice_t,
    index: u32,
    to: *mut nvmlDevice_t,
) -> u32 {
    let result = device(of as usize, "nvmlDeviceGetMigDeviceHandleByIndex");
    code(result.and_then(|of| {
        if index >= of.instances() {
            return Err(6);
        }
        // SAFETY: the caller's pointer.
        unsafe { put(to, world::handle(of.index, Some(index)) as nvmlDevice_t) }
    }))
}
