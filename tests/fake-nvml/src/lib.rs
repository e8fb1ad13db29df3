//! A library with NVML's C interface that reads a scenario file instead of GPUs, so that the code for real GPUs runs in
//! tests everywhere. The file's path is in `PACELINE_FAKE_NVML`. Otherwise the file is beside the library, with the
//! same name plus `.toml`; see [`scenario`].
//!
//! The library has only the functions that Paceline calls. Callers must handle missing functions. Signatures and
//! structures are those of nvml.h as in `nvml-wrapper-sys`. The available functions, structures, events and field
//! numbers depend on the scenario's driver; see [`drivers`].

#![allow(non_snake_case, reason = "the names are NVML's")]
#![allow(
    clippy::missing_safety_doc,
    reason = "what callers must hold is in NVML's documentation"
)]

pub mod drivers;
mod events;
mod gpm;
pub mod profile;
mod queries;
pub mod scenario;
mod system;
#[allow(missing_docs, reason = "private to the library")]
mod world;

use drivers::{Driver, Kind};

/// Converts a result to its return code.
pub(crate) fn code(result: Result<(), u32>) -> u32 {
    result.err().unwrap_or(world::SUCCESS)
}

/// Writes through a caller's pointer.
///
/// # Safety
/// `to` is null or valid for writing one `T`, which NVML's callers must guarantee.
pub(crate) unsafe fn put<T>(to: *mut T, value: T) -> Result<(), u32> {
    if to.is_null() {
        return Err(world::INVALID_ARGUMENT);
    }
    // SAFETY: guaranteed by the caller.
    unsafe { to.write(value) };
    Ok(())
}

/// Returns an error unless a structure's `version` member matches this name and the driver's header defines the name.
pub(crate) fn check_version<T>(driver: Driver, name: &str, found: u32) -> Result<(), u32> {
    let known = driver.number(Kind::Structure, name);
    let known = known.map(|number| size_of::<T>() as u32 | (number as u32) << 24);
    if known == Some(found) { Ok(()) } else { Err(25) }
}
