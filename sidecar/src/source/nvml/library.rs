//! Finds and opens the library, and lists its GPUs. A failure includes its reason.
//!
//! Calls the raw functions, because the safe wrappers lose what we need: signed values, event bits that they do not
//! know, and the return code of each field.

use std::ffi::{CStr, CString, OsStr};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::Arc;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::{NvmlLib, nvmlDevice_t, nvmlPciInfo_t};
use paceline_health::event::Access;
use paceline_health::id::GpuId;

use super::code::Code;
use super::desk::Desk;

/// Library name for the dynamic linker.
pub const DEFAULT: &str = "libnvidia-ml.so.1";
/// Paths that show that a host has an NVIDIA driver.
const TRACES: [&str; 3] = [
    "/proc/driver/nvidia/version",
    "/dev/nvidiactl",
    "/sys/module/nvidia",
];
/// Maximum number of GPUs read on a node.
const MOST_GPUS: u32 = 64;

/// The initialized library. It is shut down when the last GPU that refers to it is dropped.
#[derive(Debug)]
pub struct Library {
    /// The wrapper; `None` only while it is being dropped.
    nvml: Option<Nvml>,
    /// The driver's version, such as `580.82.07`; empty if unknown.
    pub driver: Arc<str>,
}

/// Why no GPU can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The access state.
    pub access: Access,
    /// Readable description.
    pub text: String,
}

impl Library {
    /// Opens the library at `path`, or the system's library if there is no path.
    ///
    /// # Errors
    /// [`Refusal`], which distinguishes a missing driver from one that does not work.
    pub fn open(path: Option<&Path>) -> Result<Library, Refusal> {
        let file = path.map_or(OsStr::new(DEFAULT), Path::as_os_str);
        let nvml = Nvml::builder().lib_path(file).init().map_err(|error| {
            let absent = path.is_none() && !TRACES.iter().any(|trace| Path::new(trace).exists());
            refusal(&error, absent)
        })?;
        let driver = nvml.sys_driver_version().unwrap_or_default().into();
        Ok(Library {
            nvml: Some(nvml),
            driver,
        })
    }

    /// Returns the library's functions.
    pub fn raw(&self) -> Option<&NvmlLib> {
        self.nvml.as_ref().map(Nvml::lib)
    }

    /// Returns the number of GPUs visible to this process.
    ///
    /// # Errors
    /// The library's return code.
    pub fn count(&self) -> Result<u32, Code> {
        let mut count = 0;
        let raw = self.raw().ok_or(Code::UNINITIALIZED)?;
        let function = raw.nvmlDeviceGetCount_v2.as_ref();
        let function = function.map_err(|_| Code::FUNCTION_NOT_FOUND)?;
        // SAFETY: the signature is the header's; the pointer is valid for the call.
        Code::check(unsafe { function(&mut count) })?;
        Ok(count.min(MOST_GPUS))
    }

    /// Returns the GPU with this index.
    ///
    /// # Errors
    /// The library's return code; a lost GPU has no handle.
    pub fn gpu(self: &Arc<Library>, index: u32, desk: Arc<Desk>) -> Result<Gpu, Code> {
        let mut handle = null_mut();
        let raw = self.raw().ok_or(Code::UNINITIALIZED)?;
        let function = raw.nvmlDeviceGetHandleByIndex_v2.as_ref();
        let function = function.map_err(|_| Code::FUNCTION_NOT_FOUND)?;
        desk.time("nvmlDeviceGetHandleByIndex_v2", || {
            // SAFETY: as above.
            Code::check(unsafe { function(index, &mut handle) })
        })?;
        Gpu::of(self, handle, desk)
    }

    /// Looks up the GPU again, because it may have another handle after it was lost.
    ///
    /// # Errors
    /// The library's return code.
    pub fn again(self: &Arc<Library>, gpu: &Gpu) -> Result<Gpu, Code> {
        let uuid = CString::new(gpu.uuid.as_str()).map_err(|_| Code::INVALID_ARGUMENT)?;
        let mut handle = null_mut();
        let raw = self.raw().ok_or(Code::UNINITIALIZED)?;
        let function = raw.nvmlDeviceGetHandleByUUID.as_ref();
        let function = function.map_err(|_| Code::FUNCTION_NOT_FOUND)?;
        gpu.desk.time("nvmlDeviceGetHandleByUUID", || {
            // SAFETY: as above; the text ends in a zero byte.
            Code::check(unsafe { function(uuid.as_ptr(), &mut handle) })
        })?;
        Gpu::of(self, handle, Arc::clone(&gpu.desk))
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        if let Some(nvml) = self.nvml.take()
            && nvml.lib().nvmlShutdown.is_err()
        {
            // Leak the wrapper, because dropping it would panic. A library without this function is not NVIDIA's.
            std::mem::forget(nvml);
        }
    }
}

fn refusal(error: &NvmlError, absent: bool) -> Refusal {
    let access = match error {
        NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound if absent => Access::Absent,
        NvmlError::LibloadingError(_) | NvmlError::FailedToLoadSymbol(_) | NvmlError::LibraryNotFound => {
            Access::NoLibrary
        }
        NvmlError::DriverNotLoaded | NvmlError::Uninitialized => Access::NoDriver,
        NvmlError::NoPermission => Access::NoPermission,
        NvmlError::LibRmVersionMismatch => Access::VersionMismatch,
        NvmlError::GpuLost => Access::Lost,
        _ => Access::Failing,
    };
    let text = match error {
        NvmlError::LibloadingError(cause) => cause.to_string(),
        other => format!("nvmlInit_v2: {other}"),
    };
    Refusal { access, text }
}

/// NVML's handle of a device.
#[derive(Clone, Copy, Debug)]
struct Handle(nvmlDevice_t);

// SAFETY: a handle is an opaque name from NVML that we never dereference. "NVML is thread-safe so it is safe to make
// simultaneous NVML calls from multiple threads" (https://docs.nvidia.com/deploy/nvml-api/).
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

/// A GPU, or an instance of one. Its names are kept, because a lost GPU no longer returns them.
#[derive(Clone, Debug)]
pub struct Gpu {
    /// The library that the GPU belongs to.
    pub library: Arc<Library>,
    handle: Handle,
    /// UUID: `GPU-…` for a GPU, `MIG-…` for an instance.
    pub uuid: GpuId,
    /// PCI bus ID, such as `0000:b3:00.0`.
    pub pci: Arc<str>,
    /// Product name.
    pub model: Arc<str>,
    /// The desk at which its calls are recorded.
    pub desk: Arc<Desk>,
}

/// Calls a function of the library on a GPU: `ask!(gpu, nvmlDeviceGetPowerUsage, &mut milliwatts)`.
macro_rules! ask {
    ($gpu:expr, $function:ident $(, $argument:expr)* $(,)?) => {{
        let gpu: &$crate::source::nvml::library::Gpu = $gpu;
        let function = gpu.library.raw().and_then(|raw| raw.$function.as_ref().ok());
        match function {
            Some(function) => gpu.desk.time(stringify!($function), || {
                // SAFETY: the signature is the header's, the library is open as long as the GPU refers to it, the
                // handle came from it, and the pointers' targets outlive the call.
                $crate::source::nvml::code::Code::check(unsafe { function(gpu.handle(), $($argument),*) })
            }),
            None => Err($crate::source::nvml::code::Code::FUNCTION_NOT_FOUND),
        }
    }};
}
pub(super) use ask;

impl Gpu {
    fn of(library: &Arc<Library>, handle: nvmlDevice_t, desk: Arc<Desk>) -> Result<Gpu, Code> {
        let mut gpu = Gpu {
            library: Arc::clone(library),
            handle: Handle(handle),
            uuid: GpuId::from(""),
            pci: "".into(),
            model: "".into(),
            desk,
        };
        gpu.uuid = GpuId(gpu.ask_uuid()?.into());
        gpu.model = gpu.ask_model()?.into();
        gpu.pci = gpu.ask_pci()?.into();
        Ok(gpu)
    }

    /// Returns an instance of this GPU.
    ///
    /// # Errors
    /// The library's return code.
    pub fn instance(&self, handle: nvmlDevice_t) -> Result<Gpu, Code> {
        let mut instance = Gpu {
            handle: Handle(handle),
            ..self.clone()
        };
        instance.uuid = GpuId(instance.ask_uuid()?.into());
        // An instance without its own model name keeps that of its GPU.
        if let Ok(model) = instance.ask_model() {
            instance.model = model.into();
        }
        Ok(instance)
    }

    /// Returns NVML's handle.
    pub fn handle(&self) -> nvmlDevice_t {
        self.handle.0
    }

    fn ask_uuid(&self) -> Result<String, Code> {
        let mut text = [0; 96];
        ask!(self, nvmlDeviceGetUUID, text.as_mut_ptr(), text.len() as u32)?;
        Ok(string(&text))
    }

    fn ask_model(&self) -> Result<String, Code> {
        let mut text = [0; 96];
        ask!(self, nvmlDeviceGetName, text.as_mut_ptr(), text.len() as u32)?;
        Ok(string(&text))
    }

    fn ask_pci(&self) -> Result<String, Code> {
        // SAFETY: the structure has only integers and characters, for which zero is a valid value.
        let mut info: nvmlPciInfo_t = unsafe { std::mem::zeroed() };
        ask!(self, nvmlDeviceGetPciInfo_v3, &mut info)?;
        let function = string(&info.busId)
            .rsplit_once('.')
            .and_then(|(_, function)| u8::from_str_radix(function, 16).ok());
        Ok(bus_id(info.domain, info.bus, info.device, function.unwrap_or(0)))
    }
}

/// Returns a bus ID in Linux's format.
fn bus_id(domain: u32, bus: u32, device: u32, function: u8) -> String {
    format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
}

/// Returns the text in a buffer up to its zero byte.
pub(super) fn string(buffer: &[std::os::raw::c_char]) -> String {
    let bytes: Vec<u8> = buffer.iter().map(|byte| *byte as u8).collect();
    match CStr::from_bytes_until_nul(&bytes) {
        Ok(text) => text.to_string_lossy().into_owned(),
        Err(_) => String::from_utf8_lossy(&bytes).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there() {
        let refusal = Library::open(Some(Path::new("/nonexistent/libnvidia-ml.so"))).unwrap_err();
        assert_eq!(refusal.access, Access::NoLibrary, "who names one wants it");
        assert!(
            refusal.text.contains("/nonexistent/libnvidia-ml.so"),
            "{}",
            refusal.text
        );
    }

    #[test]
    fn bus_ids() {
        assert_eq!(bus_id(0, 0xb3, 0, 0), "0000:b3:00.0");
        assert_eq!(bus_id(0x1_0001, 1, 0x1f, 4), "10001:01:1f.4");
    }
}
