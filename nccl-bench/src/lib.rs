//! Measures collectives: over NCCL where there are GPUs, over TCP everywhere, and keeps every rank's times.
//!
//! `collective` says what is run and counted, `pattern` what a right result is, `transport` who carries it, `measure`
//! what comes out. Whether a figure is good is not known here.

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
