//! cuBLAS: one matrix product, which is really computed. Codes are those of cublasStatus_t.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use crate::cuda::{at_pace, put};
use crate::math::{from_brain, from_half};
use crate::memory;
use crate::scenario::{self, failure};
use crate::stream::{Handles, STREAMS};

const NOT_INITIALIZED: i32 = 1;
const INVALID_VALUE: i32 = 7;
const NOT_SUPPORTED: i32 = 15;

/// The handles, each with its stream.
static HANDLES: Handles<Mutex<usize>> = Handles::new();

fn status(function: &str, call: impl FnOnce() -> Result<(), i32>) -> i32 {
    failure(function).unwrap_or_else(|| call().err().unwrap_or(0))
}

/// See cuBLAS.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasCreate_v2(to: *mut *mut c_void) -> i32 {
    status("cublasCreate_v2", || {
        crate::cuda::current().ok_or(NOT_INITIALIZED)?;
        let handle = HANDLES.insert(Arc::default());
        // SAFETY: the caller's pointer.
        unsafe { put(to, handle as *mut c_void) }.map_err(|_| INVALID_VALUE)
    })
}

/// See cuBLAS.
#[unsafe(no_mangle)]
pub extern "C" fn cublasDestroy_v2(handle: *mut c_void) -> i32 {
    status("cublasDestroy_v2", || {
        HANDLES.remove(handle as usize).map(drop).ok_or(NOT_INITIALIZED)
    })
}

/// See cuBLAS.
#[unsafe(no_mangle)]
pub extern "C" fn cublasSetStream_v2(handle: *mut c_void, stream: *mut c_void) -> i32 {
    status("cublasSetStream_v2", || {
        let handle = HANDLES.find(handle as usize).ok_or(NOT_INITIALIZED)?;
        *handle.lock().unwrap_or_else(PoisonError::into_inner) = stream as usize;
        Ok(())
    })
}

/// See cuBLAS.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasGetVersion_v2(_handle: *mut c_void, to: *mut i32) -> i32 {
    status("cublasGetVersion_v2", || {
        // SAFETY: the caller's pointer.
        unsafe { put(to, 130_100) }.map_err(|_| INVALID_VALUE)
    })
}

/// Reads an element of a matrix.
type Load = fn(&[u8], usize) -> f32;

/// Returns the element size and the load function of a cudaDataType_t.
fn load(kind: i32) -> Option<(usize, Load)> {
    Some(match kind {
        0 => (4, |from, at| {
            f32::from_le_bytes([from[4 * at], from[4 * at + 1], from[4 * at + 2], from[4 * at + 3]])
        }),
        2 => (2, |from, at| from_half([from[2 * at], from[2 * at + 1]])),
        14 => (2, |from, at| from_brain([from[2 * at], from[2 * at + 1]])),
        _ => return None,
    })
}

/// See cuBLAS. Computes C = alpha A B + beta C on column-major matrices, without transposition. The output is float and
/// is accumulated in float.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasGemmEx(
    handle: *mut c_void,
    transpose_a: i32,
    transpose_b: i32,
    m: i32,
    n: i32,
    k: i32,
    alpha: *const c_void,
    a: u64,
    a_type: i32,
    lda: i32,
    b: u64,
    b_type: i32,
    ldb: i32,
    beta: *const c_void,
    c: u64,
    c_type: i32,
    ldc: i32,
    compute: i32,
    _algorithm: i32,
) -> i32 {
    status("cublasGemmEx", || {
        let handle = HANDLES.find(handle as usize).ok_or(NOT_INITIALIZED)?;
        let stream = *handle.lock().unwrap_or_else(PoisonError::into_inner);
        let stream = STREAMS.find(stream).ok_or(INVALID_VALUE)?;
        let (width, read) = load(a_type).ok_or(NOT_SUPPORTED)?;
        // Accepts only CUBLAS_COMPUTE_32F and its TF32 variant.
        if a_type != b_type || c_type != 0 || transpose_a + transpose_b != 0 || ![68, 77].contains(&compute) {
            return Err(NOT_SUPPORTED);
        }
        if alpha.is_null() || beta.is_null() || m.min(n).min(k) < 1 || lda < m || ldb < k || ldc < m {
            return Err(INVALID_VALUE);
        }
        // SAFETY: pointers to one float each, in host mode, which is cuBLAS's default.
        let (alpha, beta) = unsafe { (*alpha.cast::<f32>(), *beta.cast::<f32>()) };
        let [m, n, k, lda, ldb, ldc] = [m, n, k, lda, ldb, ldc].map(|of| of as usize);
        let (a_bytes, b_bytes, c_bytes) = (lda * k * width, ldb * n * width, ldc * n * 4);
        let (a, b, c) = (a as usize, b as usize, c as usize);
        if !memory::holds(a, a_bytes) || !memory::holds(b, b_bytes) || !memory::holds(c, c_bytes) {
            return Err(INVALID_VALUE);
        }
        let device = stream.device;
        // Makes the result wrong if the scenario says so: the first column is computed with twice B.
        let is_wrong = scenario::gpu(device).wrong == "cublasGemmEx";
        stream.then(move || {
            at_pace(device, || {
                // SAFETY: just checked; the caller keeps them until the stream has passed this point.
                let (a, b, c) = unsafe {
                    (
                        memory::bytes(a, a_bytes),
                        memory::bytes(b, b_bytes),
                        memory::bytes_mut(c, c_bytes),
                    )
                };
                for (column, out) in c.chunks_exact_mut(4 * ldc).enumerate() {
                    for (row, to) in out.as_chunks_mut::<4>().0.iter_mut().take(m).enumerate() {
                        let sum: f32 = (0..k)
                            .map(|at| read(a, row + at * lda) * read(b, at + column * ldb))
                            .sum();
                        let sum = if is_wrong && column == 0 { 2.0 * sum } else { sum };
                        *to = (alpha * sum
                            + if beta == 0.0 {
                                0.0
                            } else {
                                beta * f32::from_le_bytes(*to)
                            })
                        .to_le_bytes();
                    }
                }
            })
        });
        Ok(())
    })
}
