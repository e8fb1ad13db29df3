//! Families of metrics, their units, and the text that is scraped.

pub(super) mod families;
pub(super) mod text;
pub(in crate::sink) mod units;
