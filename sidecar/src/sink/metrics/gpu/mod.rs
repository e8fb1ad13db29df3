//! GPUs: the last readings of each, the table of their families, and dcgm-exporter's names.

pub(super) mod dcgm;
pub(super) mod gpu_table;
pub(in crate::sink) mod gpus;
