//! The code that reads GPUs, on a library that plays scenarios (tests/fake-nvml).

#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

mod access;
mod drivers;
mod faults;
mod signals;
mod stage;
mod verdicts;
