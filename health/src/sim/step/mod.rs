//! How long the parts of a step take: work, transfers and collectives, for every rank.

mod beside;
pub mod comms;
pub mod pace;
mod roads;
pub mod timeline;
mod work;
