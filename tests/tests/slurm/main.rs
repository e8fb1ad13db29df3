//! Tests jobs on a real Slurm cluster of four nodes, which each test starts and stops. They are ignored by default,
//! because they need root, Slurm and network namespaces. `tests/run` provides these.

#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

mod checks;
mod cluster;
mod ends;
mod kinds;
mod mpi;
mod site;
mod steps;
mod torch;
mod unchanged;
mod why;
