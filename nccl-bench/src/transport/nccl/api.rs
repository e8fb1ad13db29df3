//! NCCL's functions, loaded at run time, and the conversion of their return codes.
//! <https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api.html>

use std::ffi::{CStr, c_char, c_void};
use std::fmt;
use std::path::{Path, PathBuf};

use super::NAME;
use crate::cuda::{LoadError, Loaded, NCCL, functions};
use crate::transport::{Deadline, TransportError};

functions! {
    /// Functions that every version has.
    Oldest {
        version: "ncclGetVersion": fn(*mut i32) -> i32,
    }
}

functions! {
    /// The functions that we call.
    Functions {
        unique_id: "ncclGetUniqueId": fn(*mut UniqueId) -> i32,
        init: "ncclCommInitRankConfig": fn(*mut *mut c_void, i32, UniqueId, i32, *mut Config) -> i32,
        async_error: "ncclCommGetAsyncError": fn(*mut c_void, *mut i32) -> i32,
        abort: "ncclCommAbort": fn(*mut c_void) -> i32,
        destroy: "ncclCommDestroy": fn(*mut c_void) -> i32,
        all_reduce: "ncclAllReduce": fn(u64, u64, usize, i32, i32, *mut c_void, *mut c_void) -> i32,
        reduce_scatter: "ncclReduceScatter": fn(u64, u64, usize, i32, i32, *mut c_void, *mut c_void) -> i32,
        all_gather: "ncclAllGather": fn(u64, u64, usize, i32, *mut c_void, *mut c_void) -> i32,
        broadcast: "ncclBroadcast": fn(u64, u64, usize, i32, i32, *mut c_void, *mut c_void) -> i32,
        send: "ncclSend": fn(u64, usize, i32, i32, *mut c_void, *mut c_void) -> i32,
        receive: "ncclRecv": fn(u64, usize, i32, i32, *mut c_void, *mut c_void) -> i32,
        group_start: "ncclGroupStart": fn() -> i32,
        group_end: "ncclGroupEnd": fn() -> i32,
        error_text: "ncclGetErrorString": fn(i32) -> *const c_char,
    }
    optional {
        last_error: "ncclGetLastError": fn(*mut c_void) -> *const c_char,
    }
}

/// ncclUniqueId. Rank 0 creates it, and every rank needs it to join.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId(pub [u8; 128]);

/// ncclConfig_t as in 2.14. A later NCCL uses defaults for newer fields, because the structure contains its version.
#[repr(C)]
#[derive(Debug)]
pub struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: i32,
}

impl Config {
    /// Returns a blocking configuration, with which calls return when the collective is in its stream. With a
    /// non-blocking one, NCCL starts a thread for each group and must be polled before the next group. This takes
    /// longer than a small collective.
    pub fn blocking() -> Config {
        Config {
            size: size_of::<Config>(),
            magic: 0xcafe_beef,
            version: LEAST.0 as u32,
            blocking: 1,
        }
    }
}

/// ncclInProgress. It is not an error, but a blocking communicator never returns it.
const IN_PROGRESS: i32 = 7;
/// The oldest version with ncclConfig_t, which selects blocking calls.
pub const LEAST: Version = Version(21400);
/// The oldest version in which ranks may share a GPU.
pub const SHARING: Version = Version(23000);

/// A version in NCCL's format: 23007 is 2.30.7.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub i32);

impl fmt::Display for Version {
    /// Formats the version. Up to 2.8 the major version is in the thousands, later in the ten thousands.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let major = if self.0 < 10_000 { 1000 } else { 10_000 };
        write!(f, "{}.{}.{}", self.0 / major, self.0 % major / 100, self.0 % 100)
    }
}

/// The library.
#[derive(Debug)]
pub struct Nccl {
    pub(super) functions: Functions,
    /// The library's version.
    pub version: Version,
    /// The library file.
    pub path: PathBuf,
}

impl Nccl {
    /// Opens the library at `path`, or the system's library if there is no path.
    ///
    /// # Errors
    /// Returns an error if there is no library, or if it is too old or lacks a function.
    pub fn open(path: Option<&Path>) -> Result<Nccl, LoadError> {
        let library = Loaded::open(&NCCL, path)?;
        // Check the version first, because "too old" is a better error than a missing function.
        let oldest = Oldest::find(&library)?;
        let mut version = 0;
        // SAFETY: the signature is from the header; the pointer is valid for the call.
        unsafe { (oldest.version)(&mut version) };
        let version = Version(version);
        if version < LEAST {
            return Err(LoadError::TooOld {
                path: library.path,
                found: version.to_string(),
                least: LEAST.to_string(),
                what: "a blocking communicator by ncclConfig_t",
            });
        }
        Ok(Nccl {
            functions: Functions::find(&library)?,
            version,
            path: library.path,
        })
    }

    /// Creates the id that the other ranks need.
    pub fn unique_id(&self, deadline: &Deadline) -> Result<UniqueId, TransportError> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: the signature is from the header; the pointer is valid for the call.
        let code = unsafe { (self.functions.unique_id)(&mut id) };
        self.check("ncclGetUniqueId", code, deadline)?;
        Ok(id)
    }

    /// Converts a return code. "In progress" is treated as an error, because with a non-blocking communicator the host
    /// would be timed instead of the collective.
    pub(super) fn check(
        &self,
        call: &'static str,
        code: i32,
        deadline: &Deadline,
    ) -> Result<(), TransportError> {
        if code == 0 {
            return Ok(());
        }
        if code == IN_PROGRESS {
            return Err(TransportError::Unsupported {
                transport: NAME,
                what: format!(
                    "a nonblocking communicator ({call} returned ncclInProgress): unset NCCL_COMM_BLOCKING"
                ),
            });
        }
        let phase = deadline.phase().to_owned();
        Err(TransportError::Library {
            phase,
            call,
            code: code.into(),
            message: self.describe(code),
        })
    }

    fn describe(&self, code: i32) -> String {
        // SAFETY: the signature is from the header; its strings are static.
        let text = unsafe { copied((self.functions.error_text)(code)) };
        let last = self.functions.last_error.map(|last_error| {
            // SAFETY: as above; NCCL ignores the communicator, so null is valid. The string is copied at once.
            unsafe { copied((last_error)(std::ptr::null_mut())) }
        });
        let last = last.unwrap_or_default();
        if last.is_empty() {
            text
        } else {
            format!("{text}: {}", last.trim())
        }
    }
}

/// Returns a copy of a C string.
///
/// # Safety
/// `from` must be null or zero-terminated.
unsafe fn copied(from: *const c_char) -> String {
    if from.is_null() {
        return String::new();
    }
    // SAFETY: guaranteed by the caller.
    unsafe { CStr::from_ptr(from) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_nccl_counts_them() {
        for (code, text) in [
            (2708, "2.7.8"),
            (21400, "2.14.0"),
            (22703, "2.27.3"),
            (23007, "2.30.7"),
        ] {
            assert_eq!(Version(code).to_string(), text);
        }
        assert!(Version(2708) < LEAST && Version(22907) < SHARING && Version(23007) >= SHARING);
    }

    #[test]
    fn structures_have_the_size_of_the_header() {
        assert_eq!((size_of::<Config>(), size_of::<UniqueId>()), (24, 128));
        assert_eq!(std::mem::offset_of!(Config, blocking), 16);
    }
}
