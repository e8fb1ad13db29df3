//! Communicators: their member ranks, and how long their transfers take.

pub mod communicator;
pub mod communicators;
#[cfg(test)]
mod communicators_tests;
mod per_collective;
