//! One GPU and memory that it reaches.

use std::ffi::{CString, c_char, c_void};
use std::sync::Arc;

use super::driver::{CudaError, Driver};
use super::stream::{Event, Stream};

/// CU_STREAM_NON_BLOCKING: nothing of ours waits for the default stream.
const NON_BLOCKING: u32 = 1;

/// A GPU with its primary context, the one that CUDA's runtime uses too.
#[derive(Debug)]
pub struct Gpu {
    pub(super) driver: Arc<Driver>,
    device: i32,
    context: *mut c_void,
    /// Its number as this process counts.
    pub index: u32,
    /// Product name.
    pub model: String,
    /// UUID as NVML writes it: `GPU-…`.
    pub uuid: String,
    /// PCI bus id, `0000:b3:00.0`.
    pub pci: String,
}

// SAFETY: "The CUDA driver API is thread-safe" (CUDA C programming guide, 3.3); the context is a handle that is only
// passed back to the driver.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

impl Gpu {
    /// Opens the GPU of this number and makes it the calling thread's.
    ///
    /// # Errors
    /// [`CudaError::NoSuchGpu`], or what the driver answers.
    pub fn open(driver: &Arc<Driver>, index: u32) -> Result<Arc<Gpu>, CudaError> {
        if index >= driver.gpus {
            return Err(CudaError::NoSuchGpu {
                index,
                count: driver.gpus,
            });
        }
        let functions = &driver.functions;
        let (mut device, mut uuid) = (0, [0; 16]);
        // SAFETY: the signature is the header's; the pointer is valid for the call. So are those below.
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
        // From here on, dropping releases the context.
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
        // SAFETY: the signature is the header's; the buffer is as long as said, less one byte that stays zero.
        let code = unsafe { function(buffer.as_mut_ptr().cast(), 255, self.device) };
        self.driver.check(call, code)?;
        let end = buffer.iter().position(|byte| *byte == 0).unwrap_or(0);
        buffer.truncate(end);
        Ok(CString::new(buffer)
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned())
    }

    /// The driver.
    pub fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }

    /// Makes it the calling thread's GPU.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn enter(&self) -> Result<(), CudaError> {
        // SAFETY: the context is retained as long as this is not dropped.
        self.driver.check("cuCtxSetCurrent", unsafe {
            (self.driver.functions.context_enter)(self.context)
        })
    }

    /// Memory of its own. What it holds is not said.
    ///
    /// # Errors
    /// What the driver answers, as when there is not enough.
    pub fn memory(self: &Arc<Gpu>, bytes: usize) -> Result<Memory, CudaError> {
        self.enter()?;
        let mut address = 0;
        // SAFETY: the signature is the header's; the pointer is valid for the call.
        self.driver.check("cuMemAlloc", unsafe {
            (self.driver.functions.alloc)(&mut address, bytes)
        })?;
        Ok(Memory {
            gpu: Arc::clone(self),
            address,
            bytes,
        })
    }

    /// Memory of the host that it reaches without a copy in between.
    ///
    /// # Errors
    /// What the driver answers: often a limit on locked memory.
    pub fn pinned(self: &Arc<Gpu>, bytes: usize) -> Result<Pinned, CudaError> {
        self.enter()?;
        let mut address = std::ptr::null_mut();
        // SAFETY: as above.
        self.driver.check("cuMemAllocHost", unsafe {
            (self.driver.functions.alloc_pinned)(&mut address, bytes)
        })?;
        // SAFETY: just allocated in this length, and nobody else knows it.
        unsafe { address.cast::<u8>().write_bytes(0, bytes) };
        Ok(Pinned {
            gpu: Arc::clone(self),
            address,
            bytes,
        })
    }

    /// A stream of its own.
    ///
    /// # Errors
    /// What the driver answers.
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

    /// An event that keeps time.
    ///
    /// # Errors
    /// What the driver answers.
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
        // SAFETY: retained once, released once. What it answers helps nobody any more.
        unsafe { (self.driver.functions.context_release)(self.device) };
    }
}

/// `GPU-` and the bytes in the groups of RFC 9562.
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
    /// Where it is.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// How much it is.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated once, freed once; the driver waits for what still uses it.
        unsafe { (self.gpu.driver.functions.free)(self.address) };
    }
}

/// Locked memory of the host.
#[derive(Debug)]
pub struct Pinned {
    gpu: Arc<Gpu>,
    pub(super) address: *mut c_void,
    pub(super) bytes: usize,
}

// SAFETY: memory that this alone owns.
unsafe impl Send for Pinned {}

impl Pinned {
    /// What it holds. Only while no copy is under way.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: allocated in this length and written once.
        unsafe { std::slice::from_raw_parts(self.address.cast(), self.bytes) }
    }

    /// The same, to be written.
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
