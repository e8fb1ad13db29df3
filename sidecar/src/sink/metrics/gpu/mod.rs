//! GPUs: what was last read of each, the table of their families, and the names of dcgm-exporter.

pub(super) mod dcgm;
pub(super) mod gpu_table;
pub(in crate::sink) mod gpus;
