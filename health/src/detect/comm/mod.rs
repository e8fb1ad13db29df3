//! Communicators: which ranks share them, and how long transfers in them take.

pub mod communicator;
pub mod communicators;
#[cfg(test)]
mod communicators_tests;
mod per_collective;
