//! One GPU, and memory that is accessible to it.

use std::ffi::{CString, c_char, c_void};
use std::sync::Arc;

use super::driver::{CudaError, Driver};
use super::stream::{Event, Stream};

/// CU_STREAM_NON_BLOCKING, with which our streams do not wait for the default stream.
const NON_BLOCKING: u32 = 1;

/// A GPU with its primary context, which is shared with the CUDA runtime.
#[derive(Debug)]
pub struct Gpu {
    pub(super) driver: Arc<Driver>,
    device: i32,
    context: *mut c_void,
    /// The GPU's index in this process.
    pub index: u32,
    /// Product name.
    pub model: String,
    /// UUID in NVML's format, `GPU-…`.
    pub uuid: String,
    /// PCI bus id, such as `0000:b3:00.0`.
    pub pci: String,
}

// SAFETY: "The CUDA driver API is thread-safe" (CUDA C programming guide, 3.3); the context is a handle that is only
// passed back to the driver.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

impl Gpu {
    /// Opens the GPU with this index and makes it current for the calling thread.
    ///
    /// # Errors
    /// Returns [`CudaError::NoSuchGpu`] if the index is too large, or the driver's errors.
    pub fn open(driver: &Arc<Driver>, index: u32) -> Result<Arc<Gpu>, CudaError> {
        if index >= driver.gpus {
            return Err(CudaError::NoSuchGpu {
                index,
                count: driver.gpus,
            });
        }
        let functions = &driver.functions;
        let (mut device, mut uuid) = (0, [0; 16]);
        // SAFETY: the signature is from the header; the pointer is valid for the call. The same holds below.
        driver.check("cuDeviceGet", unsafe {
            (functions.device)(&mut device, index as i32)
        })?;
        // SAFETY: as above.
        driver.check("cuDeviceGetUuid_v2", unsafe {
            (functions.device_uuid)(&mut uuid, device)
        })?;
        let mut context = std::ptr::null_mut();
        // SAFETY: as above.
        driver.check("cuDevicePrimaryCtxRetain", unsafe {
            (functions.context_retain)(&mut context, device)
        })?;
        // From here on, dropping `gpu` releases the context.
        let mut gpu = Gpu {
            driver: Arc::clone(driver),
            device,
            context,
            index,
            model: String::new(),
            uuid: uuid_text(&uuid),
            pci: String::new(),
        };
        gpu.model = gpu.text("cuDeviceGetName", functions.device_name)?;
        gpu.pci = gpu
            .text("cuDeviceGetPCIBusId", functions.device_pci)?
            .to_ascii_lowercase();
        gpu.enter()?;
        Ok(Arc::new(gpu))
    }

    fn text(
        &self,
        call: &'static str,
        function: unsafe extern "C" fn(*mut c_char, i32, i32) -> i32,
    ) -> Result<String, CudaError> {
        let mut buffer = vec![0u8; 256];
        // SAFETY: the signature is from the header; the buffer has the stated length plus one byte that stays zero.
        let code = unsafe { function(buffer.as_mut_ptr().cast(), 255, self.device) };
        self.driver.check(call, code)?;
        let end = buffer.iter().position(|byte| *byte == 0).unwrap_or(0);
        buffer.truncate(end);
        Ok(CString::new(buffer)
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned())
    }

    /// Returns the driver.
    pub fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }

    /// Makes the GPU current for the calling thread.
    ///
    /// # Errors
    /// Returns the driver's errors.
    pub fn enter(&self) -> Result<(), CudaError> {
        // SAFETY: the context is retained as long as this is not dropped.
        self.driver.check("cuCtxSetCurrent", unsafe {
            (self.driver.functions.context_enter)(self.context)
        })
    }

    /// Allocates memory with undefined content.
    ///
    /// # Errors
    /// Returns the driver's errors, for example if the memory is exhausted.
    pub fn memory(self: &Arc<Gpu>, bytes: usize) -> Result<Memory, CudaError> {
        self.enter()?;
        let mut address = 0;
        // SAFETY: the signature is from the header; the pointer is valid for the call.
        self.driver.check("cuMemAlloc", unsafe {
            (self.driver.functions.alloc)(&mut address, bytes)
        })?;
        Ok(Memory {
            gpu: Arc::clone(self),
            address,
            bytes,
        })
    }

    /// Allocates pinned host memory, which the GPU accesses directly.
    ///
    /// # Errors
    /// Returns the driver's errors. The cause is often a limit on locked memory.
    pub fn pinned(self: &Arc<Gpu>, bytes: usize) -> Result<Pinned, CudaError> {
        self.enter()?;
        let mut address = std::ptr::null_mut();
        // SAFETY: as above.
        self.driver.check("cuMemAllocHost", unsafe {
            (self.driver.functions.alloc_pinned)(&mut address, bytes)
        })?;
        // SAFETY: just allocated with this length, and not shared yet.
        unsafe { address.cast::<u8>().write_bytes(0, bytes) };
        Ok(Pinned {
            gpu: Arc::clone(self),
            address,
            bytes,
        })
    }

    /// Creates a stream.
    ///
    /// # Errors
    /// Returns the driver's errors.
    pub fn stream(self: &Arc<Gpu>) -> Result<Stream, CudaError> {
        self.enter()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: as above.
        self.driver.check("cuStreamCreate", unsafe {
            (self.driver.functions.stream_create)(&mut handle, NON_BLOCKING)
        })?;
        Ok(Stream {
            gpu: Arc::clone(self),
            handle,
        })
    }

    /// Creates an event with timing.
    ///
    /// # Errors
    /// Returns the driver's errors.
    pub fn event(self: &Arc<Gpu>) -> Result<Event, CudaError> {
        self.enter()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: as above.
        self.driver.check("cuEventCreate", unsafe {
            (self.driver.functions.event_create)(&mut handle, 0)
        })?;
        Ok(Event {
            gpu: Arc::clone(self),
            handle,
        })
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: retained once, released once. An error would be useless here.
        unsafe { (self.driver.functions.context_release)(self.device) };
    }
}

/// Returns `GPU-` followed by the bytes in the format of RFC 9562.
fn uuid_text(bytes: &[u8; 16]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "GPU-{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

/// Memory on a GPU.
#[derive(Debug)]
pub struct Memory {
    gpu: Arc<Gpu>,
    pub(super) address: u64,
    pub(super) bytes: usize,
}

impl Memory {
    /// Returns the address on the GPU.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated once, freed once; the driver waits for pending uses.
        unsafe { (self.gpu.driver.functions.free)(self.address) };
    }
}

/// Pinned host memory.
#[derive(Debug)]
pub struct Pinned {
    gpu: Arc<Gpu>,
    pub(super) address: *mut c_void,
    pub(super) bytes: usize,
}

// SAFETY: exclusively owned memory.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Returns the content. It is valid only while no copy is in progress.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: allocated with this length and initialized.
        unsafe { std::slice::from_raw_parts(self.address.cast(), self.bytes) }
    }

    /// Returns the content for writing.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.address.cast(), self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: allocated once, freed once.
        unsafe { (self.gpu.driver.functions.free_pinned)(self.address) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_written_as_nvml_writes_them() {
        let bytes = [0xfa, 0x4e, 0, 0, 0, 0, 0x40, 0, 0x80, 0, 0, 0, 0, 0, 0, 1];
        assert_eq!(uuid_text(&bytes), "GPU-fa4e0000-0000-4000-8000-000000000001");
    }
}
