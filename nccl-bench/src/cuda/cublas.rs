//! cuBLAS: the product of square matrices. <https://docs.nvidia.com/cuda/cublas/#cublasgemmex>

use std::ffi::c_void;
use std::path::Path;
use std::sync::Arc;

use super::driver::CudaError;
use super::dynamic::{Loaded, functions};
use super::gpu::{Gpu, Memory};
use super::places::CUBLAS;
use super::stream::Stream;

functions! {
    /// The functions of cuBLAS.
    Functions {
        create: "cublasCreate_v2": fn(*mut *mut c_void) -> i32,
        destroy: "cublasDestroy_v2": fn(*mut c_void) -> i32,
        set_stream: "cublasSetStream_v2": fn(*mut c_void, *mut c_void) -> i32,
        version: "cublasGetVersion_v2": fn(*mut c_void, *mut i32) -> i32,
        gemm: "cublasGemmEx": fn(
            *mut c_void, i32, i32, i32, i32, i32, *const c_void, u64, i32, i32, u64, i32, i32, *const c_void, u64, i32, i32,
            i32, i32,
        ) -> i32,
    }
}

/// Element types of the operands. Accumulation is always in 32-bit floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gemm {
    /// bfloat16, on tensor cores.
    Bf16,
    /// 32-bit floats. Each product is exact, because TF32 is not used.
    F32,
}

impl Gemm {
    /// Returns the bytes per element of A and B. An element of C has four bytes.
    pub fn width(self) -> usize {
        match self {
            Gemm::Bf16 => 2,
            Gemm::F32 => 4,
        }
    }

    /// Returns the cudaDataType_t of the type.
    fn code(self) -> i32 {
        match self {
            Gemm::Bf16 => 14,
            Gemm::F32 => 0,
        }
    }
}

/// CUDA_R_32F.
const FLOAT: i32 = 0;
/// CUBLAS_COMPUTE_32F.
const COMPUTE: i32 = 68;
/// CUBLAS_GEMM_DEFAULT.
const DEFAULT: i32 = -1;

/// cuBLAS on one GPU and one stream.
#[derive(Debug)]
pub struct Blas {
    functions: Functions,
    handle: *mut c_void,
    /// The library's version. 130100 means 13.1.0.
    pub version: i32,
    /// Keeps the GPU open as long as the handle.
    _gpu: Arc<Gpu>,
}

impl Blas {
    /// Opens the library at `path`, or the system's library if there is no path.
    ///
    /// # Errors
    /// Returns an error if there is no library, or if it does not work with the driver.
    pub fn open(path: Option<&Path>, stream: &Stream) -> Result<Blas, CudaError> {
        let functions = Functions::find(&Loaded::open(&CUBLAS, path)?)?;
        stream.gpu().enter()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the signature is from the header; the pointer is valid for the call. The same holds below.
        check("cublasCreate", unsafe { (functions.create)(&mut handle) })?;
        let mut blas = Blas {
            functions,
            handle,
            version: 0,
            _gpu: Arc::clone(stream.gpu()),
        };
        // SAFETY: as above.
        check("cublasSetStream", unsafe {
            (functions.set_stream)(handle, stream.handle())
        })?;
        // SAFETY: as above.
        check("cublasGetVersion", unsafe {
            (functions.version)(handle, &mut blas.version)
        })?;
        Ok(blas)
    }

    /// Queues the product C = A B of `n` × `n` matrices.
    ///
    /// # Errors
    /// Returns the errors of cuBLAS.
    pub fn multiply(
        &self,
        kind: Gemm,
        n: usize,
        a: &Memory,
        b: &Memory,
        c: &Memory,
    ) -> Result<(), CudaError> {
        debug_assert!(a.bytes().min(b.bytes()) >= n * n * kind.width() && c.bytes() >= n * n * 4);
        let (one, zero, size) = (1.0f32, 0.0f32, n as i32);
        let (one, zero) = ((&raw const one).cast(), (&raw const zero).cast());
        // SAFETY: the signature is from the header; the matrices have the stated sizes; the scalars are read during the
        // call (host pointer mode, the default of a handle).
        check("cublasGemmEx", unsafe {
            (self.functions.gemm)(
                self.handle,
                0,
                0,
                size,
                size,
                size,
                one,
                a.address(),
                kind.code(),
                size,
                b.address(),
                kind.code(),
                size,
                zero,
                c.address(),
                FLOAT,
                size,
                COMPUTE,
                DEFAULT,
            )
        })
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        unsafe { (self.functions.destroy)(self.handle) };
    }
}

fn check(call: &'static str, code: i32) -> Result<(), CudaError> {
    let text = match code {
        0 => return Ok(()),
        1 => {
            "not initialized: the library and the driver do not work together (CUBLAS_STATUS_NOT_INITIALIZED)"
        }
        3 => "no memory left on the GPU (CUBLAS_STATUS_ALLOC_FAILED)",
        7 => "invalid value (CUBLAS_STATUS_INVALID_VALUE)",
        8 => "not supported by this GPU (CUBLAS_STATUS_ARCH_MISMATCH)",
        13 => "the GPU failed (CUBLAS_STATUS_EXECUTION_FAILED)",
        14 => "internal error (CUBLAS_STATUS_INTERNAL_ERROR)",
        15 => "not supported (CUBLAS_STATUS_NOT_SUPPORTED)",
        _ => "unknown status",
    };
    Err(CudaError::Call {
        call,
        code,
        text: text.to_owned(),
    })
}
