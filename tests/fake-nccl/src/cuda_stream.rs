//! Implements stream operations of the CUDA driver, which are copies and events.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;

use crate::cuda::{
    INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, NOT_READY, at_pace, code, current, enter, put,
};
use crate::memory;
use crate::scenario;
use crate::stream::{EVENTS, Event, STREAMS, Stream};

/// Queues a copy in a stream. Pageable host memory is not tracked here, so only the GPU's side is checked.
fn copy(
    function: &'static str,
    (to, check_to): (usize, bool),
    (from, check_from): (usize, bool),
    bytes: usize,
    stream: *mut c_void,
) -> i32 {
    code(enter(function).and_then(|()| {
        if (check_to && !memory::holds(to, bytes)) || (check_from && !memory::holds(from, bytes)) {
            return Err(INVALID_VALUE);
        }
        let stream = STREAMS.find(stream as usize).ok_or(INVALID_HANDLE)?;
        let device = stream.device;
        let is_wrong = scenario::gpu(device).wrong == function;
        stream.then(move || {
            // SAFETY: the GPU's side was checked; the caller guarantees the other side and that they do not overlap.
            at_pace(device, || unsafe {
                (to as *mut u8).copy_from_nonoverlapping(from as *const u8, bytes);
                if is_wrong && bytes > 0 {
                    *(to as *mut u8).add(bytes - 1) ^= 0x10;
                }
            });
        });
        Ok(())
    }))
}

/// See CUDA.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: u64,
    from: *const c_void,
    bytes: usize,
    stream: *mut c_void,
) -> i32 {
    copy(
        "cuMemcpyHtoDAsync_v2",
        (to as usize, true),
        (from as usize, false),
        bytes,
        stream,
    )
}

/// See CUDA.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: u64,
    bytes: usize,
    stream: *mut c_void,
) -> i32 {
    copy(
        "cuMemcpyDtoHAsync_v2",
        (to as usize, false),
        (from as usize, true),
        bytes,
        stream,
    )
}

/// See CUDA.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: *mut c_void) -> i32 {
    copy(
        "cuMemcpyDtoDAsync_v2",
        (to as usize, true),
        (from as usize, true),
        bytes,
        stream,
    )
}

/// See CUDA.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(to: *mut *mut c_void, _flags: c_uint) -> i32 {
    code(enter("cuStreamCreate").and_then(|()| {
        let device = current().ok_or(INVALID_CONTEXT)?;
        let handle = STREAMS.insert(Arc::new(Stream::new(device)));
        // SAFETY: the caller's pointer.
        unsafe { put(to, handle as *mut c_void) }
    }))
}

/// See CUDA.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(stream: *mut c_void) -> i32 {
    code(
        enter("cuStreamDestroy_v2")
            .and_then(|()| STREAMS.remove(stream as usize).map(drop).ok_or(INVALID_HANDLE)),
    )
}

/// See CUDA.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamQuery(stream: *mut c_void) -> i32 {
    code(enter("cuStreamQuery").and_then(|()| {
        let stream = STREAMS.find(stream as usize).ok_or(INVALID_HANDLE)?;
        if stream.is_idle() { Ok(()) } else { Err(NOT_READY) }
    }))
}

/// See CUDA.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(stream: *mut c_void) -> i32 {
    code(enter("cuStreamSynchronize").and_then(|()| {
        STREAMS.find(stream as usize).ok_or(INVALID_HANDLE)?.wait();
        Ok(())
    }))
}

/// See CUDA.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(to: *mut *mut c_void, _flags: c_uint) -> i32 {
    let handle = || EVENTS.insert(Arc::new(Event::default())) as *mut c_void;
    // SAFETY: the caller's pointer.
    code(enter("cuEventCreate").and_then(|()| unsafe { put(to, handle()) }))
}

/// See CUDA.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(event: *mut c_void) -> i32 {
    code(
        enter("cuEventDestroy_v2")
            .and_then(|()| EVENTS.remove(event as usize).map(drop).ok_or(INVALID_HANDLE)),
    )
}

/// See CUDA.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: *mut c_void, stream: *mut c_void) -> i32 {
    code(enter("cuEventRecord").and_then(|()| {
        let stream = STREAMS.find(stream as usize).ok_or(INVALID_HANDLE)?;
        EVENTS.find(event as usize).ok_or(INVALID_HANDLE)?.record(&stream);
        Ok(())
    }))
}

/// See CUDA.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(event: *mut c_void) -> i32 {
    code(enter("cuEventQuery").and_then(|()| {
        let event = EVENTS.find(event as usize).ok_or(INVALID_HANDLE)?;
        if event.is_passed() { Ok(()) } else { Err(NOT_READY) }
    }))
}

/// See CUDA.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime(to: *mut f32, from: *mut c_void, until: *mut c_void) -> i32 {
    code(enter("cuEventElapsedTime").and_then(|()| {
        let from = EVENTS.find(from as usize).ok_or(INVALID_HANDLE)?;
        let until = EVENTS.find(until as usize).ok_or(INVALID_HANDLE)?;
        let since = until.since(&from).ok_or(NOT_READY)?;
        // SAFETY: the caller's pointer.
        unsafe { put(to, since.as_secs_f32() * 1e3) }
    }))
}
