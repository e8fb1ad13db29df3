//! Jobs on a real Slurm of four nodes, which each test brings up and takes down. Ignored in the inner loop: they need root,
//! Slurm and network namespaces; `tests/run` sees to it.

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
