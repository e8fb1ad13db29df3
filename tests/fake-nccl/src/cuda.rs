//! The CUDA driver. Codes are those of enum cudaError_enum.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_uint, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::memory;
use crate::scenario::{self, failure, scenario};
use crate::stream;

pub(crate) const INVALID_VALUE: i32 = 1;
const OUT_OF_MEMORY: i32 = 2;
const NOT_INITIALIZED: i32 = 3;
const NO_DEVICE: i32 = 100;
const INVALID_DEVICE: i32 = 101;
pub(crate) const INVALID_CONTEXT: i32 = 201;
pub(crate) const INVALID_HANDLE: i32 = 400;
pub(crate) const NOT_READY: i32 = 600;
/// Memory of one GPU. It is enough for tests, and small enough to test running out of it.
const MEMORY: usize = 1 << 30;

const NAMES: [(i32, &CStr, &CStr); 10] = [
    (0, c"CUDA_SUCCESS", c"no error"),
    (INVALID_VALUE, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
    (OUT_OF_MEMORY, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
    (
        NOT_INITIALIZED,
        c"CUDA_ERROR_NOT_INITIALIZED",
        c"initialization error",
    ),
    (
        NO_DEVICE,
        c"CUDA_ERROR_NO_DEVICE",
        c"no CUDA-capable device is detected",
    ),
    (
        INVALID_DEVICE,
        c"CUDA_ERROR_INVALID_DEVICE",
        c"invalid device ordinal",
    ),
    (
        INVALID_CONTEXT,
        c"CUDA_ERROR_INVALID_CONTEXT",
        c"invalid device context",
    ),
    (
        INVALID_HANDLE,
        c"CUDA_ERROR_INVALID_HANDLE",
        c"invalid resource handle",
    ),
    (NOT_READY, c"CUDA_ERROR_NOT_READY", c"device not ready"),
    (
        214,
        c"CUDA_ERROR_ECC_UNCORRECTABLE",
        c"uncorrectable ECC error encountered",
    ),
];

static IS_READY: AtomicBool = AtomicBool::new(false);

thread_local! {
    static CURRENT: Cell<Option<i32>> = const { Cell::new(None) };
}

/// Returns the GPU of this thread's context.
pub fn current() -> Option<i32> {
    CURRENT.get()
}

/// Checks at the start of each call whether the scenario makes it fail.
pub fn enter(function: &str) -> Result<(), i32> {
    match failure(function) {
        Some(code) => Err(code),
        None if IS_READY.load(Ordering::Relaxed) => Ok(()),
        None => Err(NOT_INITIALIZED),
    }
}

/// Converts a result to its code.
pub fn code(result: Result<(), i32>) -> i32 {
    result.err().unwrap_or(0)
}

/// Writes through a caller's pointer.
///
/// # Safety
/// `to` is null or valid for writing one `T`.
pub unsafe fn put<T>(to: *mut T, value: T) -> Result<(), i32> {
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: guaranteed by the caller.
    unsafe { to.write(value) };
    Ok(())
}

/// Runs work that takes time on a GPU, slowed down as the scenario says.
pub fn at_pace(device: i32, work: impl FnOnce()) {
    let began = Instant::now();
    work();
    let slow = scenario::gpu(device).slow;
    if slow > 1.0 {
        std::thread::sleep(began.elapsed().mul_f64(slow - 1.0).min(Duration::from_secs(10)));
    }
}

/// See CUDA.
#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: c_uint) -> i32 {
    if let Some(code) = failure("cuInit") {
        return code;
    }
    if scenario().gpus == 0 {
        return NO_DEVICE;
    }
    IS_READY.store(true, Ordering::Relaxed);
    0
}

/// See CUDA.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(to: *mut i32) -> i32 {
    // SAFETY: the caller's pointer.
    failure("cuDriverGetVersion").unwrap_or_else(|| code(unsafe { put(to, scenario().cuda) }))
}

/// See CUDA.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(to: *mut i32) -> i32 {
    // SAFETY: the caller's pointer.
    code(enter("cuDeviceGetCount").and_then(|()| unsafe { put(to, scenario().gpus) }))
}

/// See CUDA.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(to: *mut i32, ordinal: i32) -> i32 {
    code(enter("cuDeviceGet").and_then(|()| {
        if !(0..scenario().gpus).contains(&ordinal) {
            return Err(INVALID_DEVICE);
        }
        // SAFETY: the caller's pointer.
        unsafe { put(to, ordinal) }
    }))
}

unsafe fn put_text(to: *mut c_char, length: i32, text: &str) -> Result<(), i32> {
    if to.is_null() || text.len() >= usize::try_from(length).unwrap_or(0) {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller's buffer has the length that the caller passed, as just checked.
    unsafe {
        to.cast::<u8>()
            .copy_from_nonoverlapping(text.as_ptr(), text.len());
        to.add(text.len()).write(0);
    }
    Ok(())
}

/// See CUDA.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(to: *mut c_char, length: i32, _device: i32) -> i32 {
    let entered = enter("cuDeviceGetName");
    // SAFETY: the caller's buffer.
    code(entered.and_then(|()| unsafe { put_text(to, length, "NVIDIA H100 80GB HBM3") }))
}

/// See CUDA. The UUIDs are those of fake-nvml.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(to: *mut [u8; 16], device: i32) -> i32 {
    let mut uuid = [0xfa, 0x4e, 0, 0, 0, 0, 0x40, 0, 0x80, 0, 0, 0, 0, 0, 0, 0];
    uuid[15] = device as u8;
    // SAFETY: the caller's pointer.
    code(enter("cuDeviceGetUuid_v2").and_then(|()| unsafe { put(to, uuid) }))
}

/// See CUDA.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetPCIBusId(to: *mut c_char, length: i32, device: i32) -> i32 {
    let text = format!("0000:{:02X}:00.0", 0x18 + device * 16);
    // SAFETY: the caller's buffer.
    code(enter("cuDeviceGetPCIBusId").and_then(|()| unsafe { put_text(to, length, &text) }))
}

/// See CUDA. A context is the number of its GPU plus one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(to: *mut *mut c_void, device: i32) -> i32 {
    if scenario::gpu(device).open_hang {
        std::thread::sleep(Duration::from_secs(3600));
    }
    let context = (device as usize + 1) as *mut c_void;
    // SAFETY: the caller's pointer.
    code(enter("cuDevicePrimaryCtxRetain").and_then(|()| unsafe { put(to, context) }))
}

/// See CUDA.
#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(_device: i32) -> i32 {
    code(enter("cuDevicePrimaryCtxRelease_v2"))
}

/// See CUDA.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: *mut c_void) -> i32 {
    code(
        enter("cuCtxSetCurrent").map(|()| CURRENT.set((context as usize).checked_sub(1).map(|at| at as i32))),
    )
}

fn allocate(function: &str, bytes: usize) -> Result<usize, i32> {
    enter(function)?;
    current().ok_or(INVALID_CONTEXT)?;
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    let address = if bytes > MEMORY {
        0
    } else {
        memory::allocate(bytes)
    };
    if address == 0 {
        Err(OUT_OF_MEMORY)
    } else {
        Ok(address)
    }
}

/// See CUDA.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(to: *mut u64, bytes: usize) -> i32 {
    // SAFETY: the caller's pointer.
    code(allocate("cuMemAlloc_v2", bytes).and_then(|address| unsafe { put(to, address as u64) }))
}

/// See CUDA. Waits until the GPU is idle.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(address: u64) -> i32 {
    let freed = enter("cuMemFree_v2").map(|()| {
        // Waits, as CUDA does, because operations in progress may use the memory.
        current().iter().for_each(|device| stream::wait_for_all(*device));
        memory::free(address as usize)
    });
    code(freed.and_then(|freed| if freed { Ok(()) } else { Err(INVALID_VALUE) }))
}

/// See CUDA.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocHost_v2(to: *mut *mut c_void, bytes: usize) -> i32 {
    // SAFETY: the caller's pointer.
    code(allocate("cuMemAllocHost_v2", bytes).and_then(|address| unsafe { put(to, address as *mut c_void) }))
}

/// See CUDA.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeHost(address: *mut c_void) -> i32 {
    cuMemFree_v2(address as u64)
}

unsafe fn describe(
    code: i32,
    to: *mut *const c_char,
    text: impl Fn(&(i32, &CStr, &CStr)) -> *const c_char,
) -> i32 {
    match NAMES.iter().find(|(known, ..)| *known == code) {
        // SAFETY: the caller's pointer; the text is static.
        Some(row) => self::code(unsafe { put(to, text(row)) }),
        None => INVALID_VALUE,
    }
}

/// See CUDA.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(code: i32, to: *mut *const c_char) -> i32 {
    // SAFETY: the caller's pointer.
    unsafe { describe(code, to, |(_, name, _)| name.as_ptr()) }
}

/// See CUDA.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(code: i32, to: *mut *const c_char) -> i32 {
    // SAFETY: the caller's pointer.
    unsafe { describe(code, to, |(_, _, text)| text.as_ptr()) }
}
