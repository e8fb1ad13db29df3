//! Configuration from environment variables.

use std::ffi::{CStr, c_char};

use crate::abi::Interface;
use crate::budget::Budget;
use crate::sampler::{NEVER, Sampler};
use crate::text;

unsafe extern "C" {
    fn getenv(name: *const c_char) -> *const c_char;
}

/// Returns the value of a variable that is set and not empty.
pub fn variable(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: the name ends in a zero. The value is read immediately; a program that changes its environment from
    // another thread at that moment runs the same risk with each getenv of NCCL itself.
    unsafe {
        let value = getenv(name.as_ptr());
        (!value.is_null() && *value != 0).then(|| CStr::from_ptr(value))
    }
}

/// Reads from the environment when GPU times are requested, and what that may cost.
pub fn configure(sampler: &Sampler, budget: &Budget, interface: Interface) {
    match variable(c"PACELINE_NCCL_SAMPLE").map(CStr::to_bytes) {
        Some(b"off") => sampler.every(NEVER),
        Some(digits) => {
            if let Some(windows) = text::number(digits) {
                sampler.every(windows);
            }
        }
        None if interface == Interface::V7 => sampler.every(NEVER),
        None => {}
    }
    if interface == Interface::V7 {
        sampler.fix();
    }
    let number = |name| variable(name).and_then(|text| text::number(text.to_bytes()));
    if let Some(steps) = number(c"PACELINE_NCCL_AFTER") {
        sampler.after(steps);
    }
    if let Some(ppm) = number(c"PACELINE_NCCL_BUDGET_PPM") {
        budget.allow(ppm);
    }
}
