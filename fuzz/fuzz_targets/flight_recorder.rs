//! See `flight_recorder` in entries.rs.
#![no_main]

#[allow(dead_code)]
#[path = "../entries.rs"]
mod entries;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    entries::flight_recorder(bytes);
});
