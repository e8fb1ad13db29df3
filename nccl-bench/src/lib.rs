//! Measures collectives over NCCL on GPUs and over TCP everywhere, and records every rank's times.
//!
//! `collective` defines the operations and their byte counts, `pattern` the expected results, `transport` the data
//! transfer, and `measure` the results. Other crates judge whether a result is good.

pub mod collective;
mod command;
pub mod cuda;
pub mod dtype;
pub mod fabric;
pub mod gpu;
pub mod import;
pub mod measure;
pub mod net;
pub mod pattern;
pub mod preflight;
pub mod snapshot;
pub mod transport;

pub use command::{BenchOptions, Carrier, main, render};
