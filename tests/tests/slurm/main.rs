//! Jobs on a real Slurm cluster of four nodes, which each test starts and stops. Ignored in the inner loop: they need
//! root, Slurm and network namespaces; `tests/run` provides them.

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
