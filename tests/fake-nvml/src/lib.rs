//! A library with NVML's C interface that reads a scenario file instead of GPUs, so that the code which reads real
//! ones runs in tests everywhere. The file is named by `PACELINE_FAKE_NVML`, or lies beside the library under its name
//! and `.toml`; see [`scenario`].
//!
//! Only what Paceline calls is here; a function that is missing is a case that its callers must stand. Signatures and
//! structures are those of nvml.h as `nvml-wrapper-sys` has them.

#![allow(non_snake_case, reason = "the names are NVML's")]
#![allow(
    clippy::missing_safety_doc,
    reason = "what callers must hold is in NVML's documentation"
)]

mod events;
mod gpm;
pub mod profile;
mod queries;
pub mod scenario;
mod system;
#[allow(missing_docs, reason = "private to the library")]
mod world;

/// The answer of a query: its code.
pub(crate) fn code(result: Result<(), u32>) -> u32 {
    result.err().unwrap_or(world::SUCCESS)
}

/// Writes through a caller's pointer.
///
/// # Safety
/// `to` is null or valid for writing one `T`, as NVML's callers must see to.
pub(crate) unsafe fn put<T>(to: *mut T, value: T) -> Result<(), u32> {
    if to.is_null() {
        return Err(world::INVALID_ARGUMENT);
    }
    // SAFETY: as promised above.
    unsafe { to.write(value) };
    Ok(())
}

/// Whether a structure's `version` member says the version that this library knows.
pub(crate) fn check_version<T>(found: u32, number: u32) -> Result<(), u32> {
    let known = size_of::<T>() as u32 | number << 24;
    if found == known { Ok(()) } else { Err(25) }
}
