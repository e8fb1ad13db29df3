//! NCCL's transport and the GPU's work, on a library that computes on the host (tests/fake-nccl): what a machine without
//! a GPU can hold of them.

#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

mod blocking;
mod collectives;
mod failures;
mod processes;
mod stage;
mod work;
