//! Dumps of PyTorch's flight recorder, compared: which ranks have not entered a collective that others wait in.

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
