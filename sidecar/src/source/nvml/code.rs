//! NVML's return codes: their names, and whether a GPU can still be read after them.
//!
//! Source: enum nvmlReturn_t, <https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html>

use std::fmt;

use paceline_health::event::{Access, Missing};

/// A return code other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Code(pub u32);

impl Code {
    /// The library was not initialized, or the driver has been unloaded since.
    pub const UNINITIALIZED: Code = Code(1);
    /// An argument is invalid. A driver also returns this for a field that it does not know yet.
    pub const INVALID_ARGUMENT: Code = Code(2);
    /// The GPU does not support the function.
    pub const NOT_SUPPORTED: Code = Code(3);
    /// The caller needs more privileges.
    pub const NO_PERMISSION: Code = Code(4);
    /// The buffer is too small; the call returned the required size.
    pub const INSUFFICIENT_SIZE: Code = Code(7);
    /// No driver is loaded.
    pub const DRIVER_NOT_LOADED: Code = Code(9);
    /// Nothing happened within the timeout.
    pub const TIMEOUT: Code = Code(10);
    /// This version of the library lacks the function.
    pub const FUNCTION_NOT_FOUND: Code = Code(13);
    /// The GPU has fallen off the bus or is unreachable for another reason.
    pub const GPU_IS_LOST: Code = Code(15);
    /// The GPU must be reset before it is used again.
    pub const RESET_REQUIRED: Code = Code(16);
    /// The library and the driver have different versions.
    pub const VERSION_MISMATCH: Code = Code(18);
    /// This version of the library does not know this version of a structure.
    pub const ARGUMENT_VERSION_MISMATCH: Code = Code(25);
    /// The function was removed.
    pub const DEPRECATED: Code = Code(26);
    /// There is no such GPU.
    pub const GPU_NOT_FOUND: Code = Code(28);
    /// Another error. It is also returned after a driver was unloaded while in use.
    pub const UNKNOWN: Code = Code(999);

    /// Returns `Ok` for success, else the code as an error.
    pub fn check(code: u32) -> Result<(), Code> {
        if code == 0 { Ok(()) } else { Err(Code(code)) }
    }

    /// Returns its name in lower case and without the prefix: `gpu_is_lost` for `NVML_ERROR_GPU_IS_LOST`.
    pub fn name(self) -> &'static str {
        const NAMES: [&str; 31] = [
            "success",
            "uninitialized",
            "invalid_argument",
            "not_supported",
            "no_permission",
            "already_initialized",
            "not_found",
            "insufficient_size",
            "insufficient_power",
            "driver_not_loaded",
            "timeout",
            "irq_issue",
            "library_not_found",
            "function_not_found",
            "corrupted_inforom",
            "gpu_is_lost",
            "reset_required",
            "operating_system",
            "lib_rm_version_mismatch",
            "in_use",
            "memory",
            "no_data",
            "vgpu_ecc_not_supported",
            "insufficient_resources",
            "freq_not_supported",
            "argument_version_mismatch",
            "deprecated",
            "not_ready",
            "gpu_not_found",
            "invalid_state",
            "reset_type_not_supported",
        ];
        NAMES.get(self.0 as usize).copied().unwrap_or("unknown")
    }

    /// Returns true if the GPU, or this version of library and driver, does not have the signal, so that a retry will
    /// not help.
    pub fn is_unsupported(self) -> bool {
        [
            Code::INVALID_ARGUMENT,
            Code::NOT_SUPPORTED,
            Code::FUNCTION_NOT_FOUND,
            Code::ARGUMENT_VERSION_MISMATCH,
            Code::DEPRECATED,
        ]
        .contains(&self)
    }

    /// Returns true if the code does not concern a single signal: the whole GPU or the driver does not respond.
    pub fn is_fatal(self) -> bool {
        [
            Code::UNINITIALIZED,
            Code::DRIVER_NOT_LOADED,
            Code::GPU_IS_LOST,
            Code::RESET_REQUIRED,
            Code::VERSION_MISMATCH,
            Code::GPU_NOT_FOUND,
        ]
        .contains(&self)
    }

    /// Returns the access state of a GPU for which every call returns this code.
    pub fn access(self) -> Access {
        match self {
            Code::GPU_IS_LOST | Code::GPU_NOT_FOUND => Access::Lost,
            Code::NO_PERMISSION => Access::NoPermission,
            Code::DRIVER_NOT_LOADED | Code::UNINITIALIZED => Access::NoDriver,
            Code::VERSION_MISMATCH => Access::VersionMismatch,
            _ => Access::Failing,
        }
    }

    /// Returns why a signal has no value.
    pub fn missing(self) -> Missing {
        if self.is_unsupported() {
            Missing::Unsupported
        } else {
            Missing::Error(self.name().into())
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.0)
    }
}
