//! Memory of the simulated GPUs. It is host memory in which all allocations are tracked, so that a wrong address is an
//! error, as on a GPU, and not a crash.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

static KNOWN: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

/// The content of new memory, which is no valid result.
const DIRT: u8 = 0xA5;

/// Allocates and tracks memory. Returns zero if there is none left.
pub fn allocate(bytes: usize) -> usize {
    // SAFETY: this is a plain allocation of at least one byte.
    let memory = unsafe { libc::memalign(256, bytes.max(1)) };
    if memory.is_null() {
        return 0;
    }
    // SAFETY: the memory was just allocated with this length.
    unsafe { memory.cast::<u8>().write_bytes(DIRT, bytes) };
    known().insert(memory as usize, bytes);
    memory as usize
}

/// Frees memory that was allocated here. Returns false for any other address.
pub fn free(address: usize) -> bool {
    let is_known = known().remove(&address).is_some();
    if is_known {
        // SAFETY: the address came from memalign, and its entry is removed, so it is freed only once.
        unsafe { libc::free(address as *mut libc::c_void) };
    }
    is_known
}

/// Returns true if these bytes all belong to one allocation.
pub fn holds(address: usize, bytes: usize) -> bool {
    let known = known();
    let before = known.range(..=address).next_back();
    before.is_some_and(|(start, length)| address + bytes <= start + length)
}

fn known() -> std::sync::MutexGuard<'static, BTreeMap<usize, usize>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the bytes at an address.
///
/// # Safety
/// [`holds`] returned true, and the bytes are not freed or written in the meantime, which CUDA also requires.
pub unsafe fn bytes<'a>(address: usize, length: usize) -> &'a [u8] {
    // SAFETY: guaranteed by the caller.
    unsafe { std::slice::from_raw_parts(address as *const u8, length) }
}

/// Returns the bytes at an address for writing.
///
/// # Safety
/// The same as for [`bytes`], and the bytes are not read in the meantime.
pub unsafe fn bytes_mut<'a>(address: usize, length: usize) -> &'a mut [u8] {
    // SAFETY: guaranteed by the caller.
    unsafe { std::slice::from_raw_parts_mut(address as *mut u8, length) }
}
