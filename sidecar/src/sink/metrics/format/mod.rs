//! Metric families, their units, and the text format for scrapes.

pub(super) mod families;
pub(super) mod text;
pub(in crate::sink) mod units;
