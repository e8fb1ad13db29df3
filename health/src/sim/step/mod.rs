//! Computes the durations of the parts of a step (work, transfers and collectives) for every rank.

mod beside;
pub mod comms;
pub mod pace;
mod roads;
pub mod timeline;
mod work;
