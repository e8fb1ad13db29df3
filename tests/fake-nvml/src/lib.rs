//! A library with NVML's C interface that reads a scenario file instead of GPUs, so that the code which reads real
//! ones runs in tests everywhere. The file is named by `PACELINE_FAKE_NVML`, or lies beside the library under its name
//! and `.toml`; see [`scenario`].
//!
//! Only what Paceline calls is here; a function that is missing is a case that its callers must stand. Signatures and
//! structures are those of nvml.h as `nvml-wrapper-sys` has them. Which functions, structures, events and field numbers
//! there are depends on the scenario's driver: see [`drivers`].

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

/// Whether a structure's `version` member is that of this name, and the driver's header has the name.
pub(crate) fn check_version<T>(driver: Driver, name: &str, found: u32) -> Result<(), u32> {
    let known = driver.number(Kind::Structure, name);
    let known = known.map(|number| size_of::<T>() as u32 | (number as u32) << 24);
    if known == Some(found) { Ok(()) } else { Err(25) }
}
