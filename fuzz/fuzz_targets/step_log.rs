//! See `step_log` in entries.rs.
#![no_main]

#[allow(dead_code)]
#[path = "../entries.rs"]
mod entries;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    entries::step_log(bytes);
});
