//! The GPU reader, on a library that plays scenarios (tests/fake-nvml).

#![allow(clippy::unwrap_used)] // A test that cannot continue fails.

mod access;
mod drivers;
mod faults;
mod signals;
mod stage;
mod verdicts;
