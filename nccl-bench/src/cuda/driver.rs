//! The CUDA driver API, and its errors. <https://docs.nvidia.com/cuda/cuda-driver-api/>

use std::ffi::{CStr, c_char, c_uint, c_void};
use std::path::Path;
use std::sync::Arc;

use super::dynamic::{LoadError, Loaded, functions};
use super::places::CUDA;

functions! {
    /// The driver's functions.
    Functions {
        init: "cuInit": fn(c_uint) -> i32,
        version: "cuDriverGetVersion": fn(*mut i32) -> i32,
        count: "cuDeviceGetCount": fn(*mut i32) -> i32,
        device: "cuDeviceGet": fn(*mut i32, i32) -> i32,
        device_name: "cuDeviceGetName": fn(*mut c_char, i32, i32) -> i32,
        device_uuid: "cuDeviceGetUuid_v2": fn(*mut [u8; 16], i32) -> i32,
        device_pci: "cuDeviceGetPCIBusId": fn(*mut c_char, i32, i32) -> i32,
        context_retain: "cuDevicePrimaryCtxRetain": fn(*mut *mut c_void, i32) -> i32,
        context_release: "cuDevicePrimaryCtxRelease_v2": fn(i32) -> i32,
        context_enter: "cuCtxSetCurrent": fn(*mut c_void) -> i32,
        alloc: "cuMemAlloc_v2": fn(*mut u64, usize) -> i32,
        free: "cuMemFree_v2": fn(u64) -> i32,
        alloc_pinned: "cuMemAllocHost_v2": fn(*mut *mut c_void, usize) -> i32,
        free_pinned: "cuMemFreeHost": fn(*mut c_void) -> i32,
        copy_in: "cuMemcpyHtoDAsync_v2": fn(u64, *const c_void, usize, *mut c_void) -> i32,
        copy_out: "cuMemcpyDtoHAsync_v2": fn(*mut c_void, u64, usize, *mut c_void) -> i32,
        copy_within: "cuMemcpyDtoDAsync_v2": fn(u64, u64, usize, *mut c_void) -> i32,
        stream_create: "cuStreamCreate": fn(*mut *mut c_void, c_uint) -> i32,
        stream_destroy: "cuStreamDestroy_v2": fn(*mut c_void) -> i32,
        event_create: "cuEventCreate": fn(*mut *mut c_void, c_uint) -> i32,
        event_destroy: "cuEventDestroy_v2": fn(*mut c_void) -> i32,
        event_record: "cuEventRecord": fn(*mut c_void, *mut c_void) -> i32,
        event_query: "cuEventQuery": fn(*mut c_void) -> i32,
        event_elapsed: "cuEventElapsedTime": fn(*mut f32, *mut c_void, *mut c_void) -> i32,
        error_name: "cuGetErrorName": fn(i32, *mut *const c_char) -> i32,
        error_text: "cuGetErrorString": fn(i32, *mut *const c_char) -> i32,
    }
}

/// CUDA_ERROR_NOT_READY, which is not a failure.
pub(super) const NOT_READY: i32 = 600;

/// GPU errors.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CudaError {
    /// The library could not be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A call failed.
    #[error("{call}: {text}")]
    Call {
        /// The function.
        call: &'static str,
        /// The function's return code.
        code: i32,
        /// The driver's name and description of the code.
        text: String,
    },
    /// The driver reports no GPU.
    #[error("the CUDA driver shows no GPU to this process")]
    NoGpu,
    /// There is no GPU with this index.
    #[error("there is no GPU {index}: this process sees {count}")]
    NoSuchGpu {
        /// The requested index.
        index: u32,
        /// Number of GPUs.
        count: u32,
    },
    /// The time limit was reached.
    #[error("{what} did not end in {seconds:.1} s")]
    Deadline {
        /// The operation.
        what: String,
        /// Duration of the wait, in seconds.
        seconds: f64,
    },
}

functions! {
    /// Functions that work without initialization.
    Asked {
        version: "cuDriverGetVersion": fn(*mut i32) -> i32,
    }
}

/// Returns the CUDA version of the driver's library, such as `13.0`. This accesses no GPU.
///
/// # Errors
/// Returns an error if there is no library.
pub fn version(path: Option<&Path>) -> Result<String, CudaError> {
    let asked = Asked::find(&Loaded::open(&CUDA, path)?)?;
    let mut version = 0;
    // SAFETY: the signature is from the header; the pointer is valid for the call.
    match unsafe { (asked.version)(&mut version) } {
        0 => Ok(version_text(version)),
        code => Err(CudaError::Call {
            call: "cuDriverGetVersion",
            code,
            text: format!("error {code}"),
        }),
    }
}

/// Formats a version. For example, 13000 becomes `13.0`.
fn version_text(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// The initialized driver.
#[derive(Debug)]
pub struct Driver {
    pub(super) functions: Functions,
    /// The driver's CUDA version. 13000 means 13.0.
    pub version: i32,
    /// Number of GPUs visible to this process.
    pub gpus: u32,
}

impl Driver {
    /// Opens the library at `path`, or the system's library if there is no path.
    ///
    /// # Errors
    /// Returns an error if there is no library or no usable GPU.
    pub fn open(path: Option<&Path>) -> Result<Arc<Driver>, CudaError> {
        let library = Loaded::open(&CUDA, path)?;
        let functions = Functions::find(&library)?;
        let mut driver = Driver {
            functions,
            version: 0,
            gpus: 0,
        };
        // SAFETY: the signature is from the header.
        driver.check("cuInit", unsafe { (functions.init)(0) })?;
        let (mut version, mut count) = (0, 0);
        // SAFETY: as above; the pointers are valid for the call.
        driver.check("cuDriverGetVersion", unsafe { (functions.version)(&mut version) })?;
        // SAFETY: as above.
        driver.check("cuDeviceGetCount", unsafe { (functions.count)(&mut count) })?;
        driver.version = version;
        driver.gpus = u32::try_from(count).unwrap_or(0);
        if driver.gpus == 0 {
            return Err(CudaError::NoGpu);
        }
        Ok(Arc::new(driver))
    }

    /// Returns the formatted version, such as `13.0`.
    pub fn version_text(&self) -> String {
        version_text(self.version)
    }

    /// Converts a return code to a result.
    pub(super) fn check(&self, call: &'static str, code: i32) -> Result<(), CudaError> {
        match code {
            0 => Ok(()),
            code => Err(CudaError::Call {
                call,
                code,
                text: self.describe(code),
            }),
        }
    }

    fn describe(&self, code: i32) -> String {
        let ask = |function: unsafe extern "C" fn(i32, *mut *const c_char) -> i32| {
            let mut text = std::ptr::null();
            // SAFETY: the signature is from the header; the pointer is valid for the call.
            let answer = unsafe { function(code, &mut text) };
            // SAFETY: on success it points to a string that stays valid as long as the library, which is never closed.
            (answer == 0 && !text.is_null())
                .then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        match (ask(self.functions.error_name), ask(self.functions.error_text)) {
            (Some(name), Some(text)) => format!("{text} ({name})"),
            _ => format!("error {code}"),
        }
    }
}
