//! Compares dumps of PyTorch's flight recorder to find the ranks that have not entered a collective in which others
//! wait.

mod compare;
mod dump;
mod messages;
mod mismatch;
mod pickle;

pub use compare::{Comparison, Position};
pub use dump::{Dump, DumpError};
pub use pickle::PickleError;

#[cfg(test)]
mod dump_tests;
#[cfg(test)]
mod tests;
